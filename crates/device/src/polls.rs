//! The polls of a program, as the progress thread sees them.
//!
//! While the program polls a completion queue, it receives packets itself. The progress
//! thread reads from here whether it still polls, without the shard's lock.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use ferroce_roce::Time;
use ferroce_shard::STANDBY_NS;

use crate::cpu_time;
use crate::slowness::scaled;

/// Time between two polls of a program that does nothing else, or is interrupted for a moment.
const POLLS_ON_NS: u64 = 10_000;
/// Longest time of a call. A call that sends several batches of 64 KiB takes 100 us; a thread
/// that loses its processor during a call takes longer, and packets must not wait for it.
const CALL_NS: u64 = 1_000_000;

/// Age of `polled_at` up to which the end of a call leaves it: an update takes a locked instruction.
const UPDATE_NS: u64 = 1_000;

/// The polls of a program.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    /// End of the last poll, or of the last post soon after a poll, or up to [`UPDATE_NS`] before
    /// it; zero if no further poll is expected.
    polled_at: AtomicU64,
    /// Number of the thread that polled last; 0 if none did.
    poller: AtomicI32,
    /// True if the last poll found no completion: the program will probably poll again.
    found_nothing: AtomicBool,
    /// True while a thread of the program posts or polls.
    in_call: AtomicBool,
}

impl Polls {
    /// Notes a poll that found no completion.
    pub(crate) fn note(&self, now: Time) {
        self.expect(now);
        let thread = cpu_time::current_thread();
        self.poller.store(thread, Ordering::Relaxed);
        self.found_nothing.store(true, Ordering::Relaxed);
    }

    /// Notes that the program may poll soon.
    pub(crate) fn expect(&self, now: Time) {
        self.polled_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Notes that a poll found a completion: the program may do something else now.
    #[inline]
    pub(crate) fn note_completion(&self) {
        if self.found_nothing.load(Ordering::Relaxed) {
            self.found_nothing.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that no further poll is expected. Returns false if none was expected before.
    pub(crate) fn stop(&self) -> bool {
        self.polled_at.swap(0, Ordering::Relaxed) != 0
    }

    /// Notes that a thread of the program begins to post or to poll.
    #[inline]
    pub(crate) fn begin_call(&self) {
        self.in_call.store(true, Ordering::Relaxed);
    }

    /// Notes the end of a call that lasted from `since` to `end`. If the program polls, the
    /// standby of the progress thread begins anew. A call that sends much takes longer than a
    /// standby: the packets that arrived meanwhile were not missed.
    #[inline]
    pub(crate) fn end_call(&self, since: Time, end: Time) {
        self.in_call.store(false, Ordering::Relaxed);
        let polled = self.polled_at.load(Ordering::Relaxed);
        let is_polled =
            polled != 0 && since.nanos_since(Time::from_nanos(polled)) < scaled(STANDBY_NS);
        if is_polled && end.nanos_since(Time::from_nanos(polled)) > UPDATE_NS {
            // Unless another thread began to wait for an event.
            let _changed = self.polled_at.compare_exchange(
                polled,
                end.as_nanos(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Returns true if the program polls without a pause, and has found nothing so far.
    pub(crate) fn go_on(&self, now: Time) -> bool {
        self.found_nothing.load(Ordering::Relaxed) && self.within(now, scaled(POLLS_ON_NS))
    }

    /// Returns true if the program polled within `ns` before `now`.
    pub(crate) fn within(&self, now: Time, ns: u64) -> bool {
        now.nanos_since(self.last()) < ns
    }

    /// Returns the time for which a further poll is still expected. During a call that is a
    /// whole standby: the program may poll after it.
    pub(crate) fn standby_ns(&self, now: Time) -> Option<u64> {
        if self.is_in_call(now) {
            return Some(scaled(STANDBY_NS));
        }
        scaled(STANDBY_NS)
            .checked_sub(now.nanos_since(self.last()))
            .filter(|&left| left > 0)
    }

    /// Returns true while a thread of a program that polls is in a call of usual length.
    pub(crate) fn is_in_call(&self, now: Time) -> bool {
        self.in_call.load(Ordering::Relaxed) && self.within(now, CALL_NS)
    }

    /// Returns the thread that polled last, its CPU time, and the time of that poll.
    pub(crate) fn poller(&self) -> Option<(i32, u64, Time)> {
        let polled = self.last();
        let thread = self.poller.load(Ordering::Relaxed);
        cpu_time::used_by(thread).map(|used| (thread, used, polled))
    }

    fn last(&self) -> Time {
        Time::from_nanos(self.polled_at.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1_000_000_000);

    #[test]
    fn call_longer_than_a_standby_is_no_pause() {
        let polls = Polls::default();
        polls.note(START);
        polls.begin_call();
        let later = START.after_nanos(3 * STANDBY_NS);
        assert_eq!(polls.standby_ns(later), Some(STANDBY_NS));
        // The thread may have lost its processor: packets do not wait for it.
        assert_eq!(polls.standby_ns(START.after_nanos(CALL_NS)), None);
        polls.end_call(START, later);
        assert!(!polls.is_in_call(later));
        assert_eq!(polls.standby_ns(later), Some(STANDBY_NS));
        assert_eq!(polls.standby_ns(later.after_nanos(STANDBY_NS)), None);
    }

    #[test]
    fn call_of_a_program_that_does_not_poll_is_no_poll() {
        let polls = Polls::default();
        polls.note(START);
        assert!(polls.stop(), "the program polled");
        polls.begin_call();
        assert_eq!(polls.standby_ns(START), None);
        polls.end_call(START, START.after_nanos(1));
        assert_eq!(polls.standby_ns(START.after_nanos(1)), None);
    }
}
