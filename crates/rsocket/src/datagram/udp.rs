//! The UDP socket of a datagram socket.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{Errno, Result};

/// Creates a non-blocking UDP socket: a thread that waits polls more than this socket.
pub(super) fn socket(family: AddressFamily) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::DGRAM, flags, None)
}

/// Creates an epoll descriptor.
pub(super) fn epoll() -> Result<OwnedFd> {
    rustix::event::epoll::create(CreateFlags::CLOEXEC)
}

/// Makes an epoll descriptor readable while another descriptor is.
pub(super) fn watch(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<()> {
    rustix::event::epoll::add(epoll, fd, EventData::new_u64(0), EventFlags::IN)
}

/// Returns the local address of a UDP socket.
pub(super) fn local_addr(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

/// Returns the source address of packets to a peer.
pub(super) fn source_for(peer: &SocketAddr) -> Result<SocketAddr> {
    let family = match peer {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let probe = socket(family)?;
    rustix::net::connect(&probe, peer)?;
    local_addr(&probe).ok_or(Errno::ADDRNOTAVAIL)
}
