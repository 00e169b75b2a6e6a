//! [`HostWire`]: the wire of a program, over UDP sockets and channels in shared memory.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ferroce_roce::{Counter, Counters, Path};

use super::doorbell::Doorbell;
use super::end::{End, Readiness};
use super::host_addresses::HostAddresses;
use super::memory::RingView;
use super::record;
use super::ring::{Broken, Reader, Writer, Written};
use crate::incoming::IncomingRun;
use crate::send_error::SendError;
use crate::steering;
use crate::udp_wire::{UdpSender, UdpWire};
use crate::wire::{Properties, Scope, Source, Wire, WireSender};

/// The longest record: a whole run.
const MAX_RECORD: usize = 1 << 16;

/// UDP sockets, and channels to programs of this host.
pub struct HostWire {
    udp: UdpWire,
    channels: Vec<Incoming>,
    /// The channel to read first.
    first: usize,
    doorbell: Arc<Doorbell>,
    counters: Arc<Counters>,
    /// A record, copied out of shared memory.
    buffer: Box<[u8]>,
    addresses: HostAddresses,
    is_busy: bool,
    process: ThisProcess,
}

/// The sending half.
pub struct HostSender {
    udp: UdpSender,
    channels: Vec<Outgoing>,
    counters: Arc<Counters>,
    process: ThisProcess,
}

/// The process that has the channels. A forked child does not have their memory.
#[derive(Copy, Clone)]
struct ThisProcess {
    forks: fn() -> u32,
    before: u32,
}

struct Incoming {
    end: Arc<End>,
    reader: Reader<RingView>,
    is_broken: bool,
}

struct Outgoing {
    end: Arc<End>,
    writer: Writer<RingView>,
    /// Position of the reader when a run was given up. Until the reader moves, runs that find
    /// no room are dropped.
    given_up: Option<u64>,
}

impl ThisProcess {
    #[inline]
    fn is_current(self) -> bool {
        (self.forks)() == self.before
    }
}

impl HostWire {
    /// Returns a wire without channels. `forks` counts the forks that led to this process, so
    /// that a child leaves the channels alone.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn new(udp: UdpWire, counters: Arc<Counters>, forks: fn() -> u32) -> io::Result<HostWire> {
        Ok(HostWire {
            addresses: HostAddresses::new(udp.ifindex()),
            udp,
            channels: Vec::new(),
            first: 0,
            doorbell: Arc::new(Doorbell::new()?),
            counters,
            buffer: Box::default(),
            is_busy: false,
            process: ThisProcess {
                forks,
                before: forks(),
            },
        })
    }

    /// Returns the descriptor and the flags for threads that sleep.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Adds a channel to both halves of the wire.
    ///
    /// # Errors
    /// If the kernel refuses to watch the channel.
    pub fn connect(&mut self, sender: &mut HostSender, end: &Arc<End>) -> io::Result<()> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; MAX_RECORD].into();
        }
        self.doorbell.add(end)?;
        self.channels.push(Incoming {
            end: Arc::clone(end),
            reader: end.reader(),
            is_broken: false,
        });
        sender.channels.push(Outgoing {
            end: Arc::clone(end),
            writer: end.writer(),
            given_up: None,
        });
        Ok(())
    }

    /// Forgets closed channels. Packets that have arrived before are still received.
    pub fn remove_closed(&mut self, sender: &mut HostSender) {
        self.doorbell.remove_closed();
        self.channels.retain(Incoming::is_of_use);
        sender.channels.retain(|channel| !channel.end.is_closed());
    }

    /// Receives packets from all channels, up to about `max`.
    fn receive_in_memory(&mut self, max: usize, each: &mut impl FnMut(&IncomingRun<'_>)) -> usize {
        let (mut count, mut bytes, mut ended) = (0, 0, false);
        let channels = self.channels.len();
        for index in 0..channels {
            let channel = &mut self.channels[(self.first + index) % channels];
            let before = channel.reader.head();
            while count < max {
                match channel.reader.read(&mut self.buffer) {
                    Ok(Some((header, length))) => {
                        let payload = &self.buffer[..length];
                        let Some(run) = record::decode(&header, payload, channel.end.peer()) else {
                            self.counters.count(Counter::RxDiscarded);
                            // A hostile process could write such records without end.
                            count += 1;
                            continue;
                        };
                        if !self.addresses.allow(&run) {
                            self.counters.count(Counter::RxWrongPeer);
                            count += 1;
                            continue;
                        }
                        count += length.div_ceil(run.segment);
                        bytes += length;
                        each(&run);
                    }
                    Ok(None) => {
                        ended |= channel.end.is_closed();
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
                channel.wake_waiting_writer();
            }
            if count >= max {
                // The others come first in the next turn.
                self.first = (self.first + index + 1) % channels;
                break;
            }
        }
        if ended {
            self.channels.retain(Incoming::is_of_use);
            self.first = 0;
        }
        if count > 0 {
            self.is_busy = true;
            self.counters.add(Counter::LocalRcvdPkts, count as u64);
            self.counters.add(Counter::LocalRcvdBytes, bytes as u64);
        }
        count
    }
}

impl Incoming {
    /// Returns true unless the channel is closed and all its packets were received.
    fn is_of_use(&self) -> bool {
        !self.end.is_closed() || !self.is_broken && self.end.has_unread(self.reader.head())
    }

    /// Wakes a writer that waits for room, if it sleeps.
    fn wake_waiting_writer(&self) {
        if self.reader.take_waiting_writer() && self.end.take_sleeper() {
            self.end.wake();
        }
    }
}

impl HostSender {
    /// Returns the channel to a slot: the newest that is not closed.
    fn channel_to(&mut self, slot: u8) -> Option<&mut Outgoing> {
        let is_current = self.process.is_current();
        let mut channels = self.channels.iter_mut().rev();
        channels.find(|c| is_current && c.end.peer() == slot && !c.end.is_closed())
    }

    /// Writes a run into the ring of its destination.
    fn send_in_memory(
        &mut self,
        path: &Path,
        segment: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let slot = steering::slot_of(bytes);
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
                end.wake();
                *given_up = None;
            }
            Ok(Written::Full) if end.readiness() == Readiness::Closed => {
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
        let packets = bytes.len().div_ceil(segment.max(1));
        self.counters.add(Counter::LocalSentPkts, packets as u64);
        self.counters
            .add(Counter::LocalSentBytes, bytes.len() as u64);
        Ok(())
    }
}

/// Returns the error for a program that has ended.
fn gone(slot: u8) -> SendError {
    let what = format!("the program with slot {slot} has ended");
    SendError::Dropped(io::Error::new(io::ErrorKind::BrokenPipe, what))
}

impl Wire for HostWire {
    type Sender = HostSender;

    fn take_sender(&mut self) -> HostSender {
        HostSender {
            udp: self.udp.take_sender(),
            channels: Vec::new(),
            counters: Arc::clone(&self.counters),
            process: self.process,
        }
    }

    #[inline]
    fn receive(
        &mut self,
        scope: Scope,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        if self.channels.is_empty() || !self.process.is_current() {
            return self.udp.receive(scope, max, each);
        }
        let count = self.receive_in_memory(max, &mut each);
        let enough = match scope {
            Scope::Memory => true,
            // The caller comes again at once: descriptors stay readable.
            Scope::EitherFamily | Scope::LastFamily => count > 0,
            Scope::AllFamilies | Scope::OneMessage => false,
        };
        if enough {
            return Ok(count);
        }
        let rest = max.saturating_sub(count).max(max.min(1));
        let of_sockets = self.udp.receive(scope, rest, each)?;
        if of_sockets > 0 {
            self.is_busy = false;
        }
        Ok(count + of_sockets)
    }

    /// Returns the sockets, and the doorbell.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let mut fds = self.udp.descriptors()?;
        fds.push(self.doorbell.as_fd().try_clone_to_owned()?);
        Ok(fds)
    }

    fn join_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.udp.join_multicast(group)
    }

    fn leave_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.udp.leave_multicast(group)
    }

    fn report_hop_limits(&mut self, report: bool) -> io::Result<()> {
        self.udp.report_hop_limits(report)
    }

    #[inline]
    fn is_memory_busy(&self) -> bool {
        self.is_busy
    }

    #[inline]
    fn has_packet_in_memory(&self) -> bool {
        let mut channels = self.channels.iter();
        channels.any(|channel| channel.end.has_unread(channel.reader.head()))
    }

    fn properties(&self) -> Properties {
        self.udp.properties()
    }
}

impl WireSender for HostSender {
    #[inline]
    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError> {
        match path.in_memory {
            true => self.send_in_memory(path, segment, bytes),
            false => self.udp.send(path, segment, bytes),
        }
    }

    fn give_up(&mut self, path: &Path, bytes: &[u8]) {
        if path.in_memory
            && let Some(channel) = self.channel_to(steering::slot_of(bytes))
        {
            channel.given_up = Some(channel.writer.head());
        }
    }

    fn bind(&mut self, want: u16, source: Source) -> io::Result<u16> {
        self.udp.bind(want, source)
    }
}
