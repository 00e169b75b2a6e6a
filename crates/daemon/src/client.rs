//! One connection: what it has said, and what still has to be said to it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_control::sockopt::Peer;
use ferroce_control::{Reply, Request, packet, protocol};
use rustix::net::{RecvFlags, SendFlags};

use crate::process::ProcessId;
use crate::slots::OwnerId;

/// Messages that may wait for a program that does not read. One that lets more
/// pile up is stopped or broken; it can resume when it runs again.
const MAX_WAITING: usize = 1024;
/// The same for one that has connections: thousands may end at once, and each of them is
/// several messages.
const MAX_WAITING_EVENTS: usize = 1 << 16;

/// Identifies a connection.
pub(crate) type ClientId = u64;

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    pub(crate) peer: Peer,
    /// The program's name, once it has said hello.
    pub(crate) program: Option<String>,
    /// Hears events of all links.
    pub(crate) subscribed: bool,
    /// Uses the connection manager.
    pub(crate) connects: bool,
    /// The process at the other end, once it uses the connection manager.
    pub(crate) process: Option<ProcessId>,
    /// Readable when that process has ended: a forked child of it may keep the connection.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Its attachment.
    pub(crate) owner: Option<OwnerId>,
    /// Whether we are to be woken when there is room to write.
    pub(crate) writes_watched: bool,
    waiting: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

/// What came in.
#[derive(Debug)]
pub(crate) enum Received {
    Request(Request, Vec<OwnedFd>),
    /// Nothing more at the moment.
    Nothing,
    /// It closed the connection.
    Closed,
    /// It sent what nobody should send.
    Garbage(String),
}

/// How sending went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All is out.
    All,
    /// Some waits for room.
    Waiting,
    /// The other end has closed the connection.
    Gone,
    /// The other end does not read, and too much waits.
    Stuck,
}

impl Client {
    pub(crate) fn new(socket: OwnedFd, peer: Peer) -> Client {
        Client {
            socket,
            peer,
            program: None,
            subscribed: false,
            connects: false,
            process: None,
            pidfd: None,
            writes_watched: false,
            owner: None,
            waiting: VecDeque::new(),
        }
    }

    /// The next request; never waits.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Received {
        let packet = match packet::receive(&self.socket, buffer, RecvFlags::DONTWAIT) {
            Ok(packet) => packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
        // An empty packet looks the same; it would be garbage, so nothing is lost.
        if packet.len == 0 {
            return Received::Closed;
        }
        if packet.truncated {
            return Received::Garbage("a message that is too long".into());
        }
        if packet.fds_lost {
            return Received::Garbage("descriptors that could not be taken".into());
        }
        match protocol::decode(&buffer[..packet.len]) {
            Ok(request) => Received::Request(request, packet.fds),
            Err(garbage) => Received::Garbage(garbage.to_string()),
        }
    }

    /// Says something; what does not go out at once waits.
    pub(crate) fn send(&mut self, reply: &Reply, fds: Vec<OwnedFd>) -> Sent {
        let limit = match self.connects {
            true => MAX_WAITING_EVENTS,
            false => MAX_WAITING,
        };
        if self.waiting.len() >= limit {
            return Sent::Stuck;
        }
        self.waiting.push_back((protocol::encode(reply), fds));
        self.flush()
    }

    /// Whether something waits to be said to it.
    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn flush(&mut self) -> Sent {
        while let Some((bytes, fds)) = self.waiting.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match packet::send(&self.socket, bytes, &fds, SendFlags::DONTWAIT) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Waiting,
                Err(error) => {
                    tracing::debug!(pid = self.peer.pid, %error, "cannot answer");
                    return Sent::Gone;
                }
            }
        }
        Sent::All
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
