//! Checks of single work requests.

use crate::{Check, Finding};

/// Bytes of a GRH.
pub const GRH: u64 = 40;

/// Checks the remote address of an atomic.
pub fn check_atomic(remote_addr: u64) -> Option<Finding> {
    (!remote_addr.is_multiple_of(8)).then(|| {
        let what = format!("the remote address {remote_addr:#x} is not a multiple of 8");
        Finding::warning(Check::Atomic, what)
    })
}

/// Checks the room of a receive of datagrams.
pub fn check_datagram_receive(length: u64) -> Option<Finding> {
    (length < GRH).then(|| {
        let what = format!("a receive of {length} bytes on a UD queue pair");
        Finding::warning(Check::GrhRoom, what)
    })
}

/// Returns the finding about a datagram that was dropped because its receive is too short.
pub fn dropped_datagram(qpn: u32, room: u64, needed: u64) -> Finding {
    let data = needed.saturating_sub(GRH);
    let what = format!(
        "a datagram of {data} bytes was dropped: the receive of queue pair {qpn:#x} has {room} \
         bytes, and {needed} are needed with the GRH"
    );
    Finding::warning(Check::GrhRoom, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_are_aligned_to_8_bytes() {
        assert_eq!(check_atomic(0x1000), None);
        for offset in 1..8 {
            assert!(check_atomic(0x1000 + offset).is_some());
        }
    }

    #[test]
    fn receives_of_datagrams_have_room_for_the_grh() {
        assert_eq!(check_datagram_receive(40), None);
        assert!(check_datagram_receive(39).is_some());
    }
}
