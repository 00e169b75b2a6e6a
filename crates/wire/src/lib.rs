//! RoCEv2 on the wire: packet formats, opcodes and the invariant CRC.
//!
//! ```text
//!  IPv4 or IPv6 | UDP, port 4791 | BTH | extension headers | payload | pad | ICRC
//!  '--- Flow: what the ICRC     '-------- Packet: a checked view of this ---------'
//!       covers of these two
//! ```
//!
//! This layer knows how bytes are laid out and nothing about what they mean to
//! a queue pair: it never decides whether a packet is welcome, only whether it
//! is one. Each header is a plain value with `parse` and `emit`, one file per
//! header; [`Packet`] reads a received packet, [`HeaderBuf`] writes the headers
//! of one to be sent, and [`icrc`] computes and checks the trailer, including
//! for receivers that are not shown the IPv4 header.
//!
//! No allocation, no unsafe code, no standard library. The `std` feature (on by
//! default) only lets the CRC choose the best instructions at run time.

#![no_std]
#![forbid(unsafe_code)]

mod flow;
mod header_buf;
mod headers;
pub mod icrc;
pub mod ip;
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
pub use mtu::Mtu;
pub use opcode::{Opcode, Operation, Transport};
pub use packet::{Packet, ParseError};
pub use port::{ROCE_PORT, rc_source_port, ud_source_port};
pub use psn::Psn;

/// Length of the ICRC that ends every packet.
pub const ICRC_LEN: usize = 4;

/// The longest BTH and extension headers of any opcode (RD COMPARE_SWAP).
pub const MAX_HEADER_LEN: usize = 52;

/// Pad bytes (0 to 3) that follow a payload of this length.
pub const fn padding(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// Splits off the first `N` bytes.
///
/// Headers are parsed from slices whose length the caller has checked, so a
/// short one is a bug of ours, not of the peer.
#[inline]
fn head<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("length checked by the caller")
}

/// The low 24 bits of a big-endian field, as used for QPNs, PSNs and MSNs.
#[inline]
const fn be24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}
