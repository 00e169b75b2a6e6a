//! `rselect`, by `rpoll`.

use core::ffi::c_int;
use std::time::Duration;

use libc::{fd_set, pollfd};

use super::poll::poll;

/// Events that make a descriptor part of each set, as the kernel has it.
const READ: i16 =
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
const EXCEPT: i16 = libc::POLLPRI;

const WANTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const COUNTED: [i16; 3] = [READ, WRITE, EXCEPT];

/// Sets of descriptors: bits in words of 64, as C lays them out.
type Word = u64;
const BITS: usize = 64;

/// # Safety
///
/// Each set is NULL or has room for `count` bits.
pub(crate) unsafe fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
) -> Result<c_int, c_int> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    let sets = sets.map(|set| Set(set.cast::<Word>()));
    let mut fds = Vec::new();
    for fd in 0..count {
        let mut events = 0;
        for (set, wanted) in sets.iter().zip(WANTED) {
            // SAFETY: less than `count`.
            if unsafe { set.has(fd) } {
                events |= wanted;
            }
        }
        if events != 0 {
            fds.push(pollfd {
                fd: fd as c_int,
                events,
                revents: 0,
            });
        }
    }
    poll(&mut fds, timeout)?;
    if fds.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    let mut total = 0;
    for entry in &fds {
        for ((set, wanted), counted) in sets.iter().zip(WANTED).zip(COUNTED) {
            let asked = entry.events & wanted != 0;
            let ready = asked && entry.revents & counted != 0;
            // SAFETY: less than `count`.
            unsafe { set.put(entry.fd as usize, ready) };
            total += c_int::from(ready);
        }
    }
    Ok(total)
}

struct Set(*mut Word);

impl Set {
    unsafe fn has(&self, fd: usize) -> bool {
        // SAFETY: as the caller of `select` promised.
        !self.0.is_null() && unsafe { *self.0.add(fd / BITS) } >> (fd % BITS) & 1 != 0
    }

    unsafe fn put(&self, fd: usize, on: bool) {
        if self.0.is_null() {
            return;
        }
        let bit = 1 << (fd % BITS);
        // SAFETY: as the caller of `select` promised.
        unsafe {
            let word = self.0.add(fd / BITS);
            *word = if on { *word | bit } else { *word & !bit };
        }
    }
}
