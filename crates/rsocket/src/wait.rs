//! Wakeups between threads that wait for the same socket.
//!
//! One thread takes a completion or an event, and another thread may wait for it. Each
//! waiting thread therefore registers an eventfd with the socket. A thread that changes the
//! state of the socket writes to all of them.

use core::cell::RefCell;
use core::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ferroce_device::generation;

use crate::{Result, sys};

/// The eventfd that wakes one thread.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    /// [`generation`] of the process that created the eventfd. A forked child inherits it and creates its own.
    process: u64,
}

thread_local! {
    static MINE: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// Returns the waker of the calling thread.
    pub(crate) fn mine() -> Result<Arc<Waker>> {
        let process = generation();
        let found = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            match &*mine {
                Some(waker) if waker.process == process => Ok(waker.clone()),
                _ => Ok(mine.insert(Arc::new(Waker::new(process)?)).clone()),
            }
        });
        // The thread-local is gone while the thread exits; a destructor may still wait.
        found.unwrap_or_else(|_| Ok(Arc::new(Waker::new(process)?)))
    }

    fn new(process: u64) -> Result<Waker> {
        let event = sys::eventfd()?;
        Ok(Waker { event, process })
    }

    /// Returns the descriptor, which is readable after a wakeup.
    pub(crate) fn fd(&self) -> c_int {
        self.event.as_raw_fd()
    }

    fn wake(&self) {
        let _awake_already = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Clears a wakeup.
    pub(crate) fn clear(&self) {
        let _was_not_woken = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

/// The threads that wait for a socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Arc<Waker>>);

impl Waiters {
    /// Adds a thread.
    pub(crate) fn add(&mut self, waker: &Arc<Waker>) {
        self.0.push(waker.clone());
    }

    /// Undoes one `add`.
    pub(crate) fn remove(&mut self, waker: &Arc<Waker>) {
        if let Some(place) = self.0.iter().position(|w| Arc::ptr_eq(w, waker)) {
            self.0.swap_remove(place);
        }
    }

    /// Wakes all threads.
    pub(crate) fn wake_all(&self) {
        for waker in &self.0 {
            waker.wake();
        }
    }
}
