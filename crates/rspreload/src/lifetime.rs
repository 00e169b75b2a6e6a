//! Creating, connecting, duplicating and closing sockets.

use core::ffi::{c_int, c_void};
use core::mem::{size_of, zeroed};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{pollfd, sockaddr, sockaddr_storage, socklen_t};

use crate::config::Config;
use crate::fork;
use crate::inside::{self, go};
use crate::map::{self, FdTarget};
use crate::next::{errno, fail, real, set_errno};
use crate::rsockets::*;

const FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// Time in milliseconds that a non-blocking `connect` waits for RDMA. If RDMA fails within
/// it, TCP is tried; after it, the program polls for the result.
const PATIENCE: c_int = 2000;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the call accesses no memory.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd < 0 || inside::is_inside() {
        return fd;
    }
    let (before, config) = (errno(), Config::get());
    if config.wants(domain, kind & !FLAGS, protocol) {
        if config.fork_safe && kind & !FLAGS == libc::SOCK_STREAM {
            map::put(fd, FdTarget::ForkNew);
            return fd;
        }
        // SAFETY: the call accesses no memory.
        let rsocket = go(|| unsafe { rsocket(domain, kind, protocol) });
        if rsocket >= 0 {
            go(|| config.set_up(rsocket));
            map::put(fd, FdTarget::Rsocket(rsocket));
        }
    }
    set_errno(before);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    let Some(rsocket) = map::rsocket(fd) else {
        // SAFETY: the program's arguments, unchanged.
        return unsafe { real::bind(fd, addr, length) };
    };
    // SAFETY: the program's arguments, unchanged.
    let result = go(|| unsafe { rbind(rsocket, addr, length) });
    if result == 0 {
        bound().insert(rsocket);
    }
    result
}

/// Returns the rsockets that are bound by the program and not connected.
fn bound() -> MutexGuard<'static, BTreeSet<c_int>> {
    static BOUND: Mutex<BTreeSet<c_int>> = Mutex::new(BTreeSet::new());
    BOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match map::get(fd) {
        // SAFETY: the call accesses no memory.
        FdTarget::Rsocket(rsocket) => go(|| unsafe { rlisten(rsocket, backlog) }),
        behind => {
            // SAFETY: the call accesses no memory.
            let result = unsafe { real::listen(fd, backlog) };
            if result == 0 && behind == FdTarget::ForkNew {
                map::put(fd, FdTarget::ForkListening);
            }
            result
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the program's arguments, unchanged.
    unsafe { accept4(fd, addr, length, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let rsocket = match map::get(fd) {
        FdTarget::Rsocket(rsocket) => rsocket,
        behind => {
            // SAFETY: the program's arguments, unchanged.
            let new = unsafe { real::accept4(fd, addr, length, flags) };
            if new >= 0 && behind == FdTarget::ForkListening {
                map::put(new, FdTarget::ForkPassive);
            }
            return new;
        }
    };
    // SAFETY: the program's arguments, unchanged.
    let accepted = go(|| unsafe { raccept(rsocket, addr, length) });
    if accepted < 0 {
        return accepted;
    }
    // SAFETY: the calls access no memory of the program.
    unsafe {
        let kind = libc::SOCK_STREAM | flags & FLAGS;
        let new = real::socket(family(accepted), kind, 0);
        if new < 0 {
            let why = errno();
            go(|| rclose(accepted));
            return fail(why);
        }
        if flags & libc::SOCK_NONBLOCK != 0 {
            go(|| rfcntl(accepted, libc::F_SETFL, libc::O_NONBLOCK.into()));
        }
        map::put(new, FdTarget::Rsocket(accepted));
        new
    }
}

/// Returns the address family of an rsocket.
pub(crate) unsafe fn family(rsocket: c_int) -> c_int {
    // SAFETY: `addr` has room for any address, and may be zeros.
    unsafe {
        let mut addr: sockaddr_storage = zeroed();
        let mut length = size_of::<sockaddr_storage>() as socklen_t;
        go(|| rgetsockname(rsocket, (&raw mut addr).cast(), &mut length));
        match c_int::from(addr.ss_family) {
            libc::AF_INET6 => libc::AF_INET6,
            _ => libc::AF_INET,
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    let rsocket = match map::get(fd) {
        FdTarget::Rsocket(rsocket) => rsocket,
        behind => {
            // SAFETY: the program's arguments, unchanged.
            let result = unsafe { real::connect(fd, addr, length) };
            let begun = result == 0 || errno() == libc::EINPROGRESS;
            if begun && behind == FdTarget::ForkNew {
                map::put(fd, FdTarget::ForkActive);
            }
            return result;
        }
    };
    // SAFETY: the program's arguments, unchanged.
    let result = go(|| unsafe { rconnect(rsocket, addr, length) });
    let why = match result {
        0 => {
            bound().remove(&rsocket);
            return 0;
        }
        _ if errno() == libc::EINPROGRESS => match settle(rsocket) {
            None => return fail(libc::EINPROGRESS),
            Some(0) => return 0,
            Some(why) => why,
        },
        _ => errno(),
    };
    match why {
        libc::EINTR | libc::EALREADY | libc::EISCONN | libc::EFAULT | libc::EINVAL => fail(why),
        // SAFETY: the program's arguments, unchanged.
        _ => unsafe { fall_back(fd, rsocket, addr, length) },
    }
}

/// Waits for a connection in progress: returns its error, 0 if it is established, or `None`
/// if it is still in progress.
fn settle(rsocket: c_int) -> Option<c_int> {
    let mut entry = pollfd {
        fd: rsocket,
        events: libc::POLLOUT,
        revents: 0,
    };
    let mut error: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    go(|| {
        // SAFETY: `entry` is one entry, and `error` has the size of an `int`.
        unsafe {
            if rpoll(&mut entry, 1, PATIENCE) < 1 {
                return None;
            }
            let place = (&raw mut error).cast::<c_void>();
            rgetsockopt(
                rsocket,
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                place,
                &mut length,
            );
        }
        Some(error)
    })
}

/// Connects the kernel's socket instead of the rsocket, which no peer answered.
unsafe fn fall_back(fd: c_int, rsocket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: `local` has room for any address; the other arguments are the program's.
    unsafe {
        let mut local: sockaddr_storage = zeroed();
        let mut local_length = size_of::<sockaddr_storage>() as socklen_t;
        let named = go(|| rgetsockname(rsocket, (&raw mut local).cast(), &mut local_length));
        let bound = bound().remove(&rsocket) && named == 0;
        map::take(fd);
        if bound && real::bind(fd, (&raw const local).cast(), local_length) != 0 {
            return -1;
        }
        real::connect(fd, addr, length)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match map::rsocket(fork::exchanged(fd)) {
        // SAFETY: the call accesses no memory.
        Some(rsocket) => go(|| unsafe { rshutdown(rsocket, how) }),
        // SAFETY: the call accesses no memory.
        None => unsafe { real::shutdown(fd, how) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if map::get(fd) != FdTarget::Kernel {
        map::take(fd);
    }
    // SAFETY: the call accesses no memory.
    unsafe { real::close(fd) }
}

/// Records that `new` is a duplicate of `fd`.
fn twin(fd: c_int, new: c_int) -> c_int {
    if new >= 0 && new != fd {
        let behind = map::get(fd);
        if behind != FdTarget::Kernel {
            map::put(new, behind);
        }
    }
    new
}

/// Records that the descriptor `to` becomes a duplicate of another one.
fn replaced(fd: c_int, to: c_int) {
    if fd != to && map::get(to) != FdTarget::Kernel {
        map::take(to);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the call accesses no memory.
    twin(fork::exchanged(fd), unsafe { real::dup(fd) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    replaced(fork::exchanged(fd), to);
    // SAFETY: the call accesses no memory.
    twin(fd, unsafe { real::dup2(fd, to) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    replaced(fork::exchanged(fd), to);
    // SAFETY: the call accesses no memory.
    twin(fd, unsafe { real::dup3(fd, to, flags) })
}

/// Records a duplicate that `fcntl` has made.
pub(crate) fn duplicated(fd: c_int, new: c_int) -> c_int {
    twin(fd, new)
}
