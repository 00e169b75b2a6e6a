//! The channels of a slot, without I/O: records from and to the rings of other slots.
//!
//! [`HostWire`](super::HostWire) runs this code over mapped memory and sockets. The simulator
//! runs it over memory of its own, in which processes die between any two stores.

use core::ops::Deref;
use std::io;
use std::sync::Arc;

use ferroce_roce::{Counter, Counters, Path};

use super::bugs::{Bug, Injected};
use super::host_addresses::{HostAddresses, HostLookup};
use super::record;
use super::ring::{
    Broken, Reader, RingMemory, Writer, Written, arm, disarm, has_record, take_sleeper,
};
use crate::incoming::IncomingRun;
use crate::send_error::SendError;
use crate::steering;
use crate::wire::Scope;

/// The longest record: a whole run.
const MAX_RECORD: usize = 1 << 16;

/// A process's end of a channel: two rings, and a way to wake the process at the other end.
pub trait Endpoint {
    /// The memory of a ring.
    type Ring: RingMemory + Clone;

    /// Returns the slot at the other end.
    fn peer(&self) -> u8;
    /// Returns the ring that this end writes to.
    fn outgoing(&self) -> &Self::Ring;
    /// Returns the ring that this end reads from.
    fn incoming(&self) -> &Self::Ring;
    /// Returns true if this end is closed.
    fn is_closed(&self) -> bool;
    /// Closes this end. The other end learns of it.
    fn close(&self);
    /// Returns true if either end is closed. It may take a system call.
    fn is_gone(&self) -> bool;
    /// Wakes the threads that sleep at the other end.
    fn wake(&self);
    /// Notes the position up to which the incoming ring was read.
    fn note_read(&self, head: u64);

    /// Sets the flag of a thread that wants to sleep.
    fn arm(&self) {
        arm(self.incoming());
    }

    /// Clears the flag of a thread that slept.
    fn disarm(&self) {
        disarm(self.incoming());
    }
}

impl<H: Deref<Target: Endpoint>> Endpoint for H {
    type Ring = <H::Target as Endpoint>::Ring;

    #[inline]
    fn peer(&self) -> u8 {
        (**self).peer()
    }

    #[inline]
    fn outgoing(&self) -> &Self::Ring {
        (**self).outgoing()
    }

    #[inline]
    fn incoming(&self) -> &Self::Ring {
        (**self).incoming()
    }

    #[inline]
    fn is_closed(&self) -> bool {
        (**self).is_closed()
    }

    fn close(&self) {
        (**self).close();
    }

    fn is_gone(&self) -> bool {
        (**self).is_gone()
    }

    fn wake(&self) {
        (**self).wake();
    }

    #[inline]
    fn note_read(&self, head: u64) {
        (**self).note_read(head);
    }
}

/// The channels that a slot receives from.
pub struct Inbound<E: Endpoint, L> {
    channels: Vec<Incoming<E>>,
    /// The channel to read first.
    first: usize,
    counters: Arc<Counters>,
    /// A record, copied out of shared memory.
    buffer: Box<[u8]>,
    addresses: HostAddresses<L>,
    injected: Injected,
}

/// The channels that a slot sends through.
pub struct Outbound<E: Endpoint> {
    channels: Vec<Outgoing<E>>,
    counters: Arc<Counters>,
    injected: Injected,
}

struct Incoming<E: Endpoint> {
    end: E,
    reader: Reader<E::Ring>,
    is_broken: bool,
}

struct Outgoing<E: Endpoint> {
    end: E,
    writer: Writer<E::Ring>,
    /// Position of the reader when a run was given up. Until the reader moves, runs that find
    /// no room are dropped.
    given_up: Option<u64>,
}

impl<E: Endpoint, L: HostLookup> Inbound<E, L> {
    /// Returns no channels.
    pub fn new(counters: Arc<Counters>, lookup: L) -> Inbound<E, L> {
        Inbound {
            channels: Vec::new(),
            first: 0,
            counters,
            buffer: Box::default(),
            addresses: HostAddresses::new(lookup),
            injected: Injected::default(),
        }
    }

    /// Enables one injected bug in channels that are added later.
    #[cfg(feature = "bugs")]
    pub fn inject(&mut self, injected: Injected) {
        self.injected = injected;
    }

    /// Adds a channel.
    pub fn add(&mut self, end: E) {
        if self.buffer.is_empty() {
            self.buffer = vec![0; MAX_RECORD].into();
        }
        #[allow(unused_mut)] // with injected bugs it changes
        let mut reader = Reader::new(end.incoming().clone());
        #[cfg(feature = "bugs")]
        reader.inject(self.injected);
        self.channels.push(Incoming {
            end,
            reader,
            is_broken: false,
        });
    }

    /// Returns true if there is no channel.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Returns the ends of all channels.
    pub fn ends(&self) -> impl Iterator<Item = &E> {
        self.channels.iter().map(|channel| &channel.end)
    }

    /// Forgets closed channels. Those with packets that have not been received remain until they
    /// have.
    pub fn remove_closed(&mut self) {
        let injected = self.injected;
        self.channels.retain(|channel| channel.is_of_use(injected));
        self.first = 0;
    }

    /// Returns true if a packet waits.
    #[inline]
    pub fn has_packet(&self) -> bool {
        let mut channels = self.channels.iter();
        channels.any(|channel| has_record(channel.end.incoming(), channel.reader.head()))
    }

    /// Receives packets from all channels, up to about `max`. Returns their number.
    pub fn receive(&mut self, max: usize, each: &mut impl FnMut(&IncomingRun<'_>)) -> usize {
        let (mut count, mut bytes, mut ended) = (0, 0, false);
        let injected = self.injected;
        let channels = self.channels.len();
        let mut next = self.first;
        for _ in 0..channels {
            let channel = &mut self.channels[next];
            next += 1;
            if next == channels {
                next = 0;
            }
            let before = channel.reader.head();
            let mut last = None;
            while count < max {
                match channel.reader.read(&mut self.buffer) {
                    Ok(Some((header, length))) => {
                        last = Some((header, length));
                        let payload = &self.buffer[..length];
                        let Some(run) = record::decode(&header, payload, channel.end.peer()) else {
                            self.counters.count(Counter::RxDiscarded);
                            // A hostile process could write such records without end.
                            count += 1;
                            continue;
                        };
                        if !self.addresses.allow(&run) && !injected.has(Bug::AcceptForeignAddress) {
                            self.counters.count(Counter::RxWrongPeer);
                            count += 1;
                            continue;
                        }
                        count += packets(length, run.segment);
                        bytes += length;
                        each(&run);
                    }
                    Ok(None) => {
                        ended |= channel.end.is_closed();
                        if ended
                            && injected.has(Bug::RepeatRecordAfterClose)
                            && let Some((header, length)) = last
                            && let payload = &self.buffer[..length]
                            && let Some(run) = record::decode(&header, payload, channel.end.peer())
                        {
                            each(&run);
                        }
                        break;
                    }
                    Err(Broken) => {
                        tracing::warn!(
                            "the program with slot {} has broken the memory that it shares with \
                             this one: the channel is closed",
                            channel.end.peer()
                        );
                        self.counters.count(Counter::RxDiscarded);
                        channel.end.close();
                        channel.is_broken = true;
                        ended = true;
                        break;
                    }
                }
            }
            if channel.reader.head() != before {
                channel.end.note_read(channel.reader.head());
                if !injected.has(Bug::ForgetWriterWakeup) {
                    channel.wake_waiting_writer();
                }
            }
            if count >= max {
                // The others come first in the next turn.
                self.first = next;
                break;
            }
        }
        if ended {
            self.remove_closed();
        }
        if count > 0 {
            self.counters.add(Counter::LocalRcvdPkts, count as u64);
            self.counters.add(Counter::LocalRcvdBytes, bytes as u64);
        }
        count
    }
}

impl<E: Endpoint> Incoming<E> {
    /// Returns true unless the channel is closed and all its packets were received.
    fn is_of_use(&self, injected: Injected) -> bool {
        if !self.end.is_closed() {
            return true;
        }
        let has_unread = has_record(self.end.incoming(), self.reader.head());
        !self.is_broken && has_unread && !injected.has(Bug::DropRecordsOfDeadPeer)
    }

    /// Wakes a writer that waits for room, if it sleeps.
    fn wake_waiting_writer(&self) {
        if self.reader.take_waiting_writer() && take_sleeper(self.end.outgoing()) {
            self.end.wake();
        }
    }
}

impl<E: Endpoint> Outbound<E> {
    /// Returns no channels.
    pub fn new(counters: Arc<Counters>) -> Outbound<E> {
        Outbound {
            channels: Vec::new(),
            counters,
            injected: Injected::default(),
        }
    }

    /// Enables one injected bug in channels that are added later.
    #[cfg(feature = "bugs")]
    pub fn inject(&mut self, injected: Injected) {
        self.injected = injected;
    }

    /// Adds a channel.
    pub fn add(&mut self, end: E) {
        #[allow(unused_mut)] // with injected bugs it changes
        let mut writer = Writer::new(end.outgoing().clone());
        #[cfg(feature = "bugs")]
        writer.inject(self.injected);
        self.channels.push(Outgoing {
            end,
            writer,
            given_up: None,
        });
    }

    /// Forgets closed channels.
    pub fn remove_closed(&mut self) {
        self.channels.retain(|channel| !channel.end.is_closed());
    }

    /// Returns the end of the channel to a slot: the newest that is not closed.
    pub fn end_to(&mut self, slot: u8) -> Option<&E> {
        self.channel_to(slot).map(|channel| &channel.end)
    }

    fn channel_to(&mut self, slot: u8) -> Option<&mut Outgoing<E>> {
        let mut channels = self.channels.iter_mut().rev();
        channels.find(|channel| channel.end.peer() == slot && !channel.end.is_closed())
    }

    /// Writes a run into the ring of its destination.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if the ring has no room. [`SendError::Dropped`] if the other
    /// process has ended, or if a run to it was given up and it has taken nothing out since.
    pub fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError> {
        let (slot, injected) = (steering::slot_of(bytes), self.injected);
        let Some(channel) = self.channel_to(slot) else {
            return Err(gone(slot));
        };
        let Outgoing {
            end,
            writer,
            given_up,
        } = channel;
        match writer.write(record::encode(path, segment), bytes) {
            Ok(Written::Quiet) => *given_up = None,
            Ok(Written::WakeReader) => {
                if !injected.has(Bug::ForgetReaderWakeup) {
                    end.wake();
                }
                *given_up = None;
            }
            Ok(Written::Full) if end.is_gone() => {
                end.close();
                return Err(gone(slot));
            }
            Ok(Written::Full) if *given_up == Some(writer.head()) => {
                let what = format!("the program with slot {slot} receives nothing");
                return Err(SendError::Dropped(io::Error::other(what)));
            }
            Ok(Written::Full) => return Err(SendError::WouldBlock),
            Err(Broken) => {
                tracing::warn!("slot {slot} has broken the memory that it shares: closed");
                end.close();
                return Err(gone(slot));
            }
        }
        let packets = packets(bytes.len(), segment.max(1));
        self.counters.add(Counter::LocalSentPkts, packets as u64);
        self.counters
            .add(Counter::LocalSentBytes, bytes.len() as u64);
        Ok(())
    }

    /// Returns the memory behind the fronts of rings to the kernel, where no record lay since the last call. Returns
    /// true if some is left: call it again later.
    pub fn shrink(&mut self) -> bool {
        let channels = self.channels.iter_mut();
        channels.fold(false, |left, channel| channel.writer.shrink() | left)
    }

    /// Ends the wait of a run for room: until the reader makes some, runs to it are dropped.
    pub fn give_up(&mut self, bytes: &[u8]) {
        if let Some(channel) = self.channel_to(steering::slot_of(bytes)) {
            channel.given_up = Some(channel.writer.head());
        }
    }
}

/// Returns the number of packets of `segment` bytes, of which the last may be shorter. Most runs are
/// one packet, and a division takes as long as ten other instructions.
#[inline]
fn packets(bytes: usize, segment: usize) -> usize {
    match bytes <= segment {
        true => usize::from(bytes > 0),
        false => bytes.div_ceil(segment),
    }
}

/// Returns the error for a program that has ended.
pub(super) fn gone(slot: u8) -> SendError {
    let what = format!("the program with slot {slot} has ended");
    SendError::Dropped(io::Error::new(io::ErrorKind::BrokenPipe, what))
}

/// Returns true if a call that found `count` packets in memory leaves the sockets alone.
#[inline]
pub fn is_enough(scope: Scope, count: usize) -> bool {
    match scope {
        Scope::Memory => true,
        // The caller comes again at once: descriptors stay readable.
        Scope::EitherFamily | Scope::LastFamily => count > 0,
        Scope::AllFamilies | Scope::OneMessage => false,
    }
}
