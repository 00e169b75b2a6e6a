//! Netlink: dumps and notifications of netdevs and addresses.
//!
//! ferroced subscribes first, then dumps everything, then applies notifications; applying
//! one twice changes nothing. If notifications were lost (ENOBUFS), it dumps again.
//!
//! The kernel does not report the link-local address that it gives a netdev before duplicate
//! address detection has ended, 1 to 2 s later. A dump lists the address as soon as it exists, so
//! ferroced dumps addresses when a link is added, and while the netdev of a link runs without
//! its address: at each message and request, until the address is there or the wait for it ends
//! ([`crate::link_local`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netdevs::{Change, Netdevs};
use crate::rtnetlink::{self, Message, RTM_GETADDR, RTM_GETLINK};

/// Multicast groups RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR and RTNLGRP_IPV6_IFADDR.
const GROUPS: u32 = (1 << 0) | (1 << 4) | (1 << 8);
/// Size of the receive buffer: the kernel sends no longer packets.
const BUFFER: usize = 64 << 10;

/// The subscription to notifications.
#[derive(Debug)]
pub(crate) struct Monitor {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// Result of reading notifications.
#[derive(Debug)]
pub(crate) enum ReadChanges {
    /// Changes, in order.
    Changes(Vec<Change>),
    /// Some notifications were lost: call [`look`].
    Lost,
    /// There are none at present.
    None,
}

impl Monitor {
    pub(crate) fn new() -> io::Result<Monitor> {
        Ok(Monitor {
            socket: open(GROUPS, SocketFlags::NONBLOCK)?,
            buffer: vec![0; BUFFER],
        })
    }

    /// Reads notifications, without waiting.
    pub(crate) fn read(&mut self) -> io::Result<ReadChanges> {
        match receive(&self.socket, &mut self.buffer) {
            Ok(bytes) => Ok(ReadChanges::Changes(
                rtnetlink::messages(bytes)
                    .filter_map(Message::change)
                    .collect(),
            )),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(ReadChanges::None),
                Some(libc::ENOBUFS) => Ok(ReadChanges::Lost),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Dumps all netdevs and addresses.
pub(crate) fn look() -> io::Result<Netdevs> {
    let socket = open(0, SocketFlags::empty())?;
    let mut netdevs = Netdevs::default();
    for what in [RTM_GETLINK, RTM_GETADDR] {
        // Repeats a dump that the kernel marks as interrupted by a change.
        while !dump(&socket, what, &mut netdevs)? {}
    }
    Ok(netdevs)
}

/// Dumps all addresses, and adds those that are not known yet.
pub(crate) fn add_addresses(netdevs: &mut Netdevs) -> io::Result<()> {
    let socket = open(0, SocketFlags::empty())?;
    while !dump(&socket, RTM_GETADDR, netdevs)? {}
    Ok(())
}

/// Dumps a table. Returns false if it changed meanwhile.
fn dump(socket: &OwnedFd, what: u16, netdevs: &mut Netdevs) -> io::Result<bool> {
    let request = rtnetlink::dump_request(what);
    rustix::net::send(socket, &request, SendFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    let mut consistent = true;
    loop {
        let bytes = receive(socket, &mut buffer)?;
        for message in rtnetlink::messages(bytes) {
            consistent &= !message.interrupted();
            match message {
                Message::Done { .. } => return Ok(consistent),
                Message::Error(error) => return Err(error),
                other => {
                    other.change().map(|change| netdevs.apply(change));
                }
            }
        }
    }
}

fn open(groups: u32, flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let kind = SocketType::RAW;
    // Protocol 0 of netlink is NETLINK_ROUTE.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Receives a packet from the kernel. Skips packets from other processes.
fn receive<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    loop {
        let (_, length, from) = rustix::io::retry_on_intr(|| {
            rustix::net::recvfrom(socket, &mut *buffer, RecvFlags::TRUNC)
        })?;
        let from = from.and_then(|address| SocketAddrNetlink::try_from(address).ok());
        if from.is_some_and(|address| address.pid() == 0) {
            // A packet longer than the buffer counts as lost.
            return buffer
                .get(..length)
                .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS));
        }
    }
}
