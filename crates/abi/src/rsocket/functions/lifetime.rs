//! Creating, connecting and closing sockets.

use core::ffi::c_int;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use ferroce_rsocket::{Datagram, Errno, Socket, Stream, socket};
use libc::{sockaddr, socklen_t};
use rustix::net::AddressFamily;

use super::{find, status};
use crate::errno::{minus_one, set_errno};
use crate::provoke::provoke;
use crate::rsocket::address;

/// `rsocket`
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    provoke!("rsocket" => minus_one);
    crate::log::start();
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let family = match domain {
        libc::AF_INET => AddressFamily::INET,
        libc::AF_INET6 => AddressFamily::INET6,
        _ => return minus_one(libc::EAFNOSUPPORT),
    };
    let created = match (kind & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            Stream::new(family).map(|stream| Socket::Stream(Arc::new(stream)))
        }
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            Datagram::new(family).map(|datagram| Socket::Datagram(Arc::new(datagram)))
        }
        _ => Err(Errno::PROTONOSUPPORT),
    };
    match created {
        Err(errno) => minus_one(errno.raw_os_error()),
        Ok(socket) => {
            socket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
            socket::insert(socket)
        }
    }
}

/// `rbind`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    provoke!("rbind" => minus_one);
    // SAFETY: the program's address is NULL, or has `length` bytes.
    let addr = unsafe { address::read(addr, length) };
    status(find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.bind(&addr?),
        Socket::Datagram(datagram) => datagram.bind(&addr?),
        Socket::Epoll(_) => Err(Errno::NOTSOCK),
    }))
}

/// `rlisten`
#[unsafe(no_mangle)]
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    provoke!("rlisten" => minus_one);
    status(find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.listen(backlog),
        Socket::Datagram(_) => Err(Errno::OPNOTSUPP),
        Socket::Epoll(_) => Err(Errno::NOTSOCK),
    }))
}

/// `raccept`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(
    socket: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    provoke!("raccept" => minus_one);
    let accepted = find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.accept(),
        Socket::Datagram(_) => Err(Errno::OPNOTSUPP),
        Socket::Epoll(_) => Err(Errno::NOTSOCK),
    });
    let stream = match accepted {
        Err(errno) => return minus_one(errno.raw_os_error()),
        Ok(stream) => stream,
    };
    // SAFETY: the program's `addr` has room for `*length` bytes, or one of them is NULL.
    unsafe { write_if_wanted(stream.peer_addr(), addr, length) };
    socket::insert(Socket::Stream(Arc::new(stream)))
}

/// Gives an address to a program that may not want it.
///
/// # Safety
///
/// As [`address::write`].
pub(super) unsafe fn write_if_wanted(
    from: Option<SocketAddr>,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) {
    if let Some(from) = from {
        // SAFETY: `addr` has room for `*length` bytes, or one of them is NULL: see `# Safety`.
        // Then nothing is written.
        let _not_wanted = unsafe { address::write(&from, addr, length) };
    }
}

/// `rconnect`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(
    socket: c_int,
    addr: *const sockaddr,
    length: socklen_t,
) -> c_int {
    provoke!("rconnect" => minus_one);
    // SAFETY: the program's address is NULL, or has `length` bytes.
    let addr = unsafe { address::read(addr, length) };
    status(find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.connect(&addr?),
        Socket::Datagram(datagram) => datagram.connect(&addr?),
        Socket::Epoll(_) => Err(Errno::NOTSOCK),
    }))
}

/// `rshutdown`
#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    let how = match how {
        libc::SHUT_RD => Ok(Shutdown::Read),
        libc::SHUT_WR => Ok(Shutdown::Write),
        libc::SHUT_RDWR => Ok(Shutdown::Both),
        _ => Err(Errno::INVAL),
    };
    status(find(socket).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.shutdown(how?),
        Socket::Datagram(datagram) => datagram.peer_addr().map(|_| ()).ok_or(Errno::NOTCONN),
        Socket::Epoll(_) => Err(Errno::NOTSOCK),
    }))
}

/// `rclose`
#[unsafe(no_mangle)]
pub extern "C" fn rclose(socket: c_int) -> c_int {
    match socket::remove(socket) {
        None => minus_one(libc::EBADF),
        Some(socket) => {
            let errno = std::io::Error::last_os_error().raw_os_error();
            socket.close();
            drop(socket);
            // A call that succeeds leaves `errno` as it was.
            set_errno(errno.unwrap_or(0));
            0
        }
    }
}
