//! Netlink: the kernel's news about netdevs and addresses.
//!
//! Subscribe first, then look at everything, then follow the news: what arrives twice
//! does no harm. If news were lost (ENOBUFS), look at everything again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netdevs::{Change, Netdevs};
use crate::rtnetlink::{self, Message, RTM_GETADDR, RTM_GETLINK};

/// Multicast groups RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR and RTNLGRP_IPV6_IFADDR.
const GROUPS: u32 = (1 << 0) | (1 << 4) | (1 << 8);
/// The kernel never fills more in one go.
const BUFFER: usize = 64 << 10;

/// The stream of news.
#[derive(Debug)]
pub(crate) struct Monitor {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// What the news were.
#[derive(Debug)]
pub(crate) enum News {
    /// These, in order.
    Changes(Vec<Change>),
    /// Some were lost: [`look`] again.
    Lost,
    /// None at the moment.
    None,
}

impl Monitor {
    pub(crate) fn new() -> io::Result<Monitor> {
        Ok(Monitor {
            socket: open(GROUPS, SocketFlags::NONBLOCK)?,
            buffer: vec![0; BUFFER],
        })
    }

    /// The next news; never waits.
    pub(crate) fn read(&mut self) -> io::Result<News> {
        match receive(&self.socket, &mut self.buffer) {
            Ok(bytes) => Ok(News::Changes(
                rtnetlink::messages(bytes)
                    .filter_map(Message::change)
                    .collect(),
            )),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(News::None),
                Some(libc::ENOBUFS) => Ok(News::Lost),
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

/// Looks at all netdevs and addresses.
pub(crate) fn look() -> io::Result<Netdevs> {
    let socket = open(0, SocketFlags::empty())?;
    let mut netdevs = Netdevs::default();
    for what in [RTM_GETLINK, RTM_GETADDR] {
        // A dump that the kernel says was interrupted by a change is made again.
        while !dump(&socket, what, &mut netdevs)? {}
    }
    Ok(netdevs)
}

/// Asks for a whole table. False if it changed meanwhile.
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

/// The next packet from the kernel: other processes can send to us as well.
fn receive<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    loop {
        let (_, length, from) = rustix::io::retry_on_intr(|| {
            rustix::net::recvfrom(socket, &mut *buffer, RecvFlags::TRUNC)
        })?;
        let from = from.and_then(|address| SocketAddrNetlink::try_from(address).ok());
        if from.is_some_and(|address| address.pid() == 0) {
            // Never longer than the buffer; if it is, treat it as lost.
            return buffer
                .get(..length)
                .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS));
        }
    }
}
