//! Waiting for descriptors. If an rsocket is among them, `rpoll` waits for all.

use core::ffi::c_int;
use core::ptr;

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::inside::{self, go};
use crate::map;
use crate::next::{errno, fail, real, set_errno};
use crate::rsockets::rpoll;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's arguments, unchanged.
    match unsafe { translated(fds, count) } {
        // SAFETY: the program's arguments, unchanged.
        None => unsafe { real::poll(fds, count, timeout) },
        Some((entries, translated)) => wait(entries, translated, timeout),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's arguments, unchanged.
    unsafe {
        match translated(fds, count) {
            None => real::ppoll(fds, count, timeout, mask),
            Some((entries, translated)) => {
                let timeout = milliseconds(timeout);
                masked(mask, || wait(entries, translated, timeout))
            }
        }
    }
}

unsafe extern "C" {
    /// Ends a program that would write beyond its buffer.
    fn __chk_fail() -> !;
}

/// `poll` for programs that are compiled with checks of buffer sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    // SAFETY: the program's arguments, after the check.
    unsafe {
        if room / size_of::<pollfd>() < count as usize {
            __chk_fail();
        }
        poll(fds, count, timeout)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the program's arguments, after the check.
    unsafe {
        if room / size_of::<pollfd>() < count as usize {
            __chk_fail();
        }
        ppoll(fds, count, timeout, mask)
    }
}

/// Returns the entries, and a copy with rsockets in place of descriptors; `None` if there
/// are no rsockets.
unsafe fn translated<'a>(
    fds: *mut pollfd,
    count: nfds_t,
) -> Option<(&'a mut [pollfd], Vec<pollfd>)> {
    if fds.is_null() || count == 0 || inside::is_inside() {
        return None;
    }
    // SAFETY: the program's array has `count` entries.
    let entries = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    if !entries.iter().any(|entry| map::rsocket(entry.fd).is_some()) {
        return None;
    }
    let mut translated = entries.to_vec();
    for entry in &mut translated {
        entry.fd = map::rsocket(entry.fd).unwrap_or(entry.fd);
    }
    Some((entries, translated))
}

fn wait(entries: &mut [pollfd], mut translated: Vec<pollfd>, timeout: c_int) -> c_int {
    let count = translated.len() as nfds_t;
    // SAFETY: the vector has `count` entries.
    let result = go(|| unsafe { rpoll(translated.as_mut_ptr(), count, timeout) });
    if result >= 0 {
        for (entry, translated) in entries.iter_mut().zip(translated) {
            entry.revents = translated.revents;
        }
    }
    result
}

/// Calls a function with another signal mask.
pub(crate) unsafe fn masked(mask: *const sigset_t, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the program's mask is live or NULL, and `before` has room for a mask.
    unsafe {
        if mask.is_null() {
            return call();
        }
        let mut before: sigset_t = core::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, &mut before);
        let result = call();
        let why = errno();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        set_errno(why);
        result
    }
}

/// Converts a timeout to milliseconds, rounded up so that no wait ends early; -1 for none.
unsafe fn milliseconds(time: *const timespec) -> c_int {
    if time.is_null() {
        return -1;
    }
    // SAFETY: the program's time is live.
    let time = unsafe { *time };
    let nanoseconds = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let milliseconds = (nanoseconds + 999_999) / 1_000_000;
    milliseconds.clamp(0, c_int::MAX.into()) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [read, write, except].map(|set| Set(set.cast()));
    // SAFETY: the program's arguments, unchanged.
    unsafe {
        let Some(entries) = rsockets_among(count, &sets) else {
            return real::select(count, read, write, except, timeout);
        };
        let time = match timeout.is_null() {
            true => -1,
            false => milliseconds(&timespec {
                tv_sec: (*timeout).tv_sec,
                tv_nsec: (*timeout).tv_usec * 1000,
            }),
        };
        select_by_poll(entries, &sets, time)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except].map(|set| Set(set.cast()));
    // SAFETY: the program's arguments, unchanged.
    unsafe {
        let Some(entries) = rsockets_among(count, &sets) else {
            return real::pselect(count, read, write, except, timeout, mask);
        };
        let time = milliseconds(timeout);
        masked(mask, || select_by_poll(entries, &sets, time))
    }
}

/// Poll events that each set requests.
const WANTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// Poll events that put a descriptor into each set.
const COUNTED: [i16; 3] = [
    libc::POLLIN | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLERR,
    libc::POLLPRI,
];

/// A set of descriptors: one bit each, in words of 64 bits.
struct Set(*mut u64);

impl Set {
    unsafe fn has(&self, fd: c_int) -> bool {
        // SAFETY: the caller passes a descriptor within the set.
        !self.0.is_null() && unsafe { *self.0.add(fd as usize / 64) } >> (fd % 64) & 1 != 0
    }

    unsafe fn put(&self, fd: c_int, on: bool) {
        if !self.0.is_null() {
            // SAFETY: the caller passes a descriptor within the set.
            let word = unsafe { &mut *self.0.add(fd as usize / 64) };
            let bit = 1_u64 << (fd % 64);
            *word = if on { *word | bit } else { *word & !bit };
        }
    }
}

/// Converts the sets to poll entries; `None` if they contain no rsockets.
unsafe fn rsockets_among(count: c_int, sets: &[Set; 3]) -> Option<Vec<pollfd>> {
    if inside::is_inside() {
        return None;
    }
    let mut entries = Vec::new();
    let mut any = false;
    for fd in 0..count {
        let mut events = 0;
        for (set, wanted) in sets.iter().zip(WANTED) {
            // SAFETY: `fd` is below the program's count.
            if unsafe { set.has(fd) } {
                events |= wanted;
            }
        }
        if events != 0 {
            any |= map::rsocket(fd).is_some();
            entries.push(pollfd {
                fd,
                events,
                revents: 0,
            });
        }
    }
    any.then_some(entries)
}

unsafe fn select_by_poll(mut entries: Vec<pollfd>, sets: &[Set; 3], timeout: c_int) -> c_int {
    // SAFETY: the vector has this many entries.
    let waited = unsafe { poll(entries.as_mut_ptr(), entries.len() as nfds_t, timeout) };
    if waited < 0 {
        return waited;
    }
    if entries
        .iter()
        .any(|entry| entry.revents & libc::POLLNVAL != 0)
    {
        return fail(libc::EBADF);
    }
    let mut total = 0;
    for entry in entries {
        for ((set, wanted), counted) in sets.iter().zip(WANTED).zip(COUNTED) {
            let ready = entry.events & wanted != 0 && entry.revents & counted != 0;
            // SAFETY: the descriptor came from the sets.
            unsafe { set.put(entry.fd, ready) };
            total += c_int::from(ready);
        }
    }
    total
}
