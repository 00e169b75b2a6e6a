//! Deadlines of many queue pairs, cheap to push back.
//!
//! Acknowledgements move a deadline all the time; the queue is not told. It
//! holds at most one entry a queue pair, at or before the true deadline: when
//! it comes up early, the owner says when to look again.

use std::collections::BTreeSet;

use crate::time::{Deadline, Time};

#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(Time, u32)>,
}

/// A queue pair's side: when the queue will look at it.
#[derive(Debug, Default)]
pub(crate) struct TimerSlot {
    queued: Deadline,
}

impl Timers {
    /// Makes sure that `qpn` is looked at no later than `deadline`.
    pub(crate) fn arm(&mut self, slot: &mut TimerSlot, qpn: u32, deadline: Time) {
        if let Some(queued) = slot.queued.get() {
            if queued <= deadline {
                return;
            }
            self.queue.remove(&(queued, qpn));
        }
        slot.queued = Deadline::at(deadline);
        self.queue.insert((deadline, qpn));
    }

    /// When to look next.
    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.first().map(|&(time, _)| time)
    }

    /// The next queue pair whose time has come.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, u32)> {
        if self.next()? > now {
            return None;
        }
        self.queue.pop_first()
    }
}

impl TimerSlot {
    /// Whether the entry that came up is this queue pair's, and not that of one
    /// before it with the same number.
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
    fn pushing_back_costs_no_entry_and_an_earlier_deadline_wins() {
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
