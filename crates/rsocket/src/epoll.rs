//! `epoll` for rsockets and other descriptors, by [`poll`].
//!
//! Sets are always level-triggered. The descriptor of a set is only its name.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::pollfd;
use rustix::event::PollFlags;

use crate::poll::poll;
use crate::stream::Prepared;
use crate::{Errno, Result, sys};

/// A set of descriptors.
#[derive(Debug)]
pub struct Epoll {
    name: OwnedFd,
    entries: Mutex<BTreeMap<RawFd, Interest>>,
}

/// Events of a descriptor, as in `epoll_event`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Interest {
    /// EPOLLIN, EPOLLOUT and the like.
    pub events: u32,
    /// The program's value.
    pub data: u64,
}

/// Events that have the same numbers in `poll`.
const COMMON: u32 = 0x20ff;

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<Epoll> {
        Ok(Epoll {
            name: sys::eventfd()?,
            entries: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RawFd, Interest>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    ///
    /// EEXIST if it is in the set; EBADF if it is not open; EINVAL for the set itself.
    pub fn add(&self, fd: RawFd, interest: Interest) -> Result<()> {
        self.check_other(fd)?;
        let mut entries = self.lock();
        if entries.contains_key(&fd) {
            return Err(Errno::EXIST);
        }
        let mut probe = [sys::pollfd(fd, PollFlags::empty())];
        sys::poll(&mut probe, Some(Duration::ZERO))?;
        if fd < 0 || probe[0].revents & libc::POLLNVAL != 0 {
            return Err(Errno::BADF);
        }
        entries.insert(fd, interest);
        Ok(())
    }

    /// Changes the events of a descriptor.
    ///
    /// # Errors
    ///
    /// ENOENT if it is not in the set; EINVAL for the set itself.
    pub fn modify(&self, fd: RawFd, interest: Interest) -> Result<()> {
        self.check_other(fd)?;
        *self.lock().get_mut(&fd).ok_or(Errno::NOENT)? = interest;
        Ok(())
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    ///
    /// ENOENT if it is not in the set; EINVAL for the set itself.
    pub fn remove(&self, fd: RawFd) -> Result<()> {
        self.check_other(fd)?;
        self.lock().remove(&fd).map(|_| ()).ok_or(Errno::NOENT)
    }

    fn check_other(&self, fd: RawFd) -> Result<()> {
        match fd == self.as_raw_fd() {
            true => Err(Errno::INVAL),
            false => Ok(()),
        }
    }

    /// Waits for events and returns up to `max` of them.
    ///
    /// # Errors
    ///
    /// EINTR.
    pub fn wait(&self, max: usize, timeout: Option<Duration>) -> Result<Vec<Interest>> {
        let mut fds = self.descriptors();
        poll(&mut fds, timeout)?;
        let mut entries = self.lock();
        // A descriptor that was closed is no longer in the set.
        for closed in fds.iter().filter(|fd| fd.revents & libc::POLLNVAL != 0) {
            entries.remove(&closed.fd);
        }
        let ready = fds.iter().filter(|fd| fd.revents & !libc::POLLNVAL != 0);
        let found = ready.filter_map(|ready| {
            let entry = entries.get_mut(&ready.fd)?;
            if entry.events & libc::EPOLLONESHOT as u32 != 0 {
                entry.events = 0;
            }
            Some(Interest {
                events: ready.revents as u16 as u32,
                data: entry.data,
            })
        });
        Ok(found.take(max).collect())
    }

    fn descriptors(&self) -> Vec<pollfd> {
        let entries = self.lock();
        let armed = entries.iter().filter(|(_, entry)| entry.events != 0);
        armed
            .map(|(fd, entry)| pollfd {
                fd: *fd,
                events: (entry.events & COMMON) as i16,
                revents: 0,
            })
            .collect()
    }

    /// Returns no events: a set in a set is never ready.
    pub(crate) fn poll(&self, _wanted: PollFlags) -> PollFlags {
        PollFlags::empty()
    }

    pub(crate) fn prepare(&self, _wanted: PollFlags) -> Prepared {
        Prepared::Sleep([-1, -1])
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.name.as_raw_fd()
    }
}
