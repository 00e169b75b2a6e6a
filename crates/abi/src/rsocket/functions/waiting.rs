//! Waiting for descriptors.

use core::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use ferroce_rsocket::{BITS, Epoll, Errno, Interest, Result, Set, Socket, poll, select, socket};
use libc::{epoll_event, fd_set, nfds_t, pollfd, timeval};

use super::{find, number, status};
use crate::arguments::slice_mut;
use crate::errno::minus_one;

/// Returns a timeout in milliseconds; a negative one means no timeout.
fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Returns the number of descriptors that the process may have.
fn max_descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(c_int::MAX as u64)
}

/// `rpoll`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    // As in the kernel: more entries than descriptors are an error.
    if nfds > max_descriptors() {
        return minus_one(libc::EINVAL);
    }
    // SAFETY: the program's array has `nfds` entries that no other thread uses, or is NULL.
    let Some(fds) = (unsafe { slice_mut(fds, nfds as usize) }) else {
        return minus_one(libc::EFAULT);
    };
    number(poll(fds, milliseconds(timeout)))
}

/// `rselect`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program passes NULL, or a time that no other thread changes.
    let timeout = match unsafe { timeout.as_ref() } {
        None => None,
        Some(time) => match (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) {
            (Ok(s), Ok(us)) => Some(Duration::from_secs(s) + Duration::from_micros(us)),
            _ => return minus_one(libc::EINVAL),
        },
    };
    let Ok(count) = usize::try_from(nfds) else {
        return minus_one(libc::EINVAL);
    };
    // As in the kernel: bits beyond the last possible descriptor are not read.
    let count = count.min(max_descriptors() as usize);
    let sets = [readfds, writefds, exceptfds].map(|set| -> Set<'_> {
        // SAFETY: each of the program's sets is NULL or has `nfds` bits in whole words.
        (!set.is_null())
            .then(|| unsafe { core::slice::from_raw_parts(set.cast(), count.div_ceil(BITS)) })
    });
    number(select(count, sets, timeout))
}

/// `repoll_create`
#[unsafe(no_mangle)]
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return minus_one(libc::EINVAL);
    }
    match Epoll::new() {
        Err(errno) => minus_one(errno.raw_os_error()),
        Ok(epoll) => socket::insert(Socket::Epoll(Arc::new(epoll))),
    }
}

fn find_epoll(fd: c_int) -> Result<Arc<Epoll>> {
    match find(fd)? {
        Socket::Epoll(epoll) => Ok(epoll),
        _ => Err(Errno::INVAL),
    }
}

/// `repoll_ctl`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the event is not NULL, so it is the program's; it need not be aligned.
    let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let interest = event.map(|event| Interest {
        events: event.events,
        data: event.u64,
    });
    status(find_epoll(epfd).and_then(|epoll| match op {
        libc::EPOLL_CTL_ADD => epoll.add(fd, interest.ok_or(Errno::FAULT)?),
        libc::EPOLL_CTL_MOD => epoll.modify(fd, interest.ok_or(Errno::FAULT)?),
        libc::EPOLL_CTL_DEL => epoll.remove(fd),
        _ => Err(Errno::INVAL),
    }))
}

/// `repoll_wait`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    number(find_epoll(epfd).and_then(|epoll| {
        let max = usize::try_from(maxevents).ok().filter(|max| *max > 0);
        let max = max.ok_or(Errno::INVAL)?;
        if events.is_null() {
            return Err(Errno::FAULT);
        }
        let found = epoll.wait(max, milliseconds(timeout))?;
        for (place, interest) in found.iter().enumerate() {
            let event = epoll_event {
                events: interest.events,
                u64: interest.data,
            };
            // SAFETY: the program's array has `maxevents` entries, and `wait` returned at
            // most as many.
            unsafe { events.add(place).write_unaligned(event) };
        }
        Ok(found.len())
    }))
}
