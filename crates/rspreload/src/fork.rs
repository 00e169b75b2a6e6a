//! TCP connections that are replaced by rsockets when they are first used.
//!
//! The server, on first use, listens over RDMA on the same port, sends four zero bytes over
//! TCP, and accepts. The client, on first use, waits for these bytes and connects. Both close
//! the TCP connection. Only one server may listen at a time. If the server cannot listen, both
//! ends find the connection closed. That is so on links of type siw, whose ports are TCP's: the program's own
//! TCP listener has the port.

use core::ffi::{c_int, c_void};
use core::mem::{size_of, zeroed};

use libc::{sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::config::Config;
use crate::inside::go;
use crate::map::{self, FdTarget};
use crate::next::{errno, real, set_errno};
use crate::rsockets::*;

const READY: [u8; 4] = [0; 4];

/// Replaces the TCP connection of a descriptor if it is due, and returns the descriptor.
pub(crate) fn exchanged(fd: c_int) -> c_int {
    let before = errno();
    match map::get(fd) {
        // SAFETY: a connected socket of the program's.
        FdTarget::ForkActive => unsafe { finish(fd, active(fd)) },
        // SAFETY: a connected socket of the program's.
        FdTarget::ForkPassive => unsafe {
            let accepted = passive(fd);
            if accepted.is_none() {
                // The client waits for the word to connect, and would wait for ever.
                real::shutdown(fd, libc::SHUT_RDWR);
            }
            finish(fd, accepted);
        },
        _ => return fd,
    }
    set_errno(before);
    fd
}

unsafe fn finish(fd: c_int, rsocket: Option<c_int>) {
    map::take(fd);
    let Some(rsocket) = rsocket else {
        return;
    };
    // SAFETY: the calls access no memory.
    unsafe {
        let flags = real::fcntl(fd, libc::F_GETFL, 0);
        go(|| rfcntl(rsocket, libc::F_SETFL, (flags & libc::O_NONBLOCK).into()));
        real::shutdown(fd, libc::SHUT_RDWR);
    }
    map::put(fd, FdTarget::Rsocket(rsocket));
}

/// Waits until the server listens, and connects.
unsafe fn active(fd: c_int) -> Option<c_int> {
    let mut word = [1_u8; 4];
    // SAFETY: `word` has 4 bytes, and `addr` has room for any address.
    unsafe {
        let flags = real::fcntl(fd, libc::F_GETFL, 0);
        real::fcntl(fd, libc::F_SETFL, (flags & !libc::O_NONBLOCK).into());
        let peek = libc::MSG_PEEK | libc::MSG_WAITALL;
        let got = real::recv(fd, word.as_mut_ptr().cast(), 4, peek);
        real::fcntl(fd, libc::F_SETFL, flags.into());
        let mut addr: sockaddr_storage = zeroed();
        let mut length = size_of::<sockaddr_storage>() as socklen_t;
        let place = (&raw mut addr).cast();
        if got != 4 || word != READY || real::getpeername(fd, place, &mut length) != 0 {
            return None;
        }
        let new = go(|| rsocket(addr.ss_family.into(), libc::SOCK_STREAM, 0));
        if new < 0 {
            return None;
        }
        go(|| Config::get().set_up(new));
        if go(|| rconnect(new, place, length)) != 0 {
            go(|| rclose(new));
            return None;
        }
        Some(new)
    }
}

/// Listens, tells the client, and accepts.
unsafe fn passive(fd: c_int) -> Option<c_int> {
    // SAFETY: `addr` has room for any address, and its family selects the type.
    unsafe {
        let mut addr: sockaddr_storage = zeroed();
        let mut length = size_of::<sockaddr_storage>() as socklen_t;
        let place = (&raw mut addr).cast();
        if real::getsockname(fd, place, &mut length) != 0 {
            return None;
        }
        // The wildcard address: no link may have the address of the TCP connection.
        match c_int::from(addr.ss_family) {
            libc::AF_INET6 => {
                let v6 = (&raw mut addr).cast::<sockaddr_in6>();
                (*v6).sin6_addr = zeroed();
                (*v6).sin6_scope_id = 0;
            }
            _ => (*(&raw mut addr).cast::<sockaddr_in>()).sin_addr = zeroed(),
        }
        let listener = go(|| rsocket(addr.ss_family.into(), libc::SOCK_STREAM, 0));
        if listener < 0 {
            return None;
        }
        let _only_one = Turn::take();
        let accepted = go(|| {
            let on: c_int = 1;
            let value = (&raw const on).cast::<c_void>();
            rsetsockopt(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, value, 4);
            Config::get().set_up(listener);
            if rbind(listener, place, length) != 0 || rlisten(listener, 1) != 0 {
                return -1;
            }
            if real::send(fd, READY.as_ptr().cast(), 4, libc::MSG_NOSIGNAL) != 4 {
                return -1;
            }
            raccept(listener, core::ptr::null_mut(), core::ptr::null_mut())
        });
        go(|| rclose(listener));
        (accepted >= 0).then_some(accepted)
    }
}

/// The lock with which servers of one port in several processes take turns: that of a
/// directory of ferroced, which `ferroce run` names. A file in `/dev/shm` would let any user
/// hold the lock for ever.
struct Turn(c_int);

impl Turn {
    fn take() -> Turn {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: the variable is NULL or a string. Without it there is no lock.
        unsafe {
            let path = libc::getenv(c"FERROCE_SYSFS".as_ptr());
            if path.is_null() {
                return Turn(-1);
            }
            let fd = libc::open(path, flags);
            if fd >= 0 {
                libc::flock(fd, libc::LOCK_EX);
            }
            Turn(fd)
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.0 >= 0 {
            // SAFETY: the descriptor is ours. Closing it releases the lock.
            unsafe { real::close(self.0) };
        }
    }
}
