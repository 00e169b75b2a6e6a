//! Events as file descriptors that `poll`, `select` and `epoll` understand.
//!
//! A channel is a queue of numbers and a counting descriptor that says how many
//! there are: reading blocks, or does not if the program made the descriptor
//! non-blocking, as it would with the real thing. What a number means is the
//! reader's business. What nobody has read can be taken back.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard};

use crate::counter::Counter;

/// A queue of numbers with a descriptor.
#[derive(Debug)]
pub struct Channel {
    count: Counter,
    records: Mutex<VecDeque<u64>>,
}

impl Channel {
    /// An empty channel. Its descriptor is closed on exec.
    pub fn new() -> io::Result<Channel> {
        Ok(Channel {
            count: Counter::new()?,
            records: Mutex::default(),
        })
    }

    /// The end to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.count.as_fd()
    }

    /// Takes the oldest record; waits for one unless the descriptor is non-blocking.
    pub fn take(&self) -> io::Result<u64> {
        self.take_with(|record| record)
    }

    /// As [`Channel::take`], and looks at the record before [`Channel::purge`]
    /// can be called by anybody who waits for it.
    pub fn take_with<T>(&self, look: impl FnOnce(u64) -> T) -> io::Result<T> {
        loop {
            self.count.take()?;
            let mut records = self.records();
            // Empty if the record was purged after its count was read.
            if let Some(record) = records.pop_front() {
                return Ok(look(record));
            }
        }
    }

    /// Takes back all records that equal `value` and that nobody has taken.
    pub fn purge(&self, value: u64) {
        let mut records = self.records();
        let before = records.len();
        records.retain(|&record| record != value);
        for _ in records.len()..before {
            self.count.take_back();
        }
    }

    /// Adds a record.
    pub(crate) fn put(&self, value: u64) {
        let mut records = self.records();
        records.push_back(value);
        self.count.add();
    }

    fn records(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.records
            .lock()
            .expect("no code panics while it holds a channel")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    fn readable(channel: &Channel) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn records_come_in_order_and_the_descriptor_says_when() {
        let channel = Channel::new().unwrap();
        assert!(!readable(&channel));
        channel.put(7);
        channel.put(8);
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

    #[test]
    fn what_is_purged_never_was() {
        for flags in [OFlags::empty(), OFlags::NONBLOCK] {
            let channel = Channel::new().unwrap();
            fcntl_setfl(channel.fd(), flags).unwrap();
            channel.put(7);
            channel.put(8);
            channel.put(7);
            channel.purge(7);
            assert_eq!(channel.take().unwrap(), 8);
            assert!(!readable(&channel));
            channel.put(8);
            channel.purge(9);
            channel.purge(8);
            assert!(!readable(&channel));
        }
    }

    #[test]
    fn many_events_wait() {
        let channel = Channel::new().unwrap();
        for record in 0..100_000 {
            channel.put(record);
        }
        for record in 0..100_000 {
            assert_eq!(channel.take().unwrap(), record);
        }
    }
}
