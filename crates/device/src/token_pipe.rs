//! A pipe of tokens, whose read end is the descriptor of an event queue.
//!
//! The kernel's event files report `POLLIN` and nothing else. An eventfd can always be
//! written to and reports `POLLOUT` all the time, so a program that polls for both would
//! spin. The read end of a pipe reports `POLLIN` only.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Capacity of the pipe: the smallest that the kernel grants. A user's pipes share a
/// quota of pages, 16384 by default.
const CAPACITY: usize = 4096;

/// Bytes written at once, all or none: no more than `PIPE_BUF`.
const TOKENS: [u8; 256] = [0; 256];

/// A pipe that holds tokens of one byte. [`TokenPipe::wait`] takes one. The end that
/// programs poll is readable while the pipe holds one.
#[derive(Debug)]
pub(crate) struct TokenPipe {
    /// The end that the program polls, and may make non-blocking.
    program: OwnedFd,
    /// The same pipe opened a second time, for reading and writing, never blocking. A
    /// pipe with a reader raises no SIGPIPE, even if the program closes its end.
    ours: OwnedFd,
}

impl TokenPipe {
    /// Creates an empty pipe. Its descriptors are closed on exec.
    pub(crate) fn new() -> io::Result<TokenPipe> {
        let (program, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let _smaller_if_allowed = fcntl_setpipe_size(&writer, CAPACITY);
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let ours = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(TokenPipe { program, ours })
    }

    /// Writes up to `wanted` tokens. Returns the number that found room.
    pub(crate) fn put(&self, wanted: usize) -> usize {
        let mut put = 0;
        while put < wanted {
            let some = &TOKENS[..TOKENS.len().min(wanted - put)];
            match rustix::io::write(&self.ours, some) {
                Ok(written) => put += written,
                Err(Errno::INTR) => {}
                Err(_full) => break,
            }
        }
        put
    }

    /// Takes a token. Waits for one, unless the program made its end non-blocking.
    pub(crate) fn wait(&self) -> io::Result<()> {
        rustix::io::read(&self.program, &mut [0])?;
        Ok(())
    }

    /// Takes a token without waiting. Returns false if there is none.
    pub(crate) fn take(&self) -> bool {
        matches!(rustix::io::read(&self.ours, &mut [0]), Ok(1))
    }
}

impl AsFd for TokenPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_end_of_the_program_raises_no_sigpipe() {
        let pipe = TokenPipe::new().unwrap();
        drop(pipe.program);
        assert_eq!(rustix::io::write(&pipe.ours, &TOKENS), Ok(TOKENS.len()));
    }
}
