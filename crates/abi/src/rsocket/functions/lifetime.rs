//! Sockets come and go.

use core::ffi::c_int;
use std::sync::Arc;

use libc::{sockaddr, socklen_t};

use super::{done, find};
use crate::errno::minus_one;
use crate::rsocket::address;
use crate::rsocket::datagram::Datagram;
use crate::rsocket::stream::Stream;
use crate::rsocket::sys;
use crate::rsocket::table::{self, Socket};

/// `rsocket`
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    crate::log::start();
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let made = match (domain, kind & !flags, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            Stream::new(domain).map(|stream| Socket::Stream(Arc::new(stream)))
        }
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            Datagram::new(domain).map(|datagram| Socket::Datagram(Arc::new(datagram)))
        }
        (libc::AF_INET | libc::AF_INET6, ..) => Err(libc::EPROTONOSUPPORT),
        _ => Err(libc::EAFNOSUPPORT),
    };
    match made {
        Err(errno) => minus_one(errno),
        Ok(socket) => {
            socket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
            let fd = socket.fd();
            table::insert(fd, socket);
            fd
        }
    }
}

/// `rbind`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    done(find(socket).and_then(|socket| {
        // SAFETY: the caller's address.
        let addr = unsafe { address::read(addr, length)? };
        match socket {
            Socket::Stream(stream) => stream.bind(&addr),
            Socket::Datagram(datagram) => datagram.bind(&addr),
            Socket::Epoll(_) => Err(libc::ENOTSOCK),
        }
    }))
}

/// `rlisten`
#[unsafe(no_mangle)]
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    done(find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.listen(backlog),
        Socket::Datagram(_) => Err(libc::EOPNOTSUPP),
        Socket::Epoll(_) => Err(libc::ENOTSOCK),
    }))
}

/// `raccept`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let accepted = find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.accept(),
        Socket::Datagram(_) => Err(libc::EOPNOTSUPP),
        Socket::Epoll(_) => Err(libc::ENOTSOCK),
    });
    let stream = match accepted {
        Err(errno) => return minus_one(errno),
        Ok(stream) => stream,
    };
    if !addr.is_null()
        && let Some(peer) = stream.caller()
    {
        // SAFETY: the caller's room for an address.
        let _no_length_no_address = unsafe { address::write(&peer, addr, length) };
    }
    let fd = stream.fd();
    table::insert(fd, Socket::Stream(Arc::new(stream)));
    fd
}

/// `rconnect`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(
    socket: c_int,
    addr: *const sockaddr,
    length: socklen_t,
) -> c_int {
    done(find(socket).and_then(|socket| {
        // SAFETY: the caller's address.
        let addr = unsafe { address::read(addr, length)? };
        match socket {
            Socket::Stream(stream) => stream.connect(&addr),
            Socket::Datagram(datagram) => datagram.connect(&addr),
            Socket::Epoll(_) => Err(libc::ENOTSOCK),
        }
    }))
}

/// `rshutdown`
#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    done(find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.shutdown(how),
        Socket::Datagram(datagram) => datagram.peer().map(|_| ()).ok_or(libc::ENOTCONN),
        Socket::Epoll(_) => Err(libc::ENOTSOCK),
    }))
}

/// `rclose`
#[unsafe(no_mangle)]
pub extern "C" fn rclose(socket: c_int) -> c_int {
    match table::remove(socket) {
        None => minus_one(libc::EBADF),
        Some(socket) => {
            let errno = sys::errno();
            match &socket {
                Socket::Stream(stream) => stream.close(),
                Socket::Datagram(datagram) => datagram.close(),
                Socket::Epoll(_) => {}
            }
            drop(socket);
            crate::errno::set_errno(errno);
            0
        }
    }
}
