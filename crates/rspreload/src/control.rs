//! Addresses, options and flags.

use core::ffi::{c_int, c_long, c_ulong, c_void};

use libc::{sockaddr, socklen_t};

use crate::inside::go;
use crate::lifetime::duplicated;
use crate::map;
use crate::next::{errno, real, set_errno};
use crate::rsockets::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    match map::rsocket(fd) {
        // SAFETY: the program's arguments, unchanged.
        Some(rsocket) => go(|| unsafe { rgetpeername(rsocket, addr, length) }),
        // SAFETY: the program's arguments, unchanged.
        None => unsafe { real::getpeername(fd, addr, length) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    match map::rsocket(fd) {
        // SAFETY: the program's arguments, unchanged.
        Some(rsocket) => go(|| unsafe { rgetsockname(rsocket, addr, length) }),
        // SAFETY: the program's arguments, unchanged.
        None => unsafe { real::getsockname(fd, addr, length) },
    }
}

/// Sets an option of both sockets. An option that only the kernel knows succeeds without
/// effect on the rsocket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the program's arguments, unchanged.
    let kernel = unsafe { real::setsockopt(fd, level, name, value, length) };
    let Some(rsocket) = map::rsocket(fd) else {
        return kernel;
    };
    let why = errno();
    // SAFETY: the program's arguments, unchanged.
    let result = go(|| unsafe { rsetsockopt(rsocket, level, name, value, length) });
    if result != 0 && errno() == libc::ENOTSUP {
        set_errno(why);
        return kernel;
    }
    result
}

/// Returns an option of the rsocket; one that rsockets do not have comes from the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if let Some(rsocket) = map::rsocket(fd) {
        let before = errno();
        // SAFETY: the program's arguments, unchanged.
        let result = go(|| unsafe { rgetsockopt(rsocket, level, name, value, length) });
        if result == 0 || errno() != libc::ENOTSUP {
            return result;
        }
        set_errno(before);
    }
    // SAFETY: the program's arguments, unchanged.
    unsafe { real::getsockopt(fd, level, name, value, length) }
}

/// `fcntl`. Its third argument is variadic in C, and is passed like a `long`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the program's arguments, unchanged.
    let result = unsafe { real::fcntl(fd, command, argument) };
    match command {
        libc::F_SETFL if result == 0 => {
            if let Some(rsocket) = map::rsocket(fd) {
                // SAFETY: the call accesses no memory.
                return go(|| unsafe { rfcntl(rsocket, libc::F_SETFL, argument) });
            }
            result
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        _ => result,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the program's arguments, unchanged.
    unsafe { fcntl(fd, command, argument) }
}

/// `ioctl`. FIONBIO and FIONREAD concern the rsocket; others go to the kernel's socket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the program's arguments, unchanged.
    let result = unsafe { real::ioctl(fd, request, argument) };
    let Some(rsocket) = map::rsocket(fd) else {
        return result;
    };
    // SAFETY: both requests take a pointer to an `int`.
    unsafe {
        match request {
            libc::FIONBIO if result == 0 => {
                let flags = if *argument.cast::<c_int>() != 0 {
                    libc::O_NONBLOCK
                } else {
                    0
                };
                go(|| rfcntl(rsocket, libc::F_SETFL, flags.into()))
            }
            libc::FIONREAD => {
                let mut room = vec![0_u8; 1 << 16];
                let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
                let found = go(|| rrecv(rsocket, room.as_mut_ptr().cast(), room.len(), flags));
                *argument.cast::<c_int>() = found.max(0) as c_int;
                0
            }
            _ => result,
        }
    }
}
