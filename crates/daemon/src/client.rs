//! One client connection: received requests, and replies that wait for room in its socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_control::protocol::CaptureOptions;
use ferroce_control::sockopt::Peer;
use ferroce_control::{AttachmentNumber, Reply, Request, RequestNumber, packet, protocol};
use rustix::net::{RecvFlags, SendFlags};

use crate::process::ProcessId;
use crate::slots::OwnerId;

/// Largest number of messages that wait for a client that does not read. A client with more
/// is stopped or broken; it can resume when it runs again.
const MAX_WAITING: usize = 1024;
/// The same for a client with rdma_cm connections: thousands may end at once, and each of
/// them causes several messages.
const MAX_WAITING_EVENTS: usize = 1 << 16;

/// Identifies a client connection.
pub(crate) type ClientId = u64;

/// A request that a reply belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) client: ClientId,
    /// None for Hello.
    pub(crate) number: Option<RequestNumber>,
}

/// An attachment of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttachmentId {
    pub(crate) client: ClientId,
    /// Number that the client chose.
    pub(crate) number: AttachmentNumber,
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    pub(crate) peer: Peer,
    /// Name of the program, from its Hello.
    pub(crate) program: Option<String>,
    /// True if the client receives events of all links.
    pub(crate) subscribed: bool,
    /// Indices of links that the client has opened without slots.
    pub(crate) watched: BTreeSet<u32>,
    /// The capture of the client.
    pub(crate) capture: Option<CaptureOptions>,
    /// True if the client uses the connection manager.
    pub(crate) connects: bool,
    /// Process at the other end; known once it uses the connection manager.
    pub(crate) process: Option<ProcessId>,
    /// Readable when that process has ended: a forked child of it may keep the connection
    /// open.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Attachments of the client, with the owners of their slots.
    pub(crate) attachments: BTreeMap<AttachmentNumber, OwnerId>,
    /// True if the poller reports room in the socket.
    pub(crate) writes_watched: bool,
    waiting: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

/// Result of [`Client::receive`].
#[derive(Debug)]
pub(crate) enum Received {
    Request(Option<RequestNumber>, Request, Vec<OwnedFd>),
    /// No packet is left.
    Nothing,
    /// The client has closed the connection.
    Closed,
    /// The packet is not a request of this protocol.
    Garbage(String),
}

/// Result of [`Client::send`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All messages were sent.
    All,
    /// Some messages wait for room in the socket.
    Waiting,
    /// The client has closed the connection.
    Gone,
    /// The client does not read, and too many messages wait.
    Stuck,
}

impl Client {
    pub(crate) fn new(socket: OwnedFd, peer: Peer) -> Client {
        Client {
            socket,
            peer,
            program: None,
            subscribed: false,
            watched: BTreeSet::new(),
            capture: None,
            connects: false,
            process: None,
            pidfd: None,
            writes_watched: false,
            attachments: BTreeMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Receives the next request; never waits.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Received {
        let packet = match packet::receive(&self.socket, buffer, RecvFlags::DONTWAIT) {
            Ok(packet) => packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
        // An empty packet looks like a close. It would be garbage, so nothing is lost.
        if packet.len == 0 {
            return Received::Closed;
        }
        if packet.truncated {
            return Received::Garbage("a message that is too long".into());
        }
        if packet.fds_lost {
            return Received::Garbage("descriptors that could not be taken".into());
        }
        match protocol::decode_numbered(&buffer[..packet.len]) {
            Ok((number, request)) => Received::Request(number, request, packet.fds),
            Err(garbage) => Received::Garbage(garbage.to_string()),
        }
    }

    /// Sends a reply to the request with this number, or an event if there is none. It
    /// waits if the socket is full.
    pub(crate) fn send(
        &mut self,
        number: Option<RequestNumber>,
        reply: &Reply,
        fds: Vec<OwnedFd>,
    ) -> Sent {
        match self.queue(number, reply, fds) {
            true => self.flush(),
            false => Sent::Stuck,
        }
    }

    /// Queues a reply or an event for [`Client::flush`]. Returns false if too many messages
    /// wait.
    pub(crate) fn queue(
        &mut self,
        number: Option<RequestNumber>,
        reply: &Reply,
        fds: Vec<OwnedFd>,
    ) -> bool {
        let limit = match self.connects {
            true => MAX_WAITING_EVENTS,
            false => MAX_WAITING,
        };
        if self.waiting.len() >= limit {
            return false;
        }
        self.waiting
            .push_back((protocol::encode_numbered(number, reply), fds));
        true
    }

    /// Returns true if messages wait to be sent.
    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends waiting messages while there is room in the socket.
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
