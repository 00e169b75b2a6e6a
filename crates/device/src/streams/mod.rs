//! The core of a shard of an iWARP link: an engine, and the TCP sockets of its queue pairs.
//!
//! ```text
//!   Shard: lock, progress thread, polls
//!        |  turn, posted, next_deadline ...
//!        v
//!   StreamCore: Engine   <-- recvmsg, into the program's memory if much is expected
//!               sockets  --> sendmsg, from the program's memory
//!               epoll: threads sleep on it, and it names the sockets that are ready
//! ```
//!
//! The core decides nothing about the protocol. It reads ready sockets, sends the output of
//! ready queue pairs, and carries out the events of streams.

mod faults;
mod io;
mod observe;
mod tap;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ferroce_iwarp::mpa::{Params, Role};
use ferroce_iwarp::{CloseCause, Config, Engine, StreamEvent};
use ferroce_net::local::Doorbell;
use ferroce_net::qpns_of_slot;
use ferroce_roce::{
    AttrMask, Counter, Counters, MemRef, Memory, QpAttr, Regions, Time, VerbsError,
};
use ferroce_shard::RECEIVE_BUDGET;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};

use crate::fork::NotForChildren;
use faults::StreamFaults;
pub(crate) use observe::Observer;
use tap::StreamTap;
pub(crate) use tap::{Segment, Way};

/// Bytes received from a socket in one call while no place for them is known. They are copied
/// once more, from a processor's first cache.
const BUFFER: usize = 32 << 10;
/// Bytes received in one call behind those that go to their place: the next header, and little
/// of its payload.
const BEHIND: usize = 4 << 10;
/// Bytes received from a socket in a turn before others get the lock.
const TURN_BYTES: usize = 512 << 10;
/// Bytes of output that are prepared for one call.
const OUTPUT: usize = 256 << 10;
/// Calls that send in a turn before others get the lock.
const TURN_SENDS: usize = 16;
/// Expected payload from which on it is received at its place: to prepare that costs as much
/// as to copy a few KiB.
const DIRECT: u32 = 16 << 10;
/// Bytes that count as one datagram in the rules for progress threads.
const UNIT: usize = 4 << 10;
/// Ready sockets that one call names.
const READY: usize = 64;
/// Segment size for a connection that does not tell its own: that of an MTU of 1500.
const DEFAULT_SEGMENT: u32 = 1440;

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
struct Stream {
    socket: OwnedFd,
    user: Arc<dyn StreamUser>,
    /// True if the socket did not take all output.
    is_blocked: bool,
    /// True if epoll reports when the socket has room.
    awaits_room: bool,
    role: Role,
    /// Request and Reply of the setup, for captures.
    frames: (Vec<u8>, Vec<u8>),
    /// The segments that a capture shows, once one has begun.
    tap: Option<Box<StreamTap>>,
    _not_for_children: NotForChildren,
}

/// An engine with its sockets. The owner serialises all calls.
pub(crate) struct StreamCore {
    pub(crate) engine: Engine,
    slot: u8,
    doorbell: Arc<Doorbell>,
    epoll: OwnedFd,
    streams: BTreeMap<u32, Stream>,
    counters: Arc<Counters>,
    buffer: Box<[u8]>,
    places: Vec<(MemRef, u32)>,
    /// True if ready queue pairs wait for the next turn.
    has_ready: bool,
    /// True if a capture may run.
    is_observed: bool,
    /// Sent bytes, for captures.
    copied: Vec<u8>,
    /// The faults; none unless some are in force.
    faults: Option<Box<StreamFaults>>,
}

impl core::fmt::Debug for StreamCore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("StreamCore")
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}

impl StreamCore {
    /// Creates the core of a slot.
    pub(crate) fn new(
        slot: u8,
        regions: &Arc<Regions>,
        counters: Arc<Counters>,
    ) -> std::io::Result<StreamCore> {
        let config = Config {
            qpns: qpns_of_slot(slot),
            careful_start: true,
            ..Config::default()
        };
        Ok(StreamCore {
            engine: Engine::new(config, Arc::clone(regions)),
            slot,
            doorbell: Arc::new(Doorbell::new()?),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            streams: BTreeMap::new(),
            counters,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            places: Vec::new(),
            has_ready: false,
            is_observed: false,
            copied: Vec::new(),
            faults: None,
        })
    }

    /// Returns the number of the slot.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// Returns a doorbell without channels: connections go through TCP.
    pub(crate) fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Returns a descriptor that is readable while a socket is ready.
    pub(crate) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.epoll.try_clone()
    }

    /// Gives a queue pair the stream of a connection.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
        setup: StreamSetup,
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
        let segment = io::segment_size(&socket).map_err(|e| failed("TCP_MAXSEG", e))?;
        let segment = if segment == 0 {
            DEFAULT_SEGMENT
        } else {
            segment
        };
        let data = epoll::EventData::new_u64(qpn.into());
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)
            .map_err(|e| failed("epoll", e.into()))?;
        self.engine.connect(now, qpn, params, segment)?;
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
            role: params.role,
            frames: (request, reply),
            tap: None,
            _not_for_children: not_for_children,
        };
        self.streams.insert(qpn, stream);
        self.begin_tap(process, qpn);
        if !is_sent {
            self.engine.reset(now, qpn);
        } else if self.faults.is_some() {
            // A new stream begins with an FPDU.
            self.take_in(now, qpn, &received);
            self.release(now, process);
        } else if !received.is_empty() {
            self.pass(process, qpn, Way::Received, &received);
            self.engine.receive(now, process.memory(), qpn, &received);
        }
        Ok(())
    }

    /// Receives, handles timers and sends. Returns the amount received, in units of a datagram.
    pub(crate) fn turn(&mut self, now: Time, process: &mut impl Observer) -> usize {
        let mut received = 0;
        if self.streams.len() == 1 {
            // To ask epoll first would cost a system call.
            let only = self
                .streams
                .iter()
                .next()
                .map(|(qpn, s)| (*qpn, s.is_blocked));
            if let Some((qpn, is_blocked)) = only {
                if is_blocked {
                    self.unblock(now, process, qpn);
                }
                received = self.receive(now, process, qpn);
            }
        } else if !self.streams.is_empty() {
            received = self.receive_ready(now, process);
        }
        if self.faults.is_some() {
            self.release(now, process);
        }
        if self.engine.next_timeout().is_some_and(|at| at <= now) {
            self.engine.handle_timeout(now);
        }
        self.transmit(now, process);
        received
    }

    fn receive_ready(&mut self, now: Time, process: &mut impl Observer) -> usize {
        let zero = rustix::event::Timespec::default();
        let mut list = [const { MaybeUninit::<epoll::Event>::uninit() }; READY];
        let ready = match epoll::wait(&self.epoll, &mut list, Some(&zero)) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return 0,
            Err(error) => {
                tracing::warn!("no ready sockets: {error}");
                return 0;
            }
        };
        let mut received = 0;
        for event in ready {
            let qpn = event.data.u64() as u32;
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::OUT) {
                self.unblock(now, process, qpn);
            }
            if flags.intersects(!epoll::EventFlags::OUT) {
                received += self.receive(now, process, qpn);
            }
        }
        received.min(RECEIVE_BUDGET)
    }

    /// Receives what has arrived on a socket, up to [`TURN_BYTES`].
    fn receive(&mut self, now: Time, process: &mut impl Observer, qpn: u32) -> usize {
        if self.faults.is_some() {
            return self.receive_late(now, process, qpn);
        }
        let mut total = 0;
        self.begin_tap(process, qpn);
        while total < TURN_BYTES {
            let Some(stream) = self.streams.get(&qpn) else {
                break;
            };
            self.engine.direct_places(qpn, &mut self.places);
            let expected: u32 = self.places.iter().map(|(_, bytes)| *bytes).sum();
            // A capture takes the bytes from the buffer.
            if expected < DIRECT || stream.tap.is_some() {
                self.places.clear();
            }
            let room = match self.places.is_empty() {
                true => BUFFER,
                false => BEHIND,
            };
            let buffer = &mut self.buffer[..room];
            // SAFETY: the engine has just checked the keys of the places, and this thread
            // holds the lock of the shard.
            let mut got = unsafe { io::receive(&stream.socket, &self.places, buffer) };
            if let Err(error) = &got
                && error.raw_os_error() == Some(libc::EFAULT)
            {
                // The engine finds the fault when it writes the bytes.
                self.places.clear();
                // SAFETY: there are no places.
                got = unsafe { io::receive(&stream.socket, &[], buffer) };
            }
            let direct = match self.places.is_empty() {
                true => 0,
                false => expected as usize,
            };
            match got {
                Ok(0) => {
                    self.engine.end_of_stream(now, qpn);
                    self.tap(process, qpn, |tap, emit| tap.end(Way::Received, emit));
                    total += 1;
                    break;
                }
                Ok(bytes) => {
                    let placed = bytes.min(direct);
                    if placed > 0 {
                        self.engine.placed(qpn, placed as u32);
                    }
                    let rest = bytes - placed;
                    if rest > 0 {
                        self.pass_received(process, qpn, rest);
                        let rest = &self.buffer[..rest];
                        self.engine.receive(now, process.memory(), qpn, rest);
                    }
                    self.counters.count(Counter::RcvdPkts);
                    self.counters.add(Counter::RcvdBytes, bytes as u64);
                    total += bytes;
                    if bytes < direct + room {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!("connection of queue pair {qpn:#x}: {error}");
                    self.tap(process, qpn, |tap, emit| tap.reset(Way::Received, emit));
                    self.engine.reset(now, qpn);
                    total += 1;
                    break;
                }
            }
        }
        match total >= TURN_BYTES {
            true => RECEIVE_BUDGET,
            false => total.div_ceil(UNIT),
        }
    }

    /// Sends the output of ready queue pairs, carries out events of streams, and reports
    /// events of verbs.
    pub(crate) fn transmit(&mut self, now: Time, process: &mut impl Observer) {
        self.has_ready = false;
        let mut sends = 0;
        loop {
            self.carry_out(process);
            if sends >= TURN_SENDS {
                self.has_ready = true;
                break;
            }
            let Some(qpn) = self.engine.poll_ready() else {
                break;
            };
            let is_blocked = self.streams.get(&qpn).is_none_or(|s| s.is_blocked);
            if !is_blocked {
                self.send(now, process, qpn);
                sends += 1;
            }
        }
        self.report(process);
    }

    /// Sends output of a queue pair.
    fn send(&mut self, now: Time, process: &mut impl Observer, qpn: u32) {
        self.begin_tap(process, qpn);
        loop {
            let Some(stream) = self.streams.get(&qpn) else {
                return;
            };
            let Some(output) = self.engine.output(now, process.memory(), qpn, OUTPUT) else {
                return;
            };
            let length = output.len();
            let sent = match length {
                0 => Ok((0, true)),
                _ => io::send(&stream.socket, output, process.memory()),
            };
            let accepted = sent.as_ref().map_or(0, |(bytes, _)| *bytes);
            if accepted > 0 && stream.tap.is_some() {
                self.copied.clear();
                // The socket has just read the memory.
                let _read = output.copy_to(process.memory(), accepted, &mut self.copied);
                self.pass_sent(process, qpn);
            }
            self.engine.accepted(now, qpn, accepted);
            if accepted > 0 {
                self.counters.count(Counter::SentPkts);
                self.counters.add(Counter::SentBytes, accepted as u64);
            }
            match sent {
                Ok((bytes, _)) if bytes == length => return,
                Ok((_, true)) => {}
                Ok((_, false)) => return self.block(qpn),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.block(qpn),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    return self.engine.output_fault(now, qpn);
                }
                Err(error) => {
                    tracing::debug!("connection of queue pair {qpn:#x}: {error}");
                    self.counters.count(Counter::SendErr);
                    return self.engine.reset(now, qpn);
                }
            }
        }
    }

    /// Waits until a socket has room.
    fn block(&mut self, qpn: u32) {
        if let Some(stream) = self.streams.get_mut(&qpn) {
            stream.is_blocked = true;
            if !core::mem::replace(&mut stream.awaits_room, true) {
                self.watch(qpn, epoll::EventFlags::IN | epoll::EventFlags::OUT);
            }
        }
    }

    /// Tries to send to a socket that was full.
    fn unblock(&mut self, now: Time, process: &mut impl Observer, qpn: u32) {
        let Some(stream) = self.streams.get_mut(&qpn) else {
            return;
        };
        stream.is_blocked = false;
        self.send(now, process, qpn);
        if let Some(stream) = self.streams.get_mut(&qpn)
            && !stream.is_blocked
            && core::mem::replace(&mut stream.awaits_room, false)
        {
            self.watch(qpn, epoll::EventFlags::IN);
        }
    }

    fn watch(&self, qpn: u32, events: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(qpn.into());
        if let Some(stream) = self.streams.get(&qpn)
            && let Err(error) = epoll::modify(&self.epoll, &stream.socket, data, events)
        {
            tracing::warn!("connection of queue pair {qpn:#x}: epoll: {error}");
        }
    }

    /// Carries out the events of streams.
    fn carry_out(&mut self, process: &mut impl Observer) {
        while let Some(event) = self.engine.poll_stream_event() {
            match event {
                StreamEvent::Established { qpn } => {
                    if let Some(stream) = self.streams.get(&qpn) {
                        stream.user.established();
                    }
                }
                StreamEvent::Shutdown { qpn } => {
                    if let Some(stream) = self.streams.get(&qpn) {
                        // A connection that is reset already has an error to read.
                        let _reset = rustix::net::shutdown(&stream.socket, Shutdown::Write);
                    }
                    self.tap(process, qpn, |tap, emit| tap.end(Way::Sent, emit));
                }
                StreamEvent::Closed { qpn, abort, cause } => {
                    self.tap(process, qpn, |tap, emit| match abort {
                        true => tap.reset(Way::Sent, emit),
                        false => tap.end(Way::Sent, emit),
                    });
                    self.forget_waiting(qpn);
                    if let Some(stream) = self.streams.remove(&qpn) {
                        close(&self.epoll, stream, abort, cause);
                    }
                }
            }
        }
    }

    /// Reports events of verbs.
    pub(crate) fn report(&mut self, process: &mut impl Observer) {
        while let Some(event) = self.engine.poll_event() {
            process.report(event);
        }
    }

    /// Changes attributes and state of a queue pair.
    pub(crate) fn modify_qp(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        // A message that has arrived before is received, and not flushed.
        if mask.contains(AttrMask::STATE) && self.streams.contains_key(&qpn) {
            self.receive(now, process, qpn);
        }
        self.engine.modify_qp(now, qpn, attr, mask)
    }

    /// Ends the connection of a queue pair in order.
    pub(crate) fn disconnect(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
    ) -> Result<(), VerbsError> {
        self.receive(now, process, qpn);
        self.engine.disconnect(now, qpn)
    }

    /// Destroys a queue pair. Messages that wait for the start of the stream are sent before.
    pub(crate) fn destroy_qp(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
    ) -> Result<(), VerbsError> {
        if self.engine.end_hold(now, qpn) {
            self.send(now, process, qpn);
        }
        self.engine.destroy_qp(now, qpn)
    }

    /// Sends all messages that wait for the start of a stream: the process ends.
    pub(crate) fn flush(&mut self, now: Time, process: &mut impl Observer) {
        for qpn in self.streams.keys() {
            self.engine.end_hold(now, *qpn);
        }
        self.transmit(now, process);
    }

    /// Returns the time of the next turn if no socket becomes ready before.
    pub(crate) fn next_deadline(&self, now: Time) -> Option<Time> {
        match self.has_ready {
            true => Some(now),
            false => {
                let timeout = self.engine.next_timeout();
                timeout.into_iter().chain(self.next_due()).min()
            }
        }
    }

    /// Copies unsent bytes of regions that have ended.
    pub(crate) fn pass_through(&mut self, now: Time, memory: &dyn Memory) {
        self.engine.own_outputs(now, memory);
    }
}

/// Closes the socket of a stream.
fn close(epoll: &OwnedFd, stream: Stream, abort: bool, cause: CloseCause) {
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
