//! The live objects of one type in a context, by number. Only control paths use it, so a
//! locked tree is fast enough.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event_count::EventCount;

/// Objects of type `C` and the counts of their asynchronous events.
pub(crate) struct Registry<C> {
    entries: Mutex<BTreeMap<u32, Entry<C>>>,
}

struct Entry<C> {
    object: *mut C,
    events: Arc<EventCount>,
    /// True while the object is being destroyed: only acknowledgements find it.
    retired: bool,
}

// SAFETY: the registry does not dereference the pointers.
unsafe impl<C> Send for Registry<C> {}
// SAFETY: the registry does not dereference the pointers, and the table is locked.
unsafe impl<C> Sync for Registry<C> {}

impl<C> Default for Registry<C> {
    fn default() -> Self {
        Registry {
            entries: Mutex::default(),
        }
    }
}

impl<C> Registry<C> {
    /// Adds an object; `events` counts its asynchronous events.
    pub(crate) fn insert(&self, number: u32, object: *mut C, events: Arc<EventCount>) {
        let retired = false;
        let entry = Entry {
            object,
            events,
            retired,
        };
        self.entries().insert(number, entry);
    }

    /// Removes an object: no event names it any more. Waits until the program has
    /// acknowledged all its asynchronous events.
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

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    /// Returns the object with this number.
    pub(crate) fn find(&self, number: u32) -> Option<*mut C> {
        let entries = self.entries();
        let entry = entries.get(&number).filter(|entry| !entry.retired)?;
        Some(entry.object)
    }

    /// Returns the object with this number, and counts an asynchronous event of it.
    pub(crate) fn deliver(&self, number: u32) -> Option<*mut C> {
        let entries = self.entries();
        let entry = entries.get(&number).filter(|entry| !entry.retired)?;
        entry.events.deliver();
        Some(entry.object)
    }

    /// Counts an acknowledged asynchronous event.
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
    fn retired_object_is_hidden_and_waits_for_acknowledgements() {
        let registry = Registry::<u8>::default();
        let mut object = 0u8;
        let pointer: *mut u8 = &mut object;
        registry.insert(7, pointer, Arc::default());
        assert_eq!(registry.find(7), Some(pointer));
        assert_eq!(registry.deliver(7), Some(pointer));
        let registry = &registry;
        #[allow(clippy::disallowed_methods)] // a second thread of the program
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
