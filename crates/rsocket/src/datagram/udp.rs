//! The UDP socket of a datagram socket.

use std::net::{IpAddr, SocketAddr};
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

/// Returns false if an address is certainly not one of this host. Asks the kernel only.
pub(super) fn may_be_local(ip: IpAddr) -> bool {
    match ip {
        // The kernel sends to all of 127.0.0.0/8 from 127.0.0.1.
        ip if ip.is_loopback() => true,
        // Without its netdev the kernel has no route to it.
        IpAddr::V6(ip) if ip.is_unicast_link_local() => true,
        // The kernel sends to an address of its own from that same address.
        ip => source_for(&SocketAddr::new(ip, 9)).is_ok_and(|source| source.ip() == ip),
    }
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
