//! Decides whether a thread that waits for an event looks for packets before it sleeps.
//!
//! To sleep and wake up takes longer than most messages between two programs of one host: a
//! ping-pong with events took 13 us each way, and without sleep 6. So after several short waits
//! in a row a thread looks for packets for a while, if a processor is free. A look in vain ends
//! that. A program that waits for long sleeps at once, and costs nothing.
//!
//! A machine with two processors has none to spare: the peer may be ready to run on the processor of this
//! thread, and would wait there until the look ends. So the thread yields its processor several times during such a
//! look ([`Search::yields`]). If it does not get the processor back soon, a program that computes needs the
//! processor, and that counts as many looks in vain.

use std::sync::{Mutex, TryLockError};

use ferroce_roce::Time;

use crate::clock;
use crate::free_cores::FreeCores;
use crate::slowness::scaled;

/// Longest time without sleep.
const SPIN_NS: u64 = 50_000;
/// Longest short wait. A thread that sleeps waits longer than one that looks for packets.
const SHORT_NS: u64 = 2 * SPIN_NS;
/// Looks for packets between two yields, if no other processor is free. A yield takes as long as a look.
const LOOKS: u32 = 4;
/// Longest time without the processor during a search. A peer that answers needs 5 to 30 us of it. A program that
/// computes keeps it for a time slice, 1.5 to 4 ms.
const PAUSES_NS: u64 = 200_000;
/// Short waits in a row after which threads look for packets without sleep.
const FIRST: u32 = 8;
/// The same after many looks in vain: they cost less than 50 ns for each event.
const MOST: u32 = 1024;
/// Looks in a row that found an event, after which earlier ones in vain are forgotten.
const MANY: u32 = 64;

/// Processors that must be free beside that of the thread, for one that keeps its own: one for the peer on
/// the same machine, and one for progress threads.
const PEERS: usize = 2;

/// Learns from the waits of a channel.
#[derive(Debug)]
pub(crate) struct EventSpin(Mutex<State>);

#[derive(Debug)]
struct State {
    waits: ShortWaits,
    /// None before the first time that the answer matters.
    cores: Option<FreeCores>,
}

/// The waits of a channel, without clock and threads.
#[derive(Debug)]
struct ShortWaits {
    in_a_row: u32,
    needed: u32,
    found: u32,
}

impl Default for EventSpin {
    fn default() -> EventSpin {
        EventSpin(Mutex::new(State {
            waits: ShortWaits {
                in_a_row: 0,
                needed: FIRST,
                found: 0,
            },
            cores: None,
        }))
    }
}

/// A look for packets without sleep. The default ends before it begins: the thread sleeps.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// None if the thread shall sleep at once.
    until: Option<Time>,
    /// True if the thread yields its processor now and then.
    yields: bool,
    turns: u32,
    /// Time that the yields have taken.
    paused_ns: u64,
}

/// The result of [`Search::pause`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// The thread shall look again.
    Over,
    /// The thread shall sleep: it has found nothing.
    Vain,
    /// The thread shall sleep: another program needs its processor.
    Long,
    /// The thread shall sleep, and has not looked.
    Sleep,
}

impl EventSpin {
    /// Begins a wait.
    pub(crate) fn begin(&self, now: Time) -> Search {
        self.with(Search::default(), |state| {
            let mut look = Search::default();
            if state.waits.are_short() {
                let cores = state.cores.get_or_insert_with(FreeCores::new);
                look.yields = !cores.has_one(now, PEERS);
                let spins = !look.yields || cores.has_one(now, 0);
                look.until = spins.then(|| now.after_nanos(scaled(SPIN_NS)));
            }
            look
        })
    }

    /// Notes the end of a look that has found no event.
    pub(crate) fn note_vain(&self, pause: Pause) {
        self.with((), |state| match pause {
            Pause::Vain => state.waits.note_vain(),
            Pause::Long => state.waits.note_long_pause(),
            Pause::Over | Pause::Sleep => {}
        });
    }

    /// Notes an event that came after so many nanoseconds, and whether the thread slept.
    pub(crate) fn note_event(&self, waited_ns: u64, slept: bool) {
        self.with((), |state| match slept {
            true => state.waits.note_sleep(waited_ns),
            false => state.waits.note_found(),
        });
    }

    /// Several threads can wait in one channel. One that finds another here learns nothing.
    fn with<T>(&self, otherwise: T, work: impl FnOnce(&mut State) -> T) -> T {
        match self.0.try_lock() {
            Ok(mut state) => work(&mut state),
            Err(TryLockError::Poisoned(state)) => work(&mut state.into_inner()),
            Err(TryLockError::WouldBlock) => otherwise,
        }
    }
}

impl Search {
    /// Waits a moment before the next look, if there is one.
    pub(crate) fn pause(&mut self) -> Pause {
        let Some(until) = self.until else {
            return Pause::Sleep;
        };
        let now = clock::now();
        if now >= until {
            self.until = None;
            return Pause::Vain;
        }
        self.turns += 1;
        if !self.yields || !self.turns.is_multiple_of(LOOKS) {
            core::hint::spin_loop();
            return Pause::Over;
        }
        rustix::thread::sched_yield();
        let pause_ns = clock::now().nanos_since(now);
        self.paused_ns += pause_ns;
        // The peer had the processor: it does not count as time of the look.
        self.until = Some(until.after_nanos(pause_ns));
        if self.paused_ns < scaled(PAUSES_NS) {
            return Pause::Over;
        }
        self.until = None;
        Pause::Long
    }
}

impl ShortWaits {
    fn are_short(&self) -> bool {
        self.in_a_row >= self.needed
    }

    fn note_sleep(&mut self, waited_ns: u64) {
        self.in_a_row = match waited_ns <= scaled(SHORT_NS) {
            true => self.in_a_row.saturating_add(1),
            false => 0,
        };
    }

    fn note_found(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.found = self.found.saturating_add(1);
        if self.found >= MANY {
            self.needed = FIRST;
        }
    }

    fn note_vain(&mut self) {
        self.in_a_row = 0;
        self.found = 0;
        self.needed = (self.needed * 2).min(MOST);
    }

    fn note_long_pause(&mut self) {
        self.note_vain();
        self.needed = MOST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits() -> ShortWaits {
        EventSpin::default().0.into_inner().unwrap().waits
    }

    #[test]
    fn short_waits_in_a_row_begin_looks_without_sleep() {
        let mut waits = waits();
        for _ in 0..3 {
            for _ in 1..FIRST {
                waits.note_sleep(SHORT_NS);
                assert!(!waits.are_short());
            }
            waits.note_sleep(SHORT_NS + 1);
        }
        for _ in 0..FIRST {
            assert!(!waits.are_short());
            waits.note_sleep(0);
        }
        assert!(waits.are_short());
    }

    #[test]
    fn look_in_vain_ends_them_and_delays_the_next() {
        let mut waits = waits();
        let mut looks = 0;
        for _ in 0..10 * MOST {
            if waits.are_short() {
                looks += 1;
                waits.note_vain();
            }
            waits.note_sleep(0);
        }
        // After 8, 16, 32 ... 1024 short waits, then after 1024 each time.
        assert_eq!(looks, 16);
    }

    #[test]
    fn search_ends_once_and_then_the_thread_sleeps() {
        assert_eq!(Search::default().pause(), Pause::Sleep);
        for yields in [false, true] {
            let mut search = Search {
                until: Some(clock::now().after_nanos(scaled(SPIN_NS))),
                yields,
                ..Search::default()
            };
            let end = loop {
                match search.pause() {
                    Pause::Over => {}
                    end => break end,
                }
            };
            // Long if this thread has lost its processor.
            assert!(end == Pause::Vain || yields && end == Pause::Long);
            assert_eq!(search.pause(), Pause::Sleep);
        }
    }

    #[test]
    fn long_pause_counts_as_many_looks_in_vain() {
        let spin = EventSpin::default();
        spin.note_vain(Pause::Long);
        let needed = || spin.with(0, |state| state.waits.needed);
        assert_eq!(needed(), MOST);
        spin.note_vain(Pause::Sleep);
        assert_eq!(needed(), MOST);
    }

    #[test]
    fn many_events_found_make_up_for_a_look_in_vain() {
        let mut waits = waits();
        for _ in 0..20 {
            waits.note_vain();
        }
        assert_eq!(waits.needed, MOST);
        for _ in 0..MANY {
            waits.note_found();
        }
        waits.note_sleep(SHORT_NS + 1);
        for _ in 0..FIRST {
            assert!(!waits.are_short());
            waits.note_sleep(0);
        }
        assert!(waits.are_short());
    }
}
