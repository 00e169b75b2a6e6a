//! Decides whether a thread that waits for an event looks for packets before it sleeps.
//!
//! To sleep and wake up takes longer than most messages between two programs of one host: a
//! ping-pong with events took 13 us each way, and without sleep 6. So after several short waits
//! in a row a thread looks for packets for a while, if a processor is free. A look in vain ends
//! that. A program that waits for long sleeps at once, and costs nothing.

use std::sync::{Mutex, TryLockError};

use ferroce_roce::Time;

use crate::free_cores::FreeCores;

/// Longest time without sleep. A wait that ends within this time is short.
pub(crate) const SPIN_NS: u64 = 50_000;
/// Short waits in a row after which threads look for packets without sleep.
const FIRST: u32 = 8;
/// The same after many looks in vain: they cost less than 50 ns for each event.
const MOST: u32 = 1024;
/// Looks in a row that found an event, after which earlier ones in vain are forgotten.
const MANY: u32 = 64;

/// Processors that must be free beside that of the thread: for the peer on the same machine, and
/// for progress threads. With two processors a thread without sleep delays both.
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

impl EventSpin {
    /// Begins a wait. Returns the time until which the thread shall look for packets without sleep,
    /// `now` if it shall sleep at once.
    pub(crate) fn begin(&self, now: Time) -> Time {
        self.with(now, |state| {
            let spins = state.waits.are_short()
                && state
                    .cores
                    .get_or_insert_with(FreeCores::new)
                    .has_one(now, PEERS);
            match spins {
                true => now.after_nanos(SPIN_NS),
                false => now,
            }
        })
    }

    /// Notes that the thread has found no event without sleep.
    pub(crate) fn note_vain(&self) {
        self.with((), |state| state.waits.note_vain());
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

impl ShortWaits {
    fn are_short(&self) -> bool {
        self.in_a_row >= self.needed
    }

    fn note_sleep(&mut self, waited_ns: u64) {
        self.in_a_row = match waited_ns <= SPIN_NS {
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
                waits.note_sleep(SPIN_NS);
                assert!(!waits.are_short());
            }
            waits.note_sleep(SPIN_NS + 1);
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
    fn many_events_found_make_up_for_a_look_in_vain() {
        let mut waits = waits();
        for _ in 0..20 {
            waits.note_vain();
        }
        assert_eq!(waits.needed, MOST);
        for _ in 0..MANY {
            waits.note_found();
        }
        waits.note_sleep(SPIN_NS + 1);
        for _ in 0..FIRST {
            assert!(!waits.are_short());
            waits.note_sleep(0);
        }
        assert!(waits.are_short());
    }
}
