//! The core of a shard of an iWARP link: an engine, and the TCP sockets of its queue pairs.
//!
//! ```text
//!   Shard: lock, progress thread, polls
//!        |  turn, posted, next_deadline ...
//!        v
//!   StreamCore: Engine   <-- recvmsg, into the program's memory if much is expected
//!               sockets  --> sendmsg, from the program's memory
//!               rings    <-> the same bytes, to and from programs of this host (wire.rs)
//!               epoll: threads sleep on it, and it names the sockets that are ready
//! ```
//!
//! The core decides nothing about the protocol. It reads ready sockets, sends the output of
//! ready queue pairs, and carries out the events of streams.

mod faults;
mod io;
mod latest;
mod memory;
#[cfg(test)]
mod memory_tests;
mod observe;
mod room;
mod setup;
mod tap;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_iwarp::{Config, Engine, StreamEvent};
use ferroce_net::local::Doorbell;
use ferroce_net::qpns_of_slot;
use ferroce_roce::{
    AttrMask, Counter, Counters, MemRef, Memory, QpAttr, Regions, Time, VerbsError,
};
use ferroce_shard::{Caller, RECEIVE_BUDGET};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::Shutdown;

use faults::StreamFaults;
use latest::LatestSocket;
pub(crate) use observe::Observer;
use setup::{Stream, close};
pub use setup::{StreamSetup, StreamUser};
pub(crate) use tap::{Segment, StreamDirection};
pub(crate) use wire::{Addresses, MemoryStream, Wire};

/// Bytes received from a socket in one call while no place for them is known. They are copied
/// once more, from a processor's first cache.
const BUFFER: usize = 32 << 10;
/// Bytes received in one call from a stream with CRCs. An FPDU that is cut is copied once more,
/// to check its CRC, and FPDUs have up to 64 KiB.
const CHECKED_BUFFER: usize = 256 << 10;
/// Bytes received in one call behind those that go to their place: the next header, and little
/// of its payload.
const BEHIND: usize = 4 << 10;
/// Bytes received from a socket in a turn before others get the lock.
const TURN_BYTES: usize = 512 << 10;
/// Bytes of output that are prepared for one call.
const OUTPUT: usize = 256 << 10;
/// Turns that receive the last bytes of a connection which failed: more bytes than sockets hold. A hostile peer
/// could otherwise hold the lock for good.
const LAST_TURNS: usize = 256;
/// Calls that send in a turn before others get the lock.
const TURN_SENDS: usize = 16;
/// Expected payload from which on it is received at its place: to prepare that costs as much
/// as to copy a few KiB.
const DIRECT: u32 = 16 << 10;
/// Bytes that count as one datagram in the rules for progress threads.
const UNIT: usize = 4 << 10;
/// Ready sockets that one call names.
const READY: usize = 64;

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
    latest: LatestSocket,
    /// Queue pairs whose streams have a channel in shared memory.
    in_memory: Vec<u32>,
    /// Time from which on a turn looks at the sockets.
    sockets_due: Time,
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
            latest: LatestSocket::default(),
            in_memory: Vec::new(),
            sockets_due: Time::ZERO,
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

    /// Returns the doorbell of the channels in shared memory.
    pub(crate) fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Returns descriptors of which one is readable while a socket is ready, or rung.
    pub(crate) fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        let mut fds = vec![self.epoll.try_clone()?];
        for fd in self.doorbell.descriptors() {
            fds.push(fd.try_clone_to_owned()?);
        }
        Ok(fds)
    }

    /// Receives, handles timers and sends. Returns the amount received, in units of a datagram.
    pub(crate) fn turn(&mut self, now: Time, process: &mut impl Observer, caller: Caller) -> usize {
        let mut received = self.receive_in_memory(now, process);
        if self.looks_at_sockets(now) {
            received += match self.socket_to_poll(caller) {
                Some(qpn) => self.receive_from_socket(now, process, qpn),
                None if self.streams.is_empty() => 0,
                None => self.receive_ready(now, process),
            };
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

    /// Returns the queue pair whose socket is read without asking epoll, which would cost a
    /// system call: the only one, or in most polls the one that received last. epoll also reports
    /// when a full socket has room for much; to try again in each poll would send little at a
    /// time.
    fn socket_to_poll(&mut self, caller: Caller) -> Option<u32> {
        let qpn = match self.streams.len() {
            1 => *self.streams.keys().next()?,
            _ if caller == Caller::Poller => self.latest.next_poll()?,
            _ => {
                self.latest.look_at_all();
                return None;
            }
        };
        let stream = self.streams.get(&qpn)?;
        (!stream.is_blocked).then_some(qpn)
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
                received += self.receive_from_socket(now, process, qpn);
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
            let Some(stream) = self.streams.get_mut(&qpn) else {
                break;
            };
            self.engine.direct_places(qpn, &mut self.places);
            let expected: u32 = self.places.iter().map(|(_, bytes)| *bytes).sum();
            // A capture takes the bytes from the buffer, and so does a ring.
            if expected < DIRECT || stream.tap.is_some() || stream.wire.memory().is_some() {
                self.places.clear();
            }
            let room = match (self.places.is_empty(), stream.has_crcs) {
                (true, true) => CHECKED_BUFFER,
                (true, false) => BUFFER,
                (false, _) => BEHIND,
            };
            let buffer = &mut self.buffer[..room];
            // SAFETY: the engine has just checked the keys of the places, and this thread
            // holds the lock of the shard.
            let mut got = unsafe { stream.receive(&self.places, buffer) };
            if let Err(error) = &got
                && error.raw_os_error() == Some(libc::EFAULT)
            {
                // The engine finds the fault when it writes the bytes.
                self.places.clear();
                // SAFETY: there are no places.
                got = unsafe { stream.receive(&[], buffer) };
            }
            let direct = match self.places.is_empty() {
                true => 0,
                false => expected as usize,
            };
            let is_memory = stream.wire.is_memory();
            match got {
                Ok(0) => {
                    self.engine.end_of_stream(now, qpn);
                    self.tap(process, qpn, |tap, emit| {
                        tap.end(StreamDirection::Received, emit)
                    });
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
                    self.count_received(is_memory, bytes);
                    total += bytes;
                    // A ring may have further chunks.
                    if bytes < direct + room && !is_memory {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!("connection of queue pair {qpn:#x}: {error}");
                    self.tap(process, qpn, |tap, emit| {
                        tap.reset(StreamDirection::Received, emit)
                    });
                    self.engine.reset(now, qpn);
                    total += 1;
                    break;
                }
            }
        }
        if total > 0 {
            self.latest.note(qpn, total > UNIT);
            self.end_receive(now, process, qpn);
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

    /// Sends output of a queue pair, about [`OUTPUT`] bytes at most. A queue pair with more is ready again.
    fn send(&mut self, now: Time, process: &mut impl Observer, qpn: u32) {
        self.begin_tap(process, qpn);
        let mut left = OUTPUT;
        loop {
            let Some(stream) = self.streams.get_mut(&qpn) else {
                return;
            };
            let Some(output) = self.engine.output(now, process.memory(), qpn, left) else {
                return;
            };
            let length = output.len();
            let sent = match length {
                0 => Ok((0, true)),
                _ => stream.wire.send(&stream.socket, output, process.memory()),
            };
            let accepted = sent.as_ref().map_or(0, |(bytes, _)| *bytes);
            left = left.saturating_sub(accepted);
            let is_memory = stream.wire.is_memory();
            if accepted > 0 && stream.tap.is_some() {
                self.copied.clear();
                // The call has just read the memory.
                let _read = output.copy_to(process.memory(), accepted, &mut self.copied);
                self.pass_sent(process, qpn);
            }
            self.engine.accepted(now, qpn, accepted);
            if accepted > 0 {
                self.count_sent(is_memory, accepted);
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
                    // The peer may have closed the connection after its last messages.
                    for _ in 0..LAST_TURNS {
                        if self.receive(now, process, qpn) < RECEIVE_BUDGET {
                            break;
                        }
                    }
                    return self.engine.reset(now, qpn);
                }
            }
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
                    self.tap(process, qpn, |tap, emit| {
                        tap.end(StreamDirection::Sent, emit)
                    });
                }
                StreamEvent::Closed { qpn, abort, cause } => {
                    self.tap(process, qpn, |tap, emit| match abort {
                        true => tap.reset(StreamDirection::Sent, emit),
                        false => tap.end(StreamDirection::Sent, emit),
                    });
                    self.forget_waiting(qpn);
                    if let Some(stream) = self.streams.remove(&qpn) {
                        self.remove_ring(qpn, &stream.wire);
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
        if self.end_wait(now, qpn) {
            self.send(now, process, qpn);
        }
        self.engine.destroy_qp(now, qpn)
    }

    /// Sends all messages that wait for the start of a stream: the process ends.
    pub(crate) fn flush(&mut self, now: Time, process: &mut impl Observer) {
        for qpn in self.streams.keys().copied().collect::<Vec<_>>() {
            if self.end_wait(now, qpn) {
                self.send(now, process, qpn);
            }
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
