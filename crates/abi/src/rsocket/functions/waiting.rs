//! Waiting for many descriptors.

use core::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, timeval};

use super::{done, find};
use crate::errno::minus_one;
use crate::rsocket::epoll::Epoll;
use crate::rsocket::poll::poll;
use crate::rsocket::select::select;
use crate::rsocket::table::{self, Socket};

/// Milliseconds; below zero there is no end.
fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

fn number(result: Result<usize, c_int>) -> c_int {
    match result {
        Ok(count) => count as c_int,
        Err(errno) => minus_one(errno),
    }
}

/// `rpoll`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    let fds = match nfds {
        0 => &mut [],
        _ if fds.is_null() => return minus_one(libc::EFAULT),
        // SAFETY: as many as the caller says.
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
    let timeout = match timeout.is_null() {
        true => None,
        false => {
            // SAFETY: the caller's time.
            let time = unsafe { *timeout };
            let seconds = u64::try_from(time.tv_sec);
            let micros = u64::try_from(time.tv_usec);
            match (seconds, micros) {
                (Ok(s), Ok(us)) => Some(Duration::from_secs(s) + Duration::from_micros(us)),
                _ => return minus_one(libc::EINVAL),
            }
        }
    };
    // SAFETY: the caller's sets.
    match unsafe { select(nfds, [readfds, writefds, exceptfds], timeout) } {
        Ok(count) => count,
        Err(errno) => minus_one(errno),
    }
}

/// `repoll_create`
#[unsafe(no_mangle)]
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return minus_one(libc::EINVAL);
    }
    match Epoll::new() {
        Err(errno) => minus_one(errno),
        Ok(epoll) => {
            let fd = epoll.fd();
            table::insert(fd, Socket::Epoll(Arc::new(epoll)));
            fd
        }
    }
}

fn find_epoll(fd: c_int) -> Result<Arc<Epoll>, c_int> {
    match find(fd)? {
        Socket::Epoll(epoll) => Ok(epoll),
        _ => Err(libc::EINVAL),
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
    done(find_epoll(epfd).and_then(|epoll| {
        // SAFETY: the caller's event, which need not be aligned.
        let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        epoll.control(op, fd, event.map(|event| (event.events, event.u64)))
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
        let room = usize::try_from(maxevents).ok().filter(|room| *room > 0);
        let room = room.ok_or(libc::EINVAL)?;
        if events.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller's room for events.
        let events = unsafe { core::slice::from_raw_parts_mut(events, room) };
        epoll.wait(events, milliseconds(timeout))
    }))
}
