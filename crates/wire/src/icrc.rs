//! The invariant CRC that ends every packet.
//!
//! It is the CRC-32 of Ethernet and zlib over the packet from the IP header on,
//! with every field that a router may change replaced by ones. That makes it
//! cover fields of the IP and UDP headers that a program with a UDP socket
//! neither writes nor sees. All but one follow from the [`Flow`] and the length;
//! the exception is the IPv4 identification. A sender arranges for a known one;
//! a receiver that is not told it uses [`recover_id`].
//!
//! [`compute`] and [`verify`] take a packet in one piece. [`Icrc`] is for
//! payload that is scattered over memory. [`FlowIcrc`] does the same for many
//! packets of one flow without hashing its headers each time, and [`AlikeIcrc`] for
//! those that differ in hardly more than their payload.

mod alike;
mod field;
mod flow_icrc;
mod flush;
mod polynomial;
mod recover;

use crc32fast::Hasher;

use crate::ip::{IPV4_LEN, UDP_LEN};
use crate::{Bth, Flow, ICRC_LEN};
pub use alike::{ALIKE, AlikeIcrc};
pub use flow_icrc::FlowIcrc;
pub use flush::{compute_flush_quirk, recover_id_flush_quirk, verify_flush_quirk};
pub use recover::{Recovered, SEGMENTS};

/// An ICRC in the making.
pub struct Icrc(Hasher);

impl Icrc {
    /// Starts a packet: IP and UDP headers, BTH and extension headers.
    ///
    /// `udp_payload_len` counts everything from BTH to ICRC, both included;
    /// `header` is as it will be sent, masking is done here. Over IPv6 the
    /// `ip_id` does not matter.
    pub fn begin(flow: &Flow, ip_id: u16, udp_payload_len: usize, header: &[u8]) -> Icrc {
        FlowIcrc::new(flow).begin(ip_id, udp_payload_len, header)
    }

    /// Adds payload, and pad after the last of it.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.0.update(bytes);
        }
    }

    /// The ICRC in wire order.
    #[inline]
    pub fn finish(self) -> [u8; ICRC_LEN] {
        self.value().to_le_bytes()
    }

    #[inline]
    fn value(self) -> u32 {
        self.0.finalize()
    }

    /// Goes on from a CRC register with more bytes.
    #[inline]
    fn resume(register: u32, bytes: &[u8]) -> Icrc {
        let mut icrc = Icrc(Hasher::new_with_initial(!register));
        icrc.update(bytes);
        icrc
    }
}

/// The ICRC of a packet, given from BTH to pad.
pub fn compute(flow: &Flow, ip_id: u16, packet_without_icrc: &[u8]) -> [u8; ICRC_LEN] {
    FlowIcrc::new(flow).compute(ip_id, packet_without_icrc)
}

/// Whether the ICRC at the end of a packet, given from BTH on, is right. Over
/// IPv6 the `ip_id` does not matter.
pub fn verify(flow: &Flow, ip_id: u16, packet_with_icrc: &[u8]) -> bool {
    FlowIcrc::new(flow).verify(ip_id, packet_with_icrc)
}

/// Checks the ICRC of a packet, given from BTH on, and finds its IPv4
/// identification. `expected` is the one after the last of the same sender; or, if that
/// has its packets cut by segmentation, which numbers them from 0, the place among them.
///
/// This takes one pass over the packet and, if the identification is another, some twenty
/// nanoseconds. Over IPv6 it is [`verify`].
pub fn recover_id(flow: &Flow, expected: u16, packet_with_icrc: &[u8]) -> Option<Recovered> {
    FlowIcrc::new(flow).recover_id(expected, packet_with_icrc)
}

/// Separates the ICRC from what it covers; none for what is too short to have
/// both a BTH and an ICRC, or too long for UDP.
fn split(packet: &[u8]) -> Option<(&[u8], u32)> {
    const SHORTEST: usize = Bth::LEN + ICRC_LEN;
    const LONGEST: usize = u16::MAX as usize - IPV4_LEN - UDP_LEN;
    if !(SHORTEST..=LONGEST).contains(&packet.len()) {
        return None;
    }
    let (body, icrc) = packet.split_last_chunk()?;
    Some((body, u32::from_le_bytes(*icrc)))
}
