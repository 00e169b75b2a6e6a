//! RoCEv2 on the wire: packet formats, opcodes and the invariant CRC.
//!
//! ```text
//!  IPv4 or IPv6 | UDP, port 4791 | BTH | extension headers | payload | pad | ICRC
//!  '--- Flow: fields that       '-------- Packet: a checked view of these bytes --'
//!       the ICRC covers
//! ```
//!
//! This crate knows the layout of packets and has no queue pair state. It decides
//! whether bytes are a valid packet; the transport decides whether to accept the packet.
//!
//! - Each header is a plain value with `parse` and `emit`, one file per header.
//! - [`Packet`] reads a received packet.
//! - [`HeaderBuf`] writes the headers of a packet to send.
//! - [`icrc`] computes and checks the ICRC, also for receivers that do not see the
//!   IPv4 header.
//!
//! The crate uses no allocation, no unsafe code and no standard library. The `std`
//! feature (on by default) only lets the CRC choose the best instructions at run time.

#![no_std]
#![forbid(unsafe_code)]

mod flow;
mod header_buf;
mod headers;
pub mod icrc;
pub mod ip;
mod kind;
mod mtu;
mod opcode;
mod packet;
mod port;
mod psn;

pub use flow::Flow;
pub use header_buf::HeaderBuf;
pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, NakCode, Rdeth, Reth, Syndrome,
    XrcEth, credit_code, credits, rnr_delay_ns,
};
pub use icrc::{FlowIcrc, Icrc, Recovered};
pub use kind::{ACKNOWLEDGE_LEN, completes_rc_receive, is_datagram, is_unreliable, rc_acknowledge};
pub use mtu::Mtu;
pub use opcode::{Opcode, Operation, Transport};
pub use packet::{Packet, ParseError};
pub use port::{ROCE_PORT, rc_source_port, ud_source_port};
pub use psn::Psn;

/// Length of the ICRC that ends every packet.
pub const ICRC_LEN: usize = 4;

/// Largest total length of BTH and extension headers of any opcode (RD COMPARE_SWAP).
pub const MAX_HEADER_LEN: usize = 52;

/// Returns the number of pad bytes (0 to 3) after a payload of this length.
pub const fn padding(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// Returns the first `N` bytes.
///
/// The caller has checked the length of the slice. So a short slice is a bug in this
/// crate, not a malformed packet.
#[inline]
fn head<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("length checked by the caller")
}

/// Reads a 24-bit big-endian field, such as a QPN, PSN or MSN.
#[inline]
const fn be24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}
