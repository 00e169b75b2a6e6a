//! How much slower than usual the system calls of this machine are.
//!
//! The progress thread stands by, and looks for packets without sleep, for times that fit machines
//! on which a system call takes 0.1 to 0.5 us and a message 5 to 20 us. An emulated processor or a
//! sandbox needs several times as long for both. With times for a fast machine, the progress thread
//! would interrupt the program within each message, and sleep before each packet.

#[cfg(not(test))]
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{Timespec, poll};

use crate::clock;

/// Usual time of a poll of no descriptors. It takes 0.24 us on a fast machine, and 1 us in a guest
/// that QEMU emulates there.
const USUAL: Duration = Duration::from_nanos(300);
/// Largest factor. Eight standbys are shorter than the longest call of a program.
const MOST: u64 = 8;
/// Polls of a measurement. The shortest counts: others are interrupted.
const POLLS: usize = 32;

/// Returns a time that is `ns` on a usual machine, and longer on a slow one.
pub(crate) fn scaled(ns: u64) -> u64 {
    ns * factor()
}

/// Returns the factor of this machine. The first call measures, for some 10 us.
#[cfg(not(test))]
fn factor() -> u64 {
    static FACTOR: OnceLock<u64> = OnceLock::new();
    *FACTOR.get_or_init(|| factor_of(shortest_poll()))
}

/// Unit tests expect the times of a usual machine.
#[cfg(test)]
fn factor() -> u64 {
    1
}

fn factor_of(poll: Duration) -> u64 {
    let times = poll.as_nanos() / USUAL.as_nanos();
    u64::try_from(times).unwrap_or(MOST).clamp(1, MOST)
}

/// Returns the shortest time of some polls.
fn shortest_poll() -> Duration {
    let polls = (0..POLLS).map(|_| {
        let before = clock::now();
        // The time counts, not the result.
        let _none_is_ready = poll(&mut [], Some(&Timespec::default()));
        clock::now().nanos_since(before)
    });
    Duration::from_nanos(polls.min().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_machines_have_usual_times_and_slow_ones_longer() {
        let factor = |ns| factor_of(Duration::from_nanos(ns));
        assert_eq!([0, 100, 300, 599].map(factor), [1; 4]);
        assert_eq!(factor(1_000), 3);
        assert_eq!(factor(1_000_000), MOST);
    }

    #[test]
    fn poll_of_nothing_takes_time() {
        assert!(shortest_poll() > Duration::ZERO);
    }
}
