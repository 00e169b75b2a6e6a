//! A descriptor that counts what waits in a queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd, readable while its count is not zero. Whoever reads it waits for its turn,
/// or does not if the program made the descriptor non-blocking.
#[derive(Debug)]
pub struct Counter(OwnedFd);

impl Counter {
    /// It starts at zero. Its descriptor is closed on exec.
    pub fn new() -> io::Result<Counter> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        Ok(Counter(fd))
    }

    /// One more.
    pub fn add(&self) {
        // Fails only if 2^64 wait.
        let _counted = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// One less; waits for it.
    pub fn take(&self) -> io::Result<()> {
        rustix::io::read(&self.0, &mut [0; 8])?;
        Ok(())
    }

    /// One less, without waiting, whatever the program made of the descriptor; a reader
    /// may have been faster.
    pub fn take_back(&self) {
        let mut count = 0u64;
        let piece = libc::iovec {
            iov_base: (&raw mut count).cast(),
            iov_len: 8,
        };
        // SAFETY: `piece` describes eight bytes of ours.
        unsafe {
            libc::preadv2(
                self.0.as_raw_fd(),
                &raw const piece,
                1,
                -1,
                libc::RWF_NOWAIT,
            );
        }
    }
}

impl AsFd for Counter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
