//! The timer queue of an engine, with deadlines that are cheap to postpone.
//!
//! Every acknowledgement postpones a deadline, and the queue does not follow. It holds at
//! most one entry per queue pair, at or before the deadline. When an entry expires early,
//! the queue pair arms its timer again.

use std::collections::BTreeSet;

use crate::time::{Deadline, Time};

/// The timer queue.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(Time, u32)>,
    /// The time of the first entry. Each turn asks for it several times.
    first: Deadline,
}

/// The time of a queue pair's entry in the timer queue.
#[derive(Debug, Default)]
pub(crate) struct TimerSlot {
    queued: Deadline,
}

impl Timers {
    /// Makes sure that the entry of `qpn` expires no later than `deadline`.
    #[inline]
    pub(crate) fn arm(&mut self, slot: &mut TimerSlot, qpn: u32, deadline: Time) {
        if slot.queued.get().is_none_or(|queued| queued > deadline) {
            self.queue(slot, qpn, deadline);
        }
    }

    /// Puts an entry of `qpn` into the queue, in place of a later one.
    #[inline(never)]
    fn queue(&mut self, slot: &mut TimerSlot, qpn: u32, deadline: Time) {
        if let Some(queued) = slot.queued.get() {
            self.queue.remove(&(queued, qpn));
        }
        slot.queued = Deadline::at(deadline);
        self.queue.insert((deadline, qpn));
        self.note_first();
    }

    /// Returns the time of the first entry.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        self.first.get()
    }

    /// Removes and returns the first entry if it has expired.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, u32)> {
        if self.next()? > now {
            return None;
        }
        let popped = self.queue.pop_first();
        self.note_first();
        popped
    }

    fn note_first(&mut self) {
        let first = self.queue.first();
        self.first = first.map_or(Deadline::NONE, |&(time, _)| Deadline::at(time));
    }
}

impl TimerSlot {
    /// Clears the slot and returns true if the expired entry belongs to this queue pair. An
    /// entry of an earlier queue pair with the same number has another time.
    pub(crate) fn came_up(&mut self, time: Time) -> bool {
        let live = self.queued == Deadline::at(time);
        if live {
            self.queued = Deadline::NONE;
        }
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postponed_deadline_adds_no_entry_and_earlier_deadline_replaces_it() {
        let (mut timers, mut slot) = (Timers::default(), TimerSlot::default());
        let at = Time::from_nanos;
        timers.arm(&mut slot, 1, at(100));
        for later in 101..200 {
            timers.arm(&mut slot, 1, at(later));
        }
        assert_eq!(timers.queue.len(), 1);
        timers.arm(&mut slot, 1, at(50));
        assert_eq!(timers.queue.len(), 1);
        assert_eq!(timers.next(), Some(at(50)));
        assert_eq!(timers.pop_due(at(49)), None);
        let (time, qpn) = timers.pop_due(at(60)).unwrap();
        assert_eq!(qpn, 1);
        assert!(slot.came_up(time));
        assert_eq!(timers.next(), None);
    }
}
