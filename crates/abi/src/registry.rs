//! The live objects of one kind in a context, by their number.
//!
//! For events and look-ups on control paths: a lock, and a table without large allocations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event_count::EventCount;

/// Objects that begin with a `C`, and the asynchronous events they gave away.
pub(crate) struct Registry<C> {
    entries: Mutex<BTreeMap<u32, Entry<C>>>,
}

struct Entry<C> {
    object: *mut C,
    events: Arc<EventCount>,
    /// About to go: only acknowledgements find it.
    retired: bool,
}

// SAFETY: the registry never follows the pointers.
unsafe impl<C> Send for Registry<C> {}
// SAFETY: as above, and the table is behind a lock.
unsafe impl<C> Sync for Registry<C> {}

impl<C> Default for Registry<C> {
    fn default() -> Self {
        Registry {
            entries: Mutex::default(),
        }
    }
}

impl<C> Registry<C> {
    /// A new object; `events` counts its asynchronous events.
    pub(crate) fn insert(&self, number: u32, object: *mut C, events: Arc<EventCount>) {
        let retired = false;
        let entry = Entry {
            object,
            events,
            retired,
        };
        self.entries().insert(number, entry);
    }

    /// The object is about to go: nobody finds it any more. Waits until the
    /// program has acknowledged all asynchronous events of it.
    pub(crate) fn retire(&self, number: u32) {
        let events = match self.entries().get_mut(&number) {
            None => return,
            Some(entry) => {
                entry.retired = true;
                Arc::clone(&entry.events)
            }
        };
        events.wait();
        self.entries().remove(&number);
    }

    /// The object with this number.
    pub(crate) fn find(&self, number: u32) -> Option<*mut C> {
        let entries = self.entries();
        let entry = entries.get(&number).filter(|entry| !entry.retired)?;
        Some(entry.object)
    }

    /// The object with this number; it has given an asynchronous event away.
    pub(crate) fn deliver(&self, number: u32) -> Option<*mut C> {
        let entries = self.entries();
        let entry = entries.get(&number).filter(|entry| !entry.retired)?;
        entry.events.deliver();
        Some(entry.object)
    }

    /// The program has done with an asynchronous event of this object.
    pub(crate) fn acknowledge(&self, object: *mut C) {
        let entries = self.entries();
        if let Some(entry) = entries.values().find(|entry| entry.object == object) {
            entry.events.acknowledge(1);
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<u32, Entry<C>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retiring_waits_for_acknowledgements_and_hides() {
        let registry = Registry::<u8>::default();
        let mut object = 0u8;
        let pointer: *mut u8 = &mut object;
        registry.insert(7, pointer, Arc::default());
        assert_eq!(registry.find(7), Some(pointer));
        assert_eq!(registry.deliver(7), Some(pointer));
        let registry = &registry;
        #[allow(clippy::disallowed_methods)] // the program's other thread
        std::thread::scope(|scope| {
            let retiring = scope.spawn(|| registry.retire(7));
            registry.acknowledge(&raw mut object);
            retiring.join().unwrap();
        });
        assert_eq!(registry.find(7), None);
        assert_eq!(registry.deliver(7), None);
        registry.retire(7);
    }
}
