//! The UDP socket of a datagram socket, and the sockets that tell which address is used.

use core::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::rsocket::sys;

fn errno(error: Errno) -> c_int {
    error.raw_os_error()
}

pub(super) fn socket(family: c_int) -> Result<OwnedFd, c_int> {
    let family = match family {
        libc::AF_INET6 => AddressFamily::INET6,
        _ => AddressFamily::INET,
    };
    // Reading never waits: whoever waits, waits for more than this socket.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::DGRAM, flags, None).map_err(errno)
}

pub(super) fn epoll() -> Result<OwnedFd, c_int> {
    rustix::event::epoll::create(CreateFlags::CLOEXEC).map_err(errno)
}

/// Has an epoll descriptor be readable when another one is.
pub(super) fn watch(epoll: BorrowedFd<'_>, fd: c_int) -> Result<(), c_int> {
    // SAFETY: the descriptor is open; epoll forgets it when it is closed.
    let fd = unsafe { sys::borrow(fd) }.ok_or(libc::EBADF)?;
    let (data, flags) = (EventData::new_u64(0), EventFlags::IN);
    rustix::event::epoll::add(epoll, fd, data, flags).map_err(errno)
}

pub(super) fn bind(socket: impl AsFd, addr: &SocketAddr) -> Result<(), c_int> {
    rustix::net::bind(socket, addr).map_err(errno)
}

pub(super) fn connect(socket: impl AsFd, addr: &SocketAddr) -> Result<(), c_int> {
    rustix::net::connect(socket, addr).map_err(errno)
}

pub(super) fn local(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

/// From which address something to a peer would come.
pub(super) fn source_for(peer: &SocketAddr) -> Result<SocketAddr, c_int> {
    let family = match peer {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let probe = socket(family)?;
    connect(&probe, peer)?;
    local(&probe).ok_or(libc::EADDRNOTAVAIL)
}
