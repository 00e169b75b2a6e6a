//! Addresses and flags.

use core::ffi::{c_int, c_long};
use std::os::fd::AsRawFd;

use ferroce_rsocket::{Errno, Socket};
use libc::{sockaddr, socklen_t};

use super::{find, status};
use crate::errno::minus_one;
use crate::rsocket::address;

/// `rgetpeername`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    status(find(socket).and_then(|socket| {
        let peer = match socket {
            Socket::Stream(stream) => stream.peer_addr(),
            Socket::Datagram(datagram) => datagram.peer_addr(),
            Socket::Epoll(_) => return Err(Errno::NOTSOCK),
        };
        // SAFETY: the program's `addr` has room for `*length` bytes, or one of them is NULL.
        unsafe { address::write(&peer.ok_or(Errno::NOTCONN)?, addr, length) }
    }))
}

/// `rgetsockname`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    status(find(socket).and_then(|socket| {
        let local = match socket {
            Socket::Stream(stream) => stream.local_addr(),
            Socket::Datagram(datagram) => datagram.local_addr().ok_or(Errno::INVAL)?,
            Socket::Epoll(_) => return Err(Errno::NOTSOCK),
        };
        // SAFETY: the program's `addr` has room for `*length` bytes, or one of them is NULL.
        unsafe { address::write(&local, addr, length) }
    }))
}

/// `rfcntl`. Its third argument is variadic in C, and is passed like a `long`.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    let socket = match find(socket) {
        Ok(socket) => socket,
        Err(errno) => return minus_one(errno.raw_os_error()),
    };
    let flag = c_long::from(libc::O_NONBLOCK);
    match command {
        libc::F_GETFL => {
            libc::O_RDWR
                | if socket.nonblocking() {
                    libc::O_NONBLOCK
                } else {
                    0
                }
        }
        libc::F_SETFL => {
            socket.set_nonblocking(argument & flag != 0);
            0
        }
        libc::F_GETFD | libc::F_SETFD => {
            let fd = socket.as_raw_fd();
            // SAFETY: these commands read and write flags of a descriptor, no memory. The
            // syscall bypasses libc's `fcntl`, which calls rsockets under librspreload.
            let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) };
            // On failure the syscall has set `errno`.
            result as c_int
        }
        _ => minus_one(libc::ENOTSUP),
    }
}
