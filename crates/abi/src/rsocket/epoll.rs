//! `repoll_*`: sets of descriptors that stay, by `rpoll`.
//!
//! Always level-triggered. The set's own descriptor is good for nothing but as its name.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{epoll_event, pollfd};
use rustix::event::PollFlags;

use super::poll::poll;
use super::stream::Prepared;
use super::sys;

#[derive(Debug)]
pub(crate) struct Epoll {
    name: OwnedFd,
    entries: Mutex<BTreeMap<c_int, Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    events: u32,
    data: u64,
}

/// Events that `poll` knows by the same numbers.
const COMMON: u32 = 0x20ff;

impl Epoll {
    pub(crate) fn new() -> Result<Epoll, c_int> {
        Ok(Epoll {
            name: sys::eventfd()?,
            entries: Mutex::default(),
        })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.name.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<c_int, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn control(&self, op: c_int, fd: c_int, event: Wanted) -> Result<(), c_int> {
        if fd == self.fd() {
            return Err(libc::EINVAL);
        }
        let entry = event.map(|(events, data)| Entry { events, data });
        let mut entries = self.lock();
        let known = entries.contains_key(&fd);
        match (op, known) {
            (libc::EPOLL_CTL_ADD, true) => return Err(libc::EEXIST),
            (libc::EPOLL_CTL_ADD, false) => {
                let mut probe = [sys::pollfd(fd, PollFlags::empty())];
                sys::poll(&mut probe, Some(Duration::ZERO))?;
                if fd < 0 || probe[0].revents & libc::POLLNVAL != 0 {
                    return Err(libc::EBADF);
                }
                entries.insert(fd, entry.ok_or(libc::EFAULT)?);
            }
            (libc::EPOLL_CTL_MOD, true) => {
                entries.insert(fd, entry.ok_or(libc::EFAULT)?);
            }
            (libc::EPOLL_CTL_DEL, true) => {
                entries.remove(&fd);
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => return Err(libc::ENOENT),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    /// Waits; how many of the places were filled.
    pub(crate) fn wait(
        &self,
        found: &mut [epoll_event],
        timeout: Option<Duration>,
    ) -> Result<usize, c_int> {
        let mut fds = self.descriptors();
        poll(&mut fds, timeout)?;
        let mut entries = self.lock();
        // What was closed without a word is no longer in the set.
        for gone in fds.iter().filter(|fd| fd.revents & libc::POLLNVAL != 0) {
            entries.remove(&gone.fd);
        }
        let ready = fds.iter().filter(|fd| fd.revents & !libc::POLLNVAL != 0);
        let mut count = 0;
        for (place, ready) in found.iter_mut().zip(ready) {
            let Some(entry) = entries.get_mut(&ready.fd) else {
                continue;
            };
            *place = epoll_event {
                events: ready.revents as u16 as u32,
                u64: entry.data,
            };
            count += 1;
            if entry.events & libc::EPOLLONESHOT as u32 != 0 {
                entry.events = 0;
            }
        }
        Ok(count)
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

    /// A set in a set is never ready.
    pub(crate) fn poll(&self, _wanted: PollFlags) -> PollFlags {
        PollFlags::empty()
    }

    pub(crate) fn prepare(&self, _wanted: PollFlags) -> Prepared {
        Prepared::Sleep([-1, -1])
    }
}

/// Events and data that a program gave, if it did.
pub(crate) type Wanted = Option<(u32, u64)>;
