//! The number of delivered and acknowledged events of an object.
//!
//! Destroying an object waits until all its events are acknowledged: until then the program
//! may use the object because of one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts the events of one kind of one object.
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    counts: Mutex<Counts>,
    all_acknowledged: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    delivered: u64,
    acknowledged: u64,
    /// Number of threads in [`EventCount::wait`]: to notify none would cost a system call.
    waiting: u32,
}

impl EventCount {
    /// Counts an event that the program takes.
    pub(crate) fn deliver(&self) {
        self.counts().delivered += 1;
    }

    /// Counts acknowledged events.
    pub(crate) fn acknowledge(&self, count: u32) {
        let mut counts = self.counts();
        counts.acknowledged += u64::from(count);
        if counts.waiting > 0 && counts.acknowledged >= counts.delivered {
            self.all_acknowledged.notify_all();
        }
    }

    /// Waits until all events are acknowledged.
    pub(crate) fn wait(&self) {
        let unfinished = |counts: &mut Counts| counts.acknowledged < counts.delivered;
        let mut counts = self.counts();
        counts.waiting += 1;
        let counts = self.all_acknowledged.wait_while(counts, unfinished);
        counts.unwrap_or_else(PoisonError::into_inner).waiting -= 1;
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_after_the_last_acknowledgement() {
        let events = EventCount::default();
        events.wait();
        events.deliver();
        events.deliver();
        events.acknowledge(1);
        #[allow(clippy::disallowed_methods)] // a second thread of the program
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| events.wait());
            events.acknowledge(1);
            waiting.join().unwrap();
        });
    }
}
