//! Splitting received buffers into datagrams, and deciding whose they are.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_transport::{Counter, Counters, Datagram, IpId};

use crate::forward::{self, Flushed, Forwarder};
use crate::incoming::{Incoming, IncomingRun};
use crate::receiver::ReceiveStats;
use crate::recv_ring::Received;
use crate::{address, steering};

/// Splits buffers into datagrams and decides whose they are.
pub(crate) struct Sorter {
    slot: u8,
    forwarder: Forwarder,
    stats: ReceiveStats,
    /// Where else to count, if anywhere.
    counters: Option<Arc<Counters>>,
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
}

impl Sorter {
    pub(crate) fn new(slot: u8, gso: bool) -> Sorter {
        Sorter {
            slot,
            forwarder: Forwarder::new(gso),
            stats: ReceiveStats::default(),
            counters: None,
        }
    }

    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    pub(crate) fn stats(&self) -> ReceiveStats {
        self.stats
    }

    pub(crate) fn report_to(&mut self, counters: Arc<Counters>) {
        self.counters = Some(counters);
    }

    /// Counts in the shared counters as well.
    fn report(&self, counter: Counter, n: usize) {
        if let Some(counters) = self.counters.as_ref().filter(|_| n > 0) {
            counters.add(counter, n as u64);
        }
    }

    fn discard(&mut self) -> usize {
        self.stats.discarded += 1;
        self.report(Counter::RxDiscarded, 1);
        0
    }

    /// Hands over our datagrams of a message, and passes on others' by a socket of
    /// ours. Returns how many were handed over.
    pub(crate) fn sort<'a>(
        &mut self,
        message: Received<'a>,
        forward_by: &OwnedFd,
        each: &mut impl FnMut(&IncomingRun<'_>),
    ) -> usize {
        let (data, truncated) = (message.data, message.truncated);
        let Some(envelope) = Envelope::read(message) else {
            return self.discard();
        };
        if truncated || data.is_empty() {
            return self.discard();
        }
        let segment = envelope.segment.clamp(1, data.len());
        let segments = data.chunks(segment);
        if envelope.is_forwarded() {
            return segments.map(|bytes| self.adopt(bytes, each)).sum();
        }
        // Group members get their copy whatever queue pair it is for.
        let multicast = envelope.destination.is_multicast();
        let mut run = IncomingRun {
            merged: envelope.incoming(),
            segment,
        };
        let (mut count, mut begun) = (0, 0);
        let mut hand_over = |run: &mut IncomingRun<'a>, packets: Range<usize>| {
            if !packets.is_empty() {
                count += packets.len().div_ceil(segment);
                run.merged.datagram.payload = &data[packets];
                each(run);
            }
        };
        for (index, payload) in segments.enumerate() {
            if index > 0 && !multicast && steering::slot_of(payload) != self.slot {
                let at = index * segment;
                hand_over(&mut run, begun..at);
                begun = at + payload.len();
                run.merged.datagram.payload = payload;
                let flushed = self.forwarder.push(forward_by, &run.merged);
                self.note_forwarded(flushed);
            }
        }
        hand_over(&mut run, begun..data.len());
        let flushed = self.forwarder.flush(forward_by);
        self.note_forwarded(flushed);
        count
    }

    /// Takes a packet that another slot has passed on to us.
    fn adopt(&mut self, bytes: &[u8], each: &mut impl FnMut(&IncomingRun<'_>)) -> usize {
        match forward::unwrap(bytes) {
            Some(packet) if steering::slot_of(packet.payload) == self.slot => {
                self.stats.adopted += 1;
                self.report(Counter::RxAdopted, 1);
                each(&IncomingRun {
                    merged: packet,
                    segment: packet.payload.len(),
                });
                1
            }
            _ => self.discard(),
        }
    }

    fn note_forwarded(&mut self, flushed: Flushed) {
        self.stats.forwarded += flushed.sent as u64;
        self.stats.forward_failed += flushed.lost as u64;
        self.report(Counter::RxForwarded, flushed.sent);
        self.report(Counter::RxForwardErr, flushed.lost);
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
                _ => {}
            }
        }
        addressed.then_some(envelope)
    }

    fn is_forwarded(&self) -> bool {
        forward::is_forwarded(self.source, self.source_port, self.destination)
    }

    /// A datagram that has yet to get its payload.
    fn incoming(&self) -> Incoming<'static> {
        Incoming {
            datagram: Datagram {
                source: self.source,
                source_port: self.source_port,
                destination: self.destination,
                traffic_class: self.traffic_class,
                hop_limit: self.hop_limit,
                ip_id: IpId::UNSEEN,
                payload: &[],
            },
            ifindex: self.ifindex,
        }
    }
}
