//! Checking the ICRC of a packet whose IPv4 identification is not known.
//!
//! A UDP socket does not show the identification, but a CRC is linear: the ICRC
//! received and the one computed with a guessed identification differ by a term
//! that depends only on the bits in which the identifications differ and on how
//! many bytes follow them. Undoing those bytes leaves the 16 bits themselves,
//! alone in a 32-bit register; anything else in it means a damaged packet.
//!
//! The same step shows whether the sender allows fragmentation: the flag stands in the byte
//! behind the identification. Linux rxe and Ferroce forbid it; other stacks may not.

use super::polynomial::shift_back;
use super::{FlowIcrc, split};
use crate::ip::{DONT_FRAGMENT, IPV4_LEN, UDP_LEN};

/// Bytes of IPv4 and UDP header after the identification.
pub(super) const AFTER_ID: usize = IPV4_LEN - 6 + UDP_LEN;
/// Bytes of IPv4 and UDP header after the flags, which follow the identification.
const AFTER_FLAGS: usize = AFTER_ID - 1;

/// Identifications below this are what GSO gives the segments of one send from
/// a socket that otherwise sends 0.
pub const SEGMENTS: u16 = 64;

/// A packet whose ICRC is right for some IPv4 identification.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recovered {
    /// The identification; 0 over IPv6, which has none.
    pub id: u16,
    /// Whether it is one that was to be expected: from 0 to 63, the one expected, or the
    /// one before. Then this was a check of nearly 32 bits; otherwise of 15, since
    /// one damaged packet in 2^15 looks right for some identification and flag.
    pub likely: bool,
}

#[inline]
pub(super) fn recover_id(flow: &FlowIcrc, expected: u16, packet: &[u8]) -> Option<Recovered> {
    let (body, received) = split(packet)?;
    recover_with(flow, expected, received, body.len(), |id| {
        flow.checksum(id, body)
    })
}

/// Finds the identification with which `checksum`, over the headers and `hashed`
/// bytes after them, gives the ICRC received.
#[inline]
pub(super) fn recover_with(
    flow: &FlowIcrc,
    expected: u16,
    received: u32,
    hashed: usize,
    checksum: impl Fn(u16) -> u32,
) -> Option<Recovered> {
    if !flow.is_ipv4() {
        return (checksum(0) == received).then_some(Recovered {
            id: 0,
            likely: true,
        });
    }
    let difference = checksum(expected) ^ received;
    if difference == 0 {
        return Some(Recovered {
            id: expected,
            likely: true,
        });
    }
    let id = expected ^ id_difference(difference, hashed)?;
    Some(Recovered {
        id,
        likely: id < SEGMENTS || id == expected || id.wrapping_add(1) == expected,
    })
}

/// Returns the bits of the identification by which two ICRCs differ, or none if they
/// differ by anything else but the flag that forbids fragmentation.
fn id_difference(difference: u32, hashed: usize) -> Option<u16> {
    // A register that starts empty holds the bytes that were fed to it times x^32: four
    // bytes more to undo. The byte fed last is the highest.
    let register = shift_back(difference, AFTER_FLAGS + hashed + 4);
    let [other, high, low, flags] = register.to_le_bytes();
    let plausible = other == 0 && flags & !DONT_FRAGMENT == 0;
    plausible.then(|| u16::from_be_bytes([high, low]))
}
