//! Turns of threads that wait: for an event, or for a WRITE in memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_roce::Time;
use ferroce_shard::{Caller, STANDBY_NS};

use super::Shard;
use crate::awaited_writes::AWAIT_NS;
use crate::channel::Channel;
use crate::clock;
use crate::progress::SHRINK_NS;
use crate::slowness::scaled;

impl Shard {
    /// Notes that a poll takes completions. For a program that awaits a WRITE in memory
    /// afterwards, looks for that WRITE first.
    #[inline]
    pub(crate) fn note_completion(&self, is_only: bool) {
        self.awaited.note_completion(clock::now);
        if is_only && self.awaited.are_expected() {
            self.await_write();
        }
        self.polls.note_completion();
    }

    fn await_write(&self) {
        let mut end = clock::now().after_nanos(self.awaited.limit_ns());
        let found = loop {
            if self.poll(true) > 0 {
                end = end.max(clock::now().after_nanos(AWAIT_NS));
            }
            // The progress thread may have received it.
            if self.awaited.have_arrived() {
                break true;
            }
            if clock::now() >= end || self.is_stopped() {
                break false;
            }
        };
        self.awaited.note_search(found);
        if !found {
            // The program reads memory now.
            self.stop_relying_on_polls();
        }
    }

    /// Returns true if polls that take completions look for WRITEs.
    pub(crate) fn searches_for_writes(&self) -> bool {
        self.awaited.searches()
    }

    /// Notes that the current thread will sleep on the sockets and call [`Shard::drive`].
    /// Returns false if another thread does so, or if the shard has stopped.
    pub(crate) fn begin_driving(&self) -> bool {
        let begins = !self.is_stopped() && !self.driven.swap(true, Ordering::AcqRel);
        if begins {
            self.drives.fetch_add(1, Ordering::Relaxed);
        }
        begins
    }

    /// Does a turn for a thread that waits for an event.
    pub(crate) fn drive(&self) {
        let now = clock::now();
        if !self.is_stopped()
            && let Some(core) = self.try_lock()
        {
            let (core, ..) = self.turn(core, now, Caller::ExpectsPost);
            self.wake_for_deadline(&core, now);
        }
    }

    /// Leaves events of a channel without tokens, for a thread that calls [`Shard::end_driving`] next. Returns
    /// false if no thread would supply them later.
    pub(crate) fn keeps_late_events(&self, channel: &Arc<Channel>) -> bool {
        !self.is_taken_over()
            && self.late_events.store(channel, clock::now())
            // After the store: `Shard::stop` supplies the tokens of events that are stored before.
            && !self.is_stopped()
    }

    /// Ends [`Shard::begin_driving`]. The program may poll now, as after an event, or do
    /// something else: the progress thread takes over after a standby.
    pub(crate) fn end_driving(&self) {
        let now = clock::now();
        self.polls.expect(now);
        self.driven.store(false, Ordering::Release);
        let standby = now.after_nanos(scaled(STANDBY_NS)).as_nanos();
        if self.sleeps_until.load(Ordering::Relaxed) > standby {
            self.wake();
        }
    }

    /// Before a thread of the program sleeps on the sockets: wakes the progress thread if that would sleep although
    /// channels have memory to return.
    pub(crate) fn watch_rings(&self) {
        if self.doorbell.has_extended_ring() {
            let latest = clock::now().after_nanos(SHRINK_NS).as_nanos();
            // One wakeup: the thread stores its next time when it sleeps again.
            if self.sleeps_until.fetch_min(latest, Ordering::Relaxed) > latest {
                self.wake();
            }
        }
    }

    /// While a thread of the program sleeps on the sockets, returns a number that is another
    /// one each time.
    pub(crate) fn driven(&self) -> Option<u32> {
        let driven = self.driven.load(Ordering::Acquire);
        driven.then(|| self.drives.load(Ordering::Relaxed))
    }

    /// Returns the time of the next turn while another thread receives, and records that the
    /// progress thread sleeps until then, at most until `standby`.
    pub(crate) fn sleep_while_driven(&self, now: Time, standby: Option<Time>) -> Option<Time> {
        let core = self.lock();
        let due = core.next_deadline(now);
        self.set_sleep(due.into_iter().chain(standby).min());
        due
    }
}
