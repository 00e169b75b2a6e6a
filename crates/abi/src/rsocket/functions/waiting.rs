//! Waiting for descriptors.

use core::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use ferroce_rsocket::{BITS, Epoll, Errno, Interest, Result, Set, Socket, poll, select, socket};
use libc::{epoll_event, fd_set, nfds_t, pollfd, timeval};

use super::{find, number, status};
use crate::errno::minus_one;

/// Returns a timeout in milliseconds; a negative one means no timeout.
fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// `rpoll`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    let fds = match nfds {
        0 => &mut [],
        _ if fds.is_null() => return minus_one(libc::EFAULT),
        // SAFETY: the caller's array has `nfds` entries.
        _ => unsafe { core::slice::from_raw_parts_mut(fds, nfds as usize) },
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
    // SAFETY: the caller's time, or NULL.
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
    // SAFETY: the caller's event, which need not be aligned.
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
            // SAFETY: the caller's array has `maxevents` entries, and this is below.
            unsafe { events.add(place).write_unaligned(event) };
        }
        Ok(found.len())
    }))
}
