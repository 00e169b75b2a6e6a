//! Receiving on one slot: batches in, one datagram at a time out.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::address;
use crate::features::{self, Features};
use crate::forward::{self, Flushed, Forwarder};
use crate::incoming::Incoming;
use crate::multicast;
use crate::recv_ring::{BUFFERS, Received, RecvRing};
use crate::slot::SlotSockets;
use crate::steering;

/// How often [`Receiver::receive_busy`] looks at a family that has been quiet.
const QUIET_TURN: u32 = 16;

/// Reads the sockets of one slot.
///
/// It does not block. [`Receiver::fds`] are for `epoll`, level-triggered.
pub struct Receiver {
    sockets: SlotSockets,
    ring: RecvRing,
    sorter: Sorter,
    mmsg: bool,
    /// The family that spoke last.
    busy_v6: bool,
    calls: u32,
}

/// What a receiver has counted besides the datagrams it handed over.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct ReceiveStats {
    /// Packets of other slots, found in merged buffers and passed on.
    pub forwarded: u64,
    /// Such packets that could not be passed on.
    pub forward_failed: u64,
    /// Our packets that another slot found and passed on to us; they are among
    /// those handed over.
    pub adopted: u64,
    /// Datagrams thrown away because they made no sense: longer than a
    /// buffer, or passed on to the wrong slot.
    pub discarded: u64,
    /// Datagrams, merged ones counted as one, that the kernel dropped because the
    /// socket's buffer was full, as far as later datagrams have told.
    pub overflowed: u64,
}

impl Receiver {
    /// Reads the sockets of `slot`.
    pub fn new(slot: u8, sockets: SlotSockets) -> Receiver {
        Receiver::with_features(slot, sockets, &features::probe())
    }

    /// As [`Receiver::new`], with less than the kernel offers.
    pub fn with_features(slot: u8, sockets: SlotSockets, features: &Features) -> Receiver {
        Receiver {
            sockets,
            ring: RecvRing::new(),
            sorter: Sorter {
                slot,
                forwarder: Forwarder::new(features.gso),
                stats: ReceiveStats::default(),
                overflow: [0; 2],
            },
            mmsg: features.mmsg,
            busy_v6: false,
            calls: 0,
        }
    }

    /// The descriptors to wait on: IPv4 and, where there is one, IPv6.
    pub fn fds(&self) -> (RawFd, Option<RawFd>) {
        let v6 = self.sockets.v6.as_ref();
        (self.sockets.v4.as_raw_fd(), v6.map(AsRawFd::as_raw_fd))
    }

    /// The sockets themselves.
    pub fn sockets(&self) -> &SlotSockets {
        &self.sockets
    }

    /// Hands over datagrams that wait, until there is none left or `max` have been
    /// handed over (the last buffer is finished, so it may be some more). Returns
    /// how many it were.
    ///
    /// # Errors
    /// If the kernel fails; that nothing waits is no error.
    pub fn receive(&mut self, max: usize, mut each: impl FnMut(Incoming<'_>)) -> io::Result<usize> {
        let first = self.busy_v6;
        let count = self.drain(first, max, &mut each)?;
        Ok(count + self.drain(!first, max.saturating_sub(count), &mut each)?)
    }

    /// As [`Receiver::receive`], for those who call it over and over: looks at the
    /// IP family that has been quiet only every so many calls, which spares most
    /// calls one of two system calls. Zero does not mean that nothing waits.
    ///
    /// # Errors
    /// If the kernel fails; that nothing waits is no error.
    pub fn receive_busy(
        &mut self,
        max: usize,
        mut each: impl FnMut(Incoming<'_>),
    ) -> io::Result<usize> {
        self.calls = self.calls.wrapping_add(1);
        let quiet_one = self.calls.is_multiple_of(QUIET_TURN);
        self.drain(self.busy_v6 != quiet_one, max, &mut each)
    }

    /// What has been counted so far.
    pub fn stats(&self) -> ReceiveStats {
        self.sorter.stats
    }

    /// Receives what is sent to a multicast group on an interface. Joining twice
    /// is once.
    ///
    /// # Errors
    /// If there is no such interface or group, or one socket is in as many groups
    /// as the system allows. Slot 0 is in no groups.
    pub fn join_multicast(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        if self.sorter.slot == 0 {
            let why = "slot 0 is the daemon's and joins no multicast groups";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        multicast::join(&self.sockets, group, ifindex)
    }

    /// Ends [`Receiver::join_multicast`].
    ///
    /// # Errors
    /// If the kernel refuses; that it is not in the group is no error.
    pub fn leave_multicast(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        multicast::leave(&self.sockets, group, ifindex)
    }

    /// All that waits on one socket, up to about `max`.
    fn drain(
        &mut self,
        v6: bool,
        max: usize,
        each: &mut impl FnMut(Incoming<'_>),
    ) -> io::Result<usize> {
        let fd = match v6 {
            false => &self.sockets.v4,
            true => match &self.sockets.v6 {
                Some(fd) => fd,
                None => return Ok(0),
            },
        };
        let mut count = 0;
        while count < max {
            let want = (max - count).min(BUFFERS);
            let got = self.ring.fill(fd, want, self.mmsg)?;
            if got == 0 {
                break;
            }
            self.busy_v6 = v6;
            for index in 0..got {
                let message = self.ring.message(index);
                count += self.sorter.sort(message, v6, &self.sockets.v4, each);
            }
            if got < want && self.mmsg {
                break;
            }
        }
        Ok(count)
    }
}

/// Splits buffers into datagrams and decides whose they are.
struct Sorter {
    slot: u8,
    forwarder: Forwarder,
    stats: ReceiveStats,
    /// The kernel's drop counts, which wrap around, per socket.
    overflow: [u32; 2],
}

/// What the IP header said, and how long the merged datagrams are.
struct Envelope {
    source: IpAddr,
    source_port: u16,
    destination: IpAddr,
    ifindex: u32,
    traffic_class: u8,
    hop_limit: u8,
    segment: usize,
    overflow: Option<u32>,
}

impl Sorter {
    /// Hands over our datagrams of a message and passes on others'.
    fn sort(
        &mut self,
        message: Received<'_>,
        v6: bool,
        forward_by: &OwnedFd,
        each: &mut impl FnMut(Incoming<'_>),
    ) -> usize {
        let (data, truncated) = (message.data, message.truncated);
        let Some(envelope) = Envelope::read(message) else {
            self.stats.discarded += 1;
            return 0;
        };
        self.note_overflow(&envelope, v6);
        if truncated || data.is_empty() {
            self.stats.discarded += 1;
            return 0;
        }
        let segments = data.chunks(envelope.segment.clamp(1, data.len()));
        if envelope.is_forwarded() {
            return segments.map(|bytes| self.adopt(bytes, each)).sum();
        }
        // Group members get their copy whatever queue pair it is for.
        let multicast = envelope.destination.is_multicast();
        let mut count = 0;
        for (index, payload) in segments.enumerate() {
            let packet = envelope.incoming(payload);
            if index > 0 && !multicast && steering::slot_of(payload) != self.slot {
                let flushed = self.forwarder.push(forward_by, &packet);
                self.note_forwarded(flushed);
            } else {
                each(packet);
                count += 1;
            }
        }
        let flushed = self.forwarder.flush(forward_by);
        self.note_forwarded(flushed);
        count
    }

    /// Takes a packet that another slot has passed on to us.
    fn adopt(&mut self, bytes: &[u8], each: &mut impl FnMut(Incoming<'_>)) -> usize {
        match forward::unwrap(bytes) {
            Some(packet) if steering::slot_of(packet.payload) == self.slot => {
                self.stats.adopted += 1;
                each(packet);
                1
            }
            _ => {
                self.stats.discarded += 1;
                0
            }
        }
    }

    fn note_forwarded(&mut self, flushed: Flushed) {
        self.stats.forwarded += flushed.sent as u64;
        self.stats.forward_failed += flushed.lost as u64;
    }

    fn note_overflow(&mut self, envelope: &Envelope, v6: bool) {
        if let Some(total) = envelope.overflow {
            let last = &mut self.overflow[usize::from(v6)];
            self.stats.overflowed += u64::from(total.wrapping_sub(*last));
            *last = total;
        }
    }
}

impl Envelope {
    fn read(message: Received<'_>) -> Option<Envelope> {
        let (source, source_port) = message.name.parse(message.name_len)?;
        let mut envelope = Envelope {
            source,
            source_port,
            destination: source,
            ifindex: 0,
            traffic_class: 0,
            hop_limit: 0,
            segment: usize::MAX,
            overflow: None,
        };
        let mut addressed = false;
        for note in message.control {
            let number = note.number().unwrap_or(0);
            match (note.level, note.kind) {
                (libc::SOL_IP, libc::IP_PKTINFO) => {
                    // ifindex, local address, destination in the header.
                    envelope.ifindex = number as u32;
                    envelope.destination = address::v4(note.data.get(8..)?)?.into();
                    addressed = true;
                }
                (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                    envelope.destination = address::v6(note.data)?.into();
                    let ifindex = note.data.get(16..)?.first_chunk()?;
                    envelope.ifindex = u32::from_ne_bytes(*ifindex);
                    addressed = true;
                }
                (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                    envelope.traffic_class = number as u8;
                }
                (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                    envelope.hop_limit = number as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    envelope.segment = usize::try_from(number).ok()?;
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => envelope.overflow = Some(number as u32),
                _ => {}
            }
        }
        addressed.then_some(envelope)
    }

    fn is_forwarded(&self) -> bool {
        forward::is_forwarded(self.source, self.source_port, self.destination)
    }

    fn incoming<'a>(&self, payload: &'a [u8]) -> Incoming<'a> {
        Incoming {
            source: self.source,
            source_port: self.source_port,
            destination: self.destination,
            ifindex: self.ifindex,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            payload,
        }
    }
}
