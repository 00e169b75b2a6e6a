//! Time, and the five-bit time codes of CM messages.

use core::time::Duration;

/// A point in time, as the duration since an origin that the caller chooses.
pub type Time = Duration;

/// Returns the duration of a time code.
///
/// A code `n` means 4.096 us * 2^n. Like the kernel, this function returns 2^(n-8)
/// milliseconds, at least one, so that both ends wait for the same time.
pub fn duration(code: u8) -> Duration {
    let exponent = u32::from(code & 31).saturating_sub(8);
    Duration::from_millis(1 << exponent)
}

/// Returns the acknowledgement timeout of a path, as a time code: twice the packet life
/// time plus the peer's ack delay, rounded like the kernel.
///
/// The sum of two durations is the greater code, plus one if the smaller code is equal to
/// it or one less.
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
    fn a_time_code_is_a_power_of_two_in_milliseconds() {
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
    fn the_timeout_between_two_rxe_is_17_and_in_linux_6_1_19() {
        assert_eq!(ack_timeout(16, 15), 17);
        assert_eq!(ack_timeout(18, 15), 19, "packet life time of Linux 6.1");
    }

    #[test]
    fn an_ack_delay_near_the_round_trip_adds_one() {
        assert_eq!(ack_timeout(16, 16), 18);
        assert_eq!(ack_timeout(16, 17), 18);
        assert_eq!(ack_timeout(16, 18), 19);
        assert_eq!(ack_timeout(16, 19), 19);
        assert_eq!(ack_timeout(30, 31), 31);
    }
}
