//! Checks the ICRC of a packet whose IPv4 identification is not known.
//!
//! A UDP socket does not report the identification. But a CRC is linear: the difference
//! between the received ICRC and the ICRC computed for a guessed identification depends
//! only on the bits in which the identifications differ, and on the number of bytes after
//! them. Shifting the difference back over these bytes leaves the 16 bits of the
//! identification in a 32-bit register. Any other bit in the register means that the
//! packet is damaged.
//!
//! The same step shows whether the sender allows fragmentation: the "do not fragment" flag
//! is in the byte after the identification. Linux rxe and Ferroce set it; other stacks may
//! not.

use super::polynomial::shift_back;
use super::{FlowIcrc, split};
use crate::ip::{DONT_FRAGMENT, IPV4_LEN, UDP_LEN};

/// Number of IPv4 and UDP header bytes after the identification.
pub(super) const AFTER_ID: usize = IPV4_LEN - 6 + UDP_LEN;
/// Number of IPv4 and UDP header bytes after the flags, which follow the identification.
const AFTER_FLAGS: usize = AFTER_ID - 1;

/// Upper bound of the identifications of GSO segments. From a socket that uses
/// identification 0, GSO numbers the segments of one send from 0 to at most 63.
pub const SEGMENTS: u16 = 64;

/// The result of checking a packet whose ICRC is correct for some IPv4 identification.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recovered {
    /// The identification; 0 over IPv6, which has none.
    pub id: u16,
    /// True if the identification is plausible: 0 to 63, the expected one, or the one before
    /// it. Then the check has the strength of nearly 32 bits. Otherwise it has 15 bits: one
    /// damaged packet in 2^15 looks correct for some identification and flag.
    pub likely: bool,
}

#[inline]
pub(super) fn recover_id(flow: &FlowIcrc, expected: u16, packet: &[u8]) -> Option<Recovered> {
    let (body, received) = split(packet)?;
    recover_with(flow, expected, received, body.len(), |id| {
        flow.checksum(id, body)
    })
}

/// Finds the identification for which `checksum` returns the received ICRC. The checksum
/// covers the headers and `hashed` bytes after them.
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

/// Returns the identification bits that explain the difference of two ICRCs. Returns `None`
/// if anything other than these bits and the "do not fragment" flag differs.
fn id_difference(difference: u32, hashed: usize) -> Option<u16> {
    // A register that starts at zero holds the hashed bytes times x^32, so four more bytes
    // must be undone. The byte that was hashed last is the highest.
    let register = shift_back(difference, AFTER_FLAGS + hashed + 4);
    let [other, high, low, flags] = register.to_le_bytes();
    let plausible = other == 0 && flags & !DONT_FRAGMENT == 0;
    plausible.then(|| u16::from_be_bytes([high, low]))
}
