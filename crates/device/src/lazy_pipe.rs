//! A pipe of tokens that is created when it is needed.
//!
//! `rdma_create_qp` creates a completion channel for each queue of an id, and most programs
//! poll the queues and never look at the channels. A pipe takes 16 us to create and close, an
//! epoll instance 3 us. So the descriptor is an epoll instance, and the pipe is created and
//! added to it before the first event. Like the read end of a pipe, the instance reports
//! `POLLIN` and never `POLLOUT`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::token_pipe::TokenPipe;

/// A pipe that holds tokens, behind a descriptor that exists before the pipe.
#[derive(Debug)]
pub(crate) struct LazyPipe {
    /// The descriptor that the program polls, and may make non-blocking.
    program: OwnedFd,
    pipe: OnceLock<TokenPipe>,
}

impl LazyPipe {
    /// Creates the descriptor, which is closed on exec.
    pub(crate) fn new() -> io::Result<LazyPipe> {
        Ok(LazyPipe {
            program: epoll::create(CreateFlags::CLOEXEC)?,
            pipe: OnceLock::new(),
        })
    }

    /// Returns the pipe. The first call creates it.
    pub(crate) fn pipe(&self) -> io::Result<&TokenPipe> {
        if let Some(pipe) = self.pipe.get() {
            return Ok(pipe);
        }
        let new = TokenPipe::new()?;
        epoll::add(&self.program, &new, EventData::new_u64(0), EventFlags::IN)?;
        if let Err(second) = self.pipe.set(new) {
            // Another thread was first. A forked child may have duplicates of this pipe.
            let _added_above = epoll::delete(&self.program, &second);
        }
        Ok(self.pipe.get().expect("set above or by another thread"))
    }

    /// Writes up to `wanted` tokens. Returns the number that found room.
    pub(crate) fn put(&self, wanted: usize) -> usize {
        if wanted == 0 {
            return 0;
        }
        match self.pipe() {
            Ok(pipe) => pipe.put(wanted),
            Err(error) => {
                tracing::error!("no descriptors for the events of a completion channel: {error}");
                0
            }
        }
    }

    /// Takes a token. Waits for one, unless the program made the descriptor non-blocking.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let pipe = self.pipe()?;
        match rustix::fs::fcntl_getfl(&self.program)?.contains(OFlags::NONBLOCK) {
            true if pipe.take() => Ok(()),
            true => Err(Errno::AGAIN.into()),
            false => pipe.wait(),
        }
    }

    /// Takes a token without waiting. Returns false if there is none.
    pub(crate) fn take(&self) -> bool {
        self.pipe.get().is_some_and(TokenPipe::take)
    }
}

impl AsFd for LazyPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_exists_after_the_first_token() {
        let lazy = LazyPipe::new().unwrap();
        assert_eq!(lazy.put(0), 0);
        assert!(!lazy.take());
        assert!(lazy.pipe.get().is_none());
        assert_eq!(lazy.put(2), 2);
        assert!(lazy.pipe.get().is_some());
        assert!(lazy.take() && lazy.take() && !lazy.take());
    }

    #[test]
    fn program_that_waits_for_edges_learns_of_each_token() {
        let lazy = LazyPipe::new().unwrap();
        let outer = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(&outer, &lazy, EventData::new_u64(1), edges).unwrap();
        for _ in 0..3 {
            assert_eq!(lazy.put(1), 1);
            let mut events = Vec::with_capacity(1);
            let room = rustix::buffer::spare_capacity(&mut events);
            let now = rustix::time::Timespec::default();
            assert_eq!(epoll::wait(&outer, room, Some(&now)), Ok(1));
        }
    }
}
