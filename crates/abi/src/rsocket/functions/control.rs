//! Addresses and flags.

use core::ffi::{c_int, c_long};

use libc::{sockaddr, socklen_t};

use super::{done, find};
use crate::errno::minus_one;
use crate::rsocket::address;
use crate::rsocket::sys;
use crate::rsocket::table::Socket;

/// `rgetpeername`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    done(find(socket).and_then(|socket| {
        let peer = match socket {
            Socket::Stream(stream) => stream.peer(),
            Socket::Datagram(datagram) => datagram.peer(),
            Socket::Epoll(_) => return Err(libc::ENOTSOCK),
        };
        // SAFETY: the caller's room for an address.
        unsafe { address::write(&peer.ok_or(libc::ENOTCONN)?, addr, length) }
    }))
}

/// `rgetsockname`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    done(find(socket).and_then(|socket| {
        let local = match socket {
            Socket::Stream(stream) => stream.local().unwrap_or(stream.any()),
            Socket::Datagram(datagram) => datagram.local().ok_or(libc::EINVAL)?,
            Socket::Epoll(_) => return Err(libc::ENOTSOCK),
        };
        // SAFETY: the caller's room for an address.
        unsafe { address::write(&local, addr, length) }
    }))
}

/// `rfcntl`, of which C programs pass the third argument like any other.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    let socket = match find(socket) {
        Ok(socket) => socket,
        Err(errno) => return minus_one(errno),
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
            // SAFETY: flags of a descriptor; the kernel refuses what it does not know.
            let result = unsafe { libc::syscall(libc::SYS_fcntl, socket.fd(), command, argument) };
            match result {
                0.. => result as c_int,
                _ => minus_one(sys::errno()),
            }
        }
        _ => minus_one(libc::ENOTSUP),
    }
}
