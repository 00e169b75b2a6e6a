//! Threads that wait for the same socket.
//!
//! A completion or an event is taken by whoever comes first; it may be what somebody else
//! waits for. So each waiting thread leaves a descriptor with the socket, and is woken by
//! it when the state of the socket has changed.

use core::cell::RefCell;
use core::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::sys;

/// A descriptor that wakes one thread.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    /// A child of this process has the descriptor too, and makes one of its own.
    process: rustix::process::Pid,
}

thread_local! {
    static MINE: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// This thread's.
    pub(crate) fn mine() -> Result<Arc<Waker>, c_int> {
        let process = rustix::process::getpid();
        let found = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            match &*mine {
                Some(waker) if waker.process == process => Ok(waker.clone()),
                _ => Ok(mine.insert(Arc::new(Waker::new(process)?)).clone()),
            }
        });
        // A thread that is ending can still wait.
        found.unwrap_or_else(|_| Ok(Arc::new(Waker::new(process)?)))
    }

    fn new(process: rustix::process::Pid) -> Result<Waker, c_int> {
        let event = sys::eventfd()?;
        Ok(Waker { event, process })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.event.as_raw_fd()
    }

    fn wake(&self) {
        let _awake_already = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Forgets that it was woken.
    pub(crate) fn clear(&self) {
        let _was_not_woken = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

/// Who waits for a socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Arc<Waker>>);

impl Waiters {
    pub(crate) fn add(&mut self, waker: &Arc<Waker>) {
        self.0.push(waker.clone());
    }

    /// Takes back one `add`.
    pub(crate) fn remove(&mut self, waker: &Arc<Waker>) {
        if let Some(place) = self.0.iter().position(|w| Arc::ptr_eq(w, waker)) {
            self.0.swap_remove(place);
        }
    }

    pub(crate) fn wake_all(&self) {
        for waker in &self.0 {
            waker.wake();
        }
    }
}
