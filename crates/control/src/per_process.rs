//! Static values that a forked child does not share with its parent.
//!
//! At a fork, other threads of the parent may hold locks, and they do not exist in the child.
//! A child that waits for such a lock waits forever. So the child has a value of its own.

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::generation::generation;

/// A value of each process, created by the first use. Values are never freed: a process has
/// one, and copies of those of its ancestors.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    current: AtomicPtr<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T: 'static> {
    /// [`generation`] of the process.
    process: u64,
    value: T,
    /// Value of the parent. It keeps the memory reachable, for leak checkers.
    _parent: Option<&'static Entry<T>>,
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    /// Returns a container without a value.
    #[allow(clippy::new_without_default)] // only statics use it
    pub const fn new() -> PerProcess<T> {
        PerProcess {
            current: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Returns the value of this process.
    pub fn get(&self) -> &'static T {
        let process = generation();
        let found = self.current.load(Ordering::Acquire);
        // SAFETY: the pointer is null or comes from `Box::into_raw` below. Entries are shared
        // only, and never freed once they are here.
        let parent = unsafe { found.as_ref::<'static>() };
        if let Some(entry) = parent
            && entry.process == process
        {
            return &entry.value;
        }
        let new = Box::into_raw(Box::new(Entry {
            process,
            value: T::default(),
            _parent: parent,
        }));
        let (set, unset) = (Ordering::AcqRel, Ordering::Acquire);
        match self.current.compare_exchange(found, new, set, unset) {
            // SAFETY: as above.
            Ok(_) => unsafe { &(*new).value },
            // Another thread of this process was first.
            Err(first) => {
                // SAFETY: `new` is from `Box::into_raw`, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: as above; it is not null, because a value never becomes null again.
                unsafe { &(*first).value }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn value_is_the_same_for_all_threads() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        let add = || *VALUE.get().lock().unwrap() += 1;
        #[allow(clippy::disallowed_methods, reason = "threads are the test")]
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(add);
            }
        });
        assert_eq!(*VALUE.get().lock().unwrap(), 8);
    }

    #[test]
    fn child_does_not_wait_for_a_lock_of_its_parent() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        let held = VALUE.get().lock().unwrap();
        // SAFETY: the child takes a lock, and ends without running other code of the test.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child if it hangs, and at once if it does not.
            unsafe {
                libc::alarm(10);
                let value = *VALUE.get().lock().unwrap_or_else(|_| libc::_exit(1));
                libc::_exit(7 + i32::from(value != 0));
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child of this process.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        drop(held);
        assert_eq!((waited, status), (child, 7 << 8), "{status:#x}");
    }
}
