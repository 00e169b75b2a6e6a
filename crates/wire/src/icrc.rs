//! The invariant CRC (ICRC) at the end of every packet.
//!
//! The ICRC is the CRC-32 of Ethernet and zlib over the packet from the IP header on,
//! with every field that a router may change replaced by ones. So the ICRC covers
//! fields of the IP and UDP headers that a program with a UDP socket neither writes
//! nor sees. All of them follow from the [`Flow`] and the length, except the IPv4
//! identification. A sender makes the kernel use a known identification; a receiver
//! cannot read it and uses [`recover_id`].
//!
//! - [`compute`] and [`verify`] take a packet in one piece.
//! - [`Icrc`] takes a packet whose payload is scattered over memory.
//! - [`FlowIcrc`] hashes the IP and UDP headers of a flow once, for many packets.
//! - [`UniformIcrc`] also hashes the start of the BTH once, for the packets of a
//!   uniform run.

mod field;
mod flow_icrc;
mod flush;
mod polynomial;
mod recover;
mod uniform;

use crc32fast::Hasher;

use crate::ip::{IPV4_LEN, UDP_LEN};
use crate::{Bth, Flow, ICRC_LEN, Opcode};
pub use flow_icrc::FlowIcrc;
pub use flush::{compute_flush_quirk, recover_id_flush_quirk, verify_flush_quirk};
pub use recover::{Recovered, SEGMENTS};
pub use uniform::{UNIFORM_PREFIX_LEN, UniformIcrc};

/// An ICRC that is computed piece by piece.
pub struct Icrc(Hasher);

impl Icrc {
    /// Starts a packet: hashes the IP and UDP headers, the BTH and the extension headers.
    ///
    /// `udp_payload_len` counts all bytes from the BTH to the ICRC, both included.
    /// `header` holds the headers as they are sent; this function masks them. Over
    /// IPv6 the `ip_id` is ignored.
    pub fn begin(flow: &Flow, ip_id: u16, udp_payload_len: usize, header: &[u8]) -> Icrc {
        FlowIcrc::new(flow).begin(ip_id, udp_payload_len, header)
    }

    /// Hashes the next piece of payload; after the last piece, the pad bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.0.update(bytes);
        }
    }

    /// Returns the ICRC in wire order.
    #[inline]
    pub fn finish(self) -> [u8; ICRC_LEN] {
        self.value().to_le_bytes()
    }

    #[inline]
    fn value(self) -> u32 {
        self.0.finalize()
    }

    /// Continues from a CRC register and hashes `bytes`.
    #[inline]
    fn resume(register: u32, bytes: &[u8]) -> Icrc {
        let mut icrc = Icrc(Hasher::new_with_initial(!register));
        icrc.update(bytes);
        icrc
    }
}

/// Returns the ICRC of a packet. The slice reaches from the BTH to the pad.
pub fn compute(flow: &Flow, ip_id: u16, packet_without_icrc: &[u8]) -> [u8; ICRC_LEN] {
    FlowIcrc::new(flow).compute(ip_id, packet_without_icrc)
}

/// Returns true if the ICRC at the end of a packet is correct. The slice starts with
/// the BTH. Over IPv6 the `ip_id` is ignored.
pub fn verify(flow: &Flow, ip_id: u16, packet_with_icrc: &[u8]) -> bool {
    FlowIcrc::new(flow).verify(ip_id, packet_with_icrc)
}

/// Splits the ICRC for the identification `from` off a packet and returns the rest with the
/// ICRC for the identification `to`. If the packet is a FLUSH with the ICRC that rxe
/// computes, so is the new ICRC. Returns `None` if the packet is too short for an ICRC.
pub fn change_id<'a>(
    flow: &Flow,
    from: u16,
    to: u16,
    packet_with_icrc: &'a [u8],
) -> Option<(&'a [u8], [u8; ICRC_LEN])> {
    let (body, _) = split(packet_with_icrc)?;
    let flush = Opcode::from_byte(body[0]).is_some_and(Opcode::has_feth);
    let icrc = match flush && verify_flush_quirk(flow, from, packet_with_icrc) {
        true => compute_flush_quirk(flow, to, body),
        false => compute(flow, to, body),
    };
    Some((body, icrc))
}

/// Checks the ICRC of a packet and finds its IPv4 identification. The slice starts with
/// the BTH.
///
/// `expected` is the identification that the sender most likely used: the successor of its
/// last one. If the sender uses segmentation, which numbers the segments from 0, `expected`
/// is the index of the segment.
///
/// This takes one pass over the packet, and about 20 ns more if the identification is not
/// the expected one. Over IPv6 this is [`verify`].
pub fn recover_id(flow: &Flow, expected: u16, packet_with_icrc: &[u8]) -> Option<Recovered> {
    FlowIcrc::new(flow).recover_id(expected, packet_with_icrc)
}

/// Splits a packet into the bytes that the ICRC covers and the ICRC. Returns `None` if the
/// packet is too short for a BTH and an ICRC, or too long for UDP.
fn split(packet: &[u8]) -> Option<(&[u8], u32)> {
    const SHORTEST: usize = Bth::LEN + ICRC_LEN;
    const LONGEST: usize = u16::MAX as usize - IPV4_LEN - UDP_LEN;
    if !(SHORTEST..=LONGEST).contains(&packet.len()) {
        return None;
    }
    let (body, icrc) = packet.split_last_chunk()?;
    Some((body, u32::from_le_bytes(*icrc)))
}
