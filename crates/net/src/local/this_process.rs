//! The process that has mapped the memory of a channel. A forked child does not have the memory.

use std::sync::atomic::{AtomicU32, Ordering};

/// The process that created a value with channels.
#[derive(Copy, Clone, Debug)]
pub(super) struct ThisProcess {
    forks: &'static AtomicU32,
    before: u32,
}

impl ThisProcess {
    /// Returns the calling process. `forks` counts the forks that led to it.
    pub(super) fn new(forks: &'static AtomicU32) -> ThisProcess {
        ThisProcess {
            forks,
            before: forks.load(Ordering::Relaxed),
        }
    }

    /// Returns false in a forked child of the process.
    #[inline]
    pub(super) fn is_current(self) -> bool {
        self.forks.load(Ordering::Relaxed) == self.before
    }
}
