//! `select` for rsockets and other descriptors, by [`poll`].

use core::cell::Cell;
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

/// A set of descriptors as the words of an `fd_set`: one bit per descriptor. Cells, because a
/// C program may pass the same set twice.
pub type Set<'a> = Option<&'a [Cell<u64>]>;

/// Number of descriptors in a word of a set.
pub const BITS: usize = 64;

/// Waits until one of the first `count` descriptors in the sets is ready for reading, for
/// writing or has an exceptional condition. Leaves those that are in the sets, and returns
/// their number.
///
/// # Errors
///
/// EBADF if a descriptor is not open; EINTR.
pub fn select(count: usize, sets: [Set<'_>; 3], timeout: Option<Duration>) -> Result<usize> {
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
        for ((set, wanted), counted) in sets.iter().zip(WANTED).zip(COUNTED) {
            let is_wanted = entry.events & wanted != 0;
            let is_ready = is_wanted && entry.revents & counted != 0;
            put(set, entry.fd as usize, is_ready);
            total += usize::from(is_ready);
        }
    }
    Ok(total)
}

fn has(set: &Set<'_>, fd: usize) -> bool {
    let word = set.and_then(|words| words.get(fd / BITS));
    word.is_some_and(|word| word.get() >> (fd % BITS) & 1 != 0)
}

fn put(set: &Set<'_>, fd: usize, on: bool) {
    if let Some(word) = set.and_then(|words| words.get(fd / BITS)) {
        let (bit, before) = (1 << (fd % BITS), word.get());
        word.set(if on { before | bit } else { before & !bit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_ready_descriptors_stay_in_the_sets() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let fds = [reader.as_raw_fd(), writer.as_raw_fd()].map(|fd| fd as usize);
        let words = [(); 2].map(|()| [const { Cell::new(0) }; 16]);
        let both = |set: &[Cell<u64>]| fds.iter().for_each(|fd| put(&Some(set), *fd, true));
        words.iter().for_each(|set| both(set));
        let sets = [Some(&words[0][..]), Some(&words[1][..]), None];
        assert_eq!(select(1024, sets, Some(Duration::ZERO)), Ok(1));
        assert!(!has(&sets[0], fds[0]) && has(&sets[1], fds[1]));
        rustix::io::write(&writer, b"x").unwrap();
        words.iter().for_each(|set| both(set));
        assert_eq!(select(1024, sets, None), Ok(2));
        assert!(has(&sets[0], fds[0]) && !has(&sets[1], fds[0]));
    }
}
