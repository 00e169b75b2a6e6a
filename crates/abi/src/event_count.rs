//! Events of an object: how many the program got, how many it acknowledged.
//!
//! An object that has given events away may only go when all of them have been
//! acknowledged: until then the program may still look at it because of one.

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
}

impl EventCount {
    /// The program gets an event.
    pub(crate) fn deliver(&self) {
        self.counts().delivered += 1;
    }

    /// The program has done with `count` events.
    pub(crate) fn acknowledge(&self, count: u32) {
        let mut counts = self.counts();
        counts.acknowledged += u64::from(count);
        if counts.acknowledged >= counts.delivered {
            self.all_acknowledged.notify_all();
        }
    }

    /// Waits until the program has done with all events.
    pub(crate) fn wait(&self) {
        let unfinished = |counts: &mut Counts| counts.acknowledged < counts.delivered;
        let counts = self.all_acknowledged.wait_while(self.counts(), unfinished);
        drop(counts);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_waits_for_all_acknowledgements() {
        let events = EventCount::default();
        events.wait();
        events.deliver();
        events.deliver();
        events.acknowledge(1);
        #[allow(clippy::disallowed_methods)] // the program's other thread
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| events.wait());
            events.acknowledge(1);
            waiting.join().unwrap();
        });
    }
}
