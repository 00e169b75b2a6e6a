//! WRITEs that a program awaits in memory after its own work requests have completed.
//!
//! A program that plays ping-pong with WRITEs takes the completion of its own WRITE, and reads memory
//! until the peer's WRITE is there. It makes no call meanwhile, so that WRITE waits for the progress
//! thread. On iWARP a WRITE completes as soon as the socket has accepted it: each message took 14 us
//! instead of 6 on two processors. With RoCE the completion comes with the peer's ACK. For a
//! WRITE of one packet, the peer's answer is in the same run, and the poll that takes the completion has
//! received the answer, too. The ACK of a longer WRITE arrives first: 8 KiB took 40 us, 4 KiB 7.5.
//!
//! For such a program, a poll that takes a completion receives until the answer has arrived, for
//! a limited time. [`AwaitedWrites`] learns from WRITEs whether the program is one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ferroce_roce::Time;
use ferroce_shard::STANDBY_NS;

use crate::slowness;

/// Shortest time for which a poll looks for the answer at first, and for the rest of one that
/// arrives in pieces.
pub(crate) const AWAIT_NS: u64 = 50_000;
/// That time is a multiple of the time that an answer took before. An emulated processor needs
/// hundreds of microseconds.
const TIMES_LONGER: u64 = 8;
/// Longest time of a search. Polls look for so long after many answers were found in a row: the
/// peer may have lost its processor. An answer that is missed waits for the end of a standby, and
/// the progress thread is on the alert for a while.
const AWAIT_LONGER_NS: u64 = 1_000_000;
/// Number of these answers.
const MANY: u32 = 16;
/// WRITEs in a row that the progress thread received after completions, from which on polls look
/// for the answer.
const FIRST: u32 = 8;
/// The same, after many searches in vain: they cost less than 0.2 us for each WRITE.
const MOST: u32 = 1024;
/// Searches in vain, one after the other, that end the searches.
const IN_VAIN: u32 = 4;

/// Returns the length of a standby of the progress thread while polls look for WRITEs. A search in
/// vain ends it.
pub(crate) fn search_standby_ns() -> u64 {
    slowness::scaled(5 * STANDBY_NS)
}

/// Learns whether a program awaits WRITEs in memory.
#[derive(Debug)]
pub(crate) struct AwaitedWrites {
    /// Turns that received whole messages.
    arrivals: AtomicU32,
    /// That number at the last post.
    at_post: AtomicU32,
    /// Time of the first completion that the program has taken since the progress thread's last
    /// WRITE; 0 if it took none.
    completed_at: AtomicU64,
    /// WRITEs in a row that the progress thread received after completions.
    followed: AtomicU32,
    /// Shortest time from a completion to such a WRITE, in nanoseconds.
    shortest_wait: AtomicU64,
    /// Number of those from which on polls look for the answer.
    needed: AtomicU32,
    /// Searches that may be in vain until they end; 0 if polls do not search.
    searches: AtomicU32,
    /// Searches in a row that found the answer.
    found: AtomicU32,
}

impl Default for AwaitedWrites {
    fn default() -> AwaitedWrites {
        AwaitedWrites {
            arrivals: AtomicU32::new(0),
            at_post: AtomicU32::new(0),
            completed_at: AtomicU64::new(0),
            followed: AtomicU32::new(0),
            shortest_wait: AtomicU64::new(0),
            needed: AtomicU32::new(FIRST),
            searches: AtomicU32::new(0),
            found: AtomicU32::new(0),
        }
    }
}

impl AwaitedWrites {
    /// Notes a turn that received whole messages. The caller holds the shard's lock.
    pub(crate) fn note_arrival(&self) {
        let arrivals = self.arrivals.load(Ordering::Relaxed);
        self.arrivals
            .store(arrivals.wrapping_add(1), Ordering::Relaxed);
    }

    /// Notes a post of sends, after which an answer may arrive.
    pub(crate) fn note_post(&self) {
        let arrivals = self.arrivals.load(Ordering::Relaxed);
        self.at_post.store(arrivals, Ordering::Relaxed);
    }

    /// Notes that the program has taken a completion. `clock` returns the time.
    #[inline]
    pub(crate) fn note_completion(&self, clock: impl FnOnce() -> Time) {
        if self.completed_at.load(Ordering::Relaxed) == 0 {
            self.completed_at
                .store(clock().as_nanos(), Ordering::Relaxed);
        }
    }

    /// Notes a turn of the progress thread in which WRITEs ended, and whether receives completed
    /// as well: a program polls for these.
    pub(crate) fn note_writes(&self, now: Time, with_receives: bool) {
        let completed_at = self.completed_at.swap(0, Ordering::Relaxed);
        let followed = match completed_at != 0 && !with_receives {
            true => self.followed.load(Ordering::Relaxed) + 1,
            false => 0,
        };
        if followed > 0 {
            let wait = now.nanos_since(Time::from_nanos(completed_at));
            let shortest = match followed {
                1 => wait,
                _ => wait.min(self.shortest_wait.load(Ordering::Relaxed)),
            };
            self.shortest_wait.store(shortest, Ordering::Relaxed);
        }
        let begins = followed >= self.needed.load(Ordering::Relaxed);
        if begins {
            self.searches.store(IN_VAIN, Ordering::Relaxed);
        }
        let followed = if begins { 0 } else { followed };
        self.followed.store(followed, Ordering::Relaxed);
    }

    /// Returns true if a poll that takes a completion shall look for the answer.
    pub(crate) fn are_expected(&self) -> bool {
        self.searches() && !self.have_arrived()
    }

    /// Returns true if polls that take completions look for answers.
    pub(crate) fn searches(&self) -> bool {
        self.searches.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a message has arrived since the last post.
    pub(crate) fn have_arrived(&self) -> bool {
        self.arrivals.load(Ordering::Relaxed) != self.at_post.load(Ordering::Relaxed)
    }

    /// Returns the longest time of a search.
    pub(crate) fn limit_ns(&self) -> u64 {
        match self.found.load(Ordering::Relaxed) {
            MANY.. => AWAIT_LONGER_NS,
            _ => {
                let wait = self.shortest_wait.load(Ordering::Relaxed);
                wait.saturating_mul(TIMES_LONGER)
                    .clamp(AWAIT_NS, AWAIT_LONGER_NS)
            }
        }
    }

    /// Notes the result of a search. After searches in vain the program has to be observed for longer
    /// before the next ones.
    pub(crate) fn note_search(&self, found: bool) {
        if found {
            self.searches.store(IN_VAIN, Ordering::Relaxed);
            let found = self.found.load(Ordering::Relaxed).saturating_add(1);
            self.found.store(found, Ordering::Relaxed);
            return;
        }
        self.found.store(0, Ordering::Relaxed);
        let left = self.searches.load(Ordering::Relaxed).saturating_sub(1);
        self.searches.store(left, Ordering::Relaxed);
        if left == 0 {
            let needed = self.needed.load(Ordering::Relaxed);
            self.needed.store((needed * 2).min(MOST), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1_000_000_000);

    /// A message of a ping-pong whose WRITE the progress thread receives.
    fn ping_pong(writes: &AwaitedWrites) {
        writes.note_post();
        writes.note_completion(|| START);
        writes.note_arrival();
        writes.note_writes(START, false);
    }

    fn expected(writes: &AwaitedWrites) -> bool {
        writes.note_post();
        writes.are_expected()
    }

    #[test]
    fn writes_that_follow_completions_are_expected() {
        let writes = AwaitedWrites::default();
        for _ in 0..FIRST {
            assert!(!expected(&writes));
            ping_pong(&writes);
        }
        assert!(expected(&writes));
        writes.note_arrival();
        assert!(!writes.are_expected(), "the answer is there");
    }

    #[test]
    fn program_that_polls_for_receives_awaits_no_writes() {
        let writes = AwaitedWrites::default();
        for _ in 0..100 {
            ping_pong(&writes);
            writes.note_completion(|| START);
            writes.note_writes(START, true);
        }
        assert!(!expected(&writes));
    }

    #[test]
    fn writes_without_completions_are_not_expected() {
        let writes = AwaitedWrites::default();
        writes.note_completion(|| START);
        for _ in 0..100 {
            writes.note_writes(START, false);
        }
        assert!(!expected(&writes));
    }

    #[test]
    fn many_answers_allow_longer_searches_until_one_is_in_vain() {
        let writes = AwaitedWrites::default();
        for _ in 0..MANY {
            assert_eq!(writes.limit_ns(), AWAIT_NS);
            writes.note_search(true);
        }
        assert_eq!(writes.limit_ns(), AWAIT_LONGER_NS);
        writes.note_search(false);
        assert_eq!(writes.limit_ns(), AWAIT_NS);
    }

    /// The program takes a completion, and its answer arrives after so many nanoseconds.
    fn answer_after(writes: &AwaitedWrites, ns: u64) {
        writes.note_completion(|| START);
        writes.note_writes(START.after_nanos(ns), false);
    }

    #[test]
    fn search_lasts_for_a_multiple_of_the_time_that_answers_took() {
        let writes = AwaitedWrites::default();
        answer_after(&writes, 900_000);
        answer_after(&writes, 100_000);
        // The progress thread can be late.
        answer_after(&writes, 4_000_000);
        assert_eq!(writes.limit_ns(), TIMES_LONGER * 100_000);
        writes.note_writes(START, false);
        answer_after(&writes, 1_000);
        assert_eq!(writes.limit_ns(), AWAIT_NS, "a new row of answers");
        for _ in 0..FIRST {
            answer_after(&writes, 0);
            writes.note_writes(START, false);
            answer_after(&writes, 400_000);
        }
        assert_eq!(writes.limit_ns(), AWAIT_LONGER_NS);
    }

    #[test]
    fn searches_in_vain_end_and_delay_the_next_ones() {
        let writes = AwaitedWrites::default();
        for needed in [FIRST, 2 * FIRST, 4 * FIRST] {
            for _ in 0..needed {
                assert!(!expected(&writes));
                ping_pong(&writes);
            }
            for _ in 1..IN_VAIN {
                assert!(expected(&writes));
                writes.note_search(false);
            }
            writes.note_search(true);
            for _ in 0..IN_VAIN {
                assert!(expected(&writes));
                writes.note_search(false);
            }
        }
        assert!(!expected(&writes));
    }
}
