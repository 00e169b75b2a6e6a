//! The beginning and the end of a stream: its socket, and the options of that socket.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ferroce_iwarp::CloseCause;
use ferroce_iwarp::mpa::{Params, Role};
use ferroce_roce::{MemRef, Time, VerbsError};
use rustix::event::epoll;
use rustix::net::{Shutdown, SocketAddrAny, sockopt};

use super::tap::{StreamDirection, StreamTap};
use super::{CHECKED_BUFFER, Observer, StreamCore, Wire, io};
use crate::fork::NotForChildren;

/// Segment size for a connection that does not report its own: that of an MTU of 1500.
const DEFAULT_SEGMENT: u32 = 1440;
/// Send buffer of a connection within the host; the kernel doubles it. The bytes between two
/// processors should stay in their caches. The default grows to 4 MiB, with which 64 KiB WRITEs had
/// 2.0 GB/s instead of 3.3.
const LOCAL_SEND_BUFFER: usize = 96 << 10;

/// The user of a stream, which learns of its beginning and end.
///
/// Methods are called under the lock of a shard, so they must not call the device.
pub trait StreamUser: Send + Sync {
    /// The queue pair is ready to send.
    fn established(&self);
    /// The connection has ended. No call follows.
    fn closed(&self, cause: CloseCause);
}

/// A TCP connection on which MPA setup has ended, for a queue pair.
pub struct StreamSetup {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// Properties of the stream.
    pub params: Params,
    /// The Request of the setup.
    pub request: Vec<u8>,
    /// The Reply of the setup. A responder sends it before anything else.
    pub reply: Vec<u8>,
    /// The peer's first bytes behind its Reply.
    pub received: Vec<u8>,
    /// The user of the stream.
    pub user: Arc<dyn StreamUser>,
}

impl core::fmt::Debug for StreamSetup {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("StreamSetup")
            .field("socket", &self.socket)
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

/// The stream of a queue pair.
pub(super) struct Stream {
    pub(super) socket: OwnedFd,
    pub(super) user: Arc<dyn StreamUser>,
    /// True if the socket did not take all output.
    pub(super) is_blocked: bool,
    /// True if epoll reports when the socket has room.
    pub(super) awaits_room: bool,
    pub(super) wire: Wire,
    pub(super) role: Role,
    pub(super) has_crcs: bool,
    /// Request and Reply of the setup, for captures.
    pub(super) frames: (Vec<u8>, Vec<u8>),
    /// The segments that a capture shows, once one has begun.
    pub(super) tap: Option<Box<StreamTap>>,
    _not_for_children: NotForChildren,
}

impl Stream {
    /// Receives bytes; see [`Wire::receive`].
    ///
    /// # Safety
    ///
    /// As for [`io::receive`].
    pub(super) unsafe fn receive(
        &mut self,
        places: &[(MemRef, u32)],
        buffer: &mut [u8],
    ) -> std::io::Result<usize> {
        // SAFETY: as for this function.
        unsafe { self.wire.receive(&self.socket, places, buffer) }
    }
}

impl StreamCore {
    /// Gives a queue pair the stream of a connection.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
        setup: StreamSetup,
        wire: Wire,
    ) -> Result<(), VerbsError> {
        let failed = |what: &str, error: std::io::Error| {
            VerbsError::NotConnected(format!(
                "connection of queue pair {qpn:#x}: {what}: {error}"
            ))
        };
        let StreamSetup {
            socket,
            params,
            request,
            reply,
            received,
            user,
        } = setup;
        sockopt::set_tcp_nodelay(&socket, true).map_err(|e| failed("TCP_NODELAY", e.into()))?;
        if !wire.is_memory() && is_local(&socket) {
            tune_within_host(&socket);
        }
        let segment = io::segment_size(&socket).map_err(|e| failed("TCP_MAXSEG", e))?;
        let segment = if segment == 0 {
            DEFAULT_SEGMENT
        } else {
            segment
        };
        let data = epoll::EventData::new_u64(qpn.into());
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)
            .map_err(|e| failed("epoll", e.into()))?;
        self.add_ring(qpn, &wire)
            .map_err(|e| failed("shared memory", e))?;
        let connected = self.engine.connect(now, qpn, params, segment);
        connected.inspect_err(|_| self.remove_ring(qpn, &wire))?;
        let mut not_for_children = NotForChildren::default();
        not_for_children.add(socket.as_fd());
        // The socket has sent nothing before, so there is room for a Reply.
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        let sent = match params.role {
            Role::Initiator => Ok(reply.len()),
            Role::Responder => rustix::net::send(&socket, &reply, flags),
        };
        let is_sent = sent == Ok(reply.len());
        let stream = Stream {
            socket,
            user,
            is_blocked: false,
            awaits_room: false,
            wire,
            role: params.role,
            has_crcs: params.crc,
            frames: (request, reply),
            tap: None,
            _not_for_children: not_for_children,
        };
        if stream.has_crcs && self.buffer.len() < CHECKED_BUFFER {
            self.buffer = vec![0; CHECKED_BUFFER].into_boxed_slice();
        }
        self.streams.insert(qpn, stream);
        self.begin_tap(process, qpn);
        if !is_sent {
            self.engine.reset(now, qpn);
        } else if self.faults.is_some() {
            // A new stream begins with an FPDU.
            self.take_in(now, qpn, &received);
            self.release(now, process);
        } else if !received.is_empty() {
            self.pass(process, qpn, StreamDirection::Received, &received);
            self.engine.receive(now, process.memory(), qpn, &received);
        }
        Ok(())
    }

    /// Returns the number of bytes that the socket of a queue pair has accepted, and the peer's TCP
    /// has not acknowledged; 0 without a stream.
    pub(crate) fn unacknowledged(&self, qpn: u32) -> usize {
        let stream = self.streams.get(&qpn);
        stream.map_or(0, |stream| {
            if let Some(unread) = stream.wire.unread() {
                return unread;
            }
            io::unacknowledged(&stream.socket).unwrap_or_else(|error| {
                tracing::warn!("connection of queue pair {qpn:#x}: SIOCOUTQ: {error}");
                0
            })
        })
    }
}

/// Returns true if both ends of a connection are on this host: the kernel gives a connection to
/// one of the host's own addresses that address as its source.
fn is_local(socket: &OwnedFd) -> bool {
    let ip = |address: SocketAddrAny| {
        let address = core::net::SocketAddr::try_from(address).ok()?;
        Some(address.ip().to_canonical())
    };
    let own = rustix::net::getsockname(socket).ok().and_then(ip);
    let peer = rustix::net::getpeername(socket).ok().flatten().and_then(ip);
    own.is_some() && own == peer
}

/// Sets the options of a TCP connection within the host, which no network slows down.
///
/// - The congestion control is one without pacing. BBR, the default of some systems, sends
///   segments by timers, and READ responses took 1.7 times as long.
/// - The send buffer is small.
fn tune_within_host(socket: &OwnedFd) {
    // Every Linux kernel has it, and lets every user choose it.
    if let Err(error) = sockopt::set_tcp_congestion(socket, "reno") {
        tracing::debug!("TCP_CONGESTION reno: {error}; the system's default stays");
    }
    if let Err(error) = sockopt::set_socket_send_buffer_size(socket, LOCAL_SEND_BUFFER) {
        tracing::debug!("SO_SNDBUF: {error}; the system's default stays");
    }
}

/// Closes the socket of a stream.
pub(super) fn close(epoll: &OwnedFd, stream: Stream, abort: bool, cause: CloseCause) {
    let _closed_with_the_socket = epoll::delete(epoll, &stream.socket);
    let closed = match abort {
        // The peer gets a reset.
        true => sockopt::set_socket_linger(&stream.socket, Some(core::time::Duration::ZERO)),
        // A forked child may have a copy of the descriptor: closing alone would end nothing.
        false => rustix::net::shutdown(&stream.socket, Shutdown::Write),
    };
    if let Err(error) = closed {
        tracing::trace!("a connection has ended before it was closed: {error}");
    }
    let Stream { socket, user, .. } = stream;
    drop(socket);
    user.closed(cause);
}
