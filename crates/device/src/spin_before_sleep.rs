//! Decides whether a thread that waits for an event looks for packets for a moment before it
//! sleeps.
//!
//! To sleep and wake up takes 5 to 40 us, which is longer than most peers need for an answer. So
//! a thread whose last waits were short looks for packets without sleep first, if a processor is
//! free. A long wait ends that: a program that waits for rare events only sleeps.

use ferroce_roce::Time;

use crate::free_cores::FreeCores;

/// Time for which a thread looks for packets without sleep, and the length of a short wait. On
/// two processors of a virtual machine an answer takes up to 40 us if both ends sleep.
const SPIN_NS: u64 = 50_000;

/// Short waits in a row after which a thread looks for packets without sleep.
const SHORT_WAITS: u8 = 2;

/// The last waits of a channel.
#[derive(Debug)]
pub(crate) struct SpinBeforeSleep {
    cores: FreeCores,
    /// Short waits in a row, at most [`SHORT_WAITS`].
    short_waits: u8,
}

impl SpinBeforeSleep {
    /// Creates the rule for a channel on which no thread has waited.
    pub(crate) fn new() -> SpinBeforeSleep {
        SpinBeforeSleep {
            cores: FreeCores::new(),
            short_waits: 0,
        }
    }

    /// Begins a wait. Returns the time until which the thread looks for packets without sleep.
    pub(crate) fn begin(&mut self, now: Time) -> Time {
        match self.short_waits >= SHORT_WAITS && self.cores.has_one(now, 0) {
            true => now.after_nanos(SPIN_NS),
            false => now,
        }
    }

    /// Notes the length of a wait.
    pub(crate) fn end(&mut self, begin: Time, end: Time) {
        self.short_waits = match end.nanos_since(begin) <= SPIN_NS {
            true => SHORT_WAITS.min(self.short_waits + 1),
            false => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_begin_the_spin_and_one_long_wait_ends_it() {
        let mut rule = SpinBeforeSleep::new();
        rule.cores = FreeCores::with_free(1);
        let (begin, short) = (Time::from_nanos(1), Time::from_nanos(1 + SPIN_NS));
        assert_eq!(rule.begin(begin), begin);
        rule.end(begin, short);
        assert_eq!(rule.begin(begin), begin);
        rule.end(begin, short);
        assert_eq!(rule.begin(begin), short);
        rule.end(begin, short.after_nanos(1));
        assert_eq!(rule.begin(begin), begin);
    }

    #[test]
    fn thread_sleeps_at_once_if_no_processor_is_free() {
        let mut rule = SpinBeforeSleep::new();
        rule.cores = FreeCores::with_free(0);
        let begin = Time::from_nanos(1);
        for _ in 0..=SHORT_WAITS {
            rule.end(begin, begin);
            assert_eq!(rule.begin(begin), begin);
        }
    }
}
