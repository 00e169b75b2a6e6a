//! `select` for rsockets and other descriptors, by [`poll`].

use std::os::fd::RawFd;
use std::time::Duration;

use libc::pollfd;

use crate::poll::poll;
use crate::{Errno, Result};

/// Poll events that put a descriptor into each set, as in the kernel.
const READ: i16 =
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
const EXCEPT: i16 = libc::POLLPRI;

const WANTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const COUNTED: [i16; 3] = [READ, WRITE, EXCEPT];

/// A set of descriptors as the words of an `fd_set`: one bit per descriptor.
pub type Set<'a> = Option<&'a mut [u64]>;

/// Number of descriptors in a word of a set.
pub const BITS: usize = 64;

/// Waits until one of the first `count` descriptors in the sets is ready for reading, for
/// writing or has an exceptional condition. Leaves those that are in the sets, and returns
/// their number.
///
/// # Errors
///
/// EBADF if a descriptor is not open; EINTR.
pub fn select(count: usize, sets: &mut [Set<'_>; 3], timeout: Option<Duration>) -> Result<usize> {
    let mut fds = Vec::new();
    for fd in 0..count {
        let mut events = 0;
        for (set, wanted) in sets.iter().zip(WANTED) {
            if has(set, fd) {
                events |= wanted;
            }
        }
        if events != 0 {
            fds.push(pollfd {
                fd: fd as RawFd,
                events,
                revents: 0,
            });
        }
    }
    poll(&mut fds, timeout)?;
    if fds.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(Errno::BADF);
    }
    let mut total = 0;
    for entry in &fds {
        for ((set, wanted), counted) in sets.iter_mut().zip(WANTED).zip(COUNTED) {
            let is_wanted = entry.events & wanted != 0;
            let is_ready = is_wanted && entry.revents & counted != 0;
            put(set, entry.fd as usize, is_ready);
            total += usize::from(is_ready);
        }
    }
    Ok(total)
}

fn has(set: &Set<'_>, fd: usize) -> bool {
    let word = set.as_ref().and_then(|words| words.get(fd / BITS));
    word.is_some_and(|word| word >> (fd % BITS) & 1 != 0)
}

fn put(set: &mut Set<'_>, fd: usize, on: bool) {
    let word = set.as_mut().and_then(|words| words.get_mut(fd / BITS));
    if let Some(word) = word {
        let bit = 1 << (fd % BITS);
        *word = if on { *word | bit } else { *word & !bit };
    }
}
