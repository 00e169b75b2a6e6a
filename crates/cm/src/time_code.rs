//! Time, and the five-bit codes in which messages speak of it.

use core::time::Duration;

/// A point in time: how long after an origin that the caller chose.
pub type Time = Duration;

/// How long a code stands for.
///
/// A code `n` means 4.096 us * 2^n. Like the kernel we count in milliseconds,
/// 2^(n-8) of them and at least one, so that both ends wait equally long.
pub fn duration(code: u8) -> Duration {
    let exponent = u32::from(code & 31).saturating_sub(8);
    Duration::from_millis(1 << exponent)
}

/// The acknowledgement timeout for a path: twice its life time and once the
/// delay of the peer, as codes, rounded as the kernel does it.
///
/// Adding two durations adds one to the greater code if the other is near it.
pub fn ack_timeout(packet_life_time: u8, ack_delay: u8) -> u8 {
    let there_and_back = packet_life_time + 1;
    let sum = if there_and_back >= ack_delay {
        there_and_back + u8::from(ack_delay >= there_and_back - 1)
    } else {
        ack_delay + u8::from(there_and_back >= ack_delay - 1)
    };
    sum.min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_for_powers_of_two_in_milliseconds() {
        let cases = [
            (0, 1),
            (8, 1),
            (9, 2),
            (16, 256),
            (17, 512),
            (20, 4096),
            (24, 65_536),
        ];
        for (code, ms) in cases {
            assert_eq!(duration(code), Duration::from_millis(ms), "{code}");
        }
        assert_eq!(duration(31), Duration::from_millis(1 << 23));
    }

    #[test]
    fn the_timeout_between_two_rxe_is_17_and_was_19() {
        assert_eq!(ack_timeout(16, 15), 17);
        assert_eq!(ack_timeout(18, 15), 19, "the life time in Linux 6.1");
    }

    #[test]
    fn a_delay_near_the_life_time_adds_one() {
        assert_eq!(ack_timeout(16, 16), 18);
        assert_eq!(ack_timeout(16, 17), 18);
        assert_eq!(ack_timeout(16, 18), 19);
        assert_eq!(ack_timeout(16, 19), 19);
        assert_eq!(ack_timeout(30, 31), 31);
    }
}
