//! Events as file descriptors that `poll`, `select` and `epoll` understand.
//!
//! A channel is a pipe of records of eight bytes: reading blocks, or does not
//! if the program made the descriptor non-blocking, as it would with the real
//! thing. What a record means is the reader's business.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

/// One record.
type Record = [u8; 8];

/// A queue of numbers with a descriptor.
#[derive(Debug)]
pub struct Channel {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Channel {
    /// An empty channel. Its descriptors are closed on exec.
    pub fn new() -> io::Result<Channel> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&writer, OFlags::NONBLOCK)?;
        Ok(Channel { reader, writer })
    }

    /// The end to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Takes the oldest record; waits for one unless the descriptor is non-blocking.
    pub fn take(&self) -> io::Result<u64> {
        let mut record = Record::default();
        match rustix::io::read(&self.reader, &mut record)? {
            8 => Ok(u64::from_ne_bytes(record)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Adds a record; false if thousands wait already, which nobody reads.
    pub(crate) fn put(&self, value: u64) -> bool {
        rustix::io::write(&self.writer, &value.to_ne_bytes()) == Ok(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(channel: &Channel) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn records_come_in_order_and_the_descriptor_says_when() {
        let channel = Channel::new().unwrap();
        assert!(!readable(&channel));
        assert!(channel.put(7));
        assert!(channel.put(8));
        assert!(readable(&channel));
        assert_eq!(channel.take().unwrap(), 7);
        assert_eq!(channel.take().unwrap(), 8);
        assert!(!readable(&channel));
    }

    #[test]
    fn a_reader_that_does_not_want_to_wait_need_not() {
        let channel = Channel::new().unwrap();
        fcntl_setfl(channel.fd(), OFlags::NONBLOCK).unwrap();
        assert_eq!(
            channel.take().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }
}
