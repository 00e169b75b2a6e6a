//! Splits received buffers into runs of this slot, and forwards packets of other slots.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_roce::{Counter, Counters, Datagram, IpId};

use crate::forward::{self, Flushed, Forwarder};
use crate::incoming::{Incoming, IncomingRun};
use crate::receiver::ReceiveStats;
use crate::recv_ring::Received;
use crate::{address, steering};

/// Splits received buffers by slot.
pub(crate) struct Sorter {
    slot: u8,
    forwarder: Forwarder,
    stats: ReceiveStats,
    /// Shared counters, updated beside `stats`.
    counters: Option<Arc<Counters>>,
}

/// Fields of the IP header of a buffer, and the size of its merged datagrams.
struct PacketInfo {
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

    /// Adds to a shared counter.
    fn report(&self, counter: Counter, n: usize) {
        if let Some(counters) = self.counters.as_ref().filter(|_| n > 0) {
            counters.add(counter, n as u64);
        }
    }

    /// Counts a discarded message. Returns 0, the number of datagrams delivered.
    fn discard(&mut self) -> usize {
        self.stats.discarded += 1;
        self.report(Counter::RxDiscarded, 1);
        0
    }

    /// Passes this slot's datagrams of a message to `each`, and forwards those of other slots
    /// from socket `forward_by`. Returns the number of datagrams delivered.
    pub(crate) fn sort<'a>(
        &mut self,
        message: Received<'a>,
        forward_by: &OwnedFd,
        each: &mut impl FnMut(&IncomingRun<'_>),
    ) -> usize {
        let (data, truncated) = (message.data, message.truncated);
        let Some(info) = PacketInfo::read(message) else {
            return self.discard();
        };
        if truncated || data.is_empty() {
            return self.discard();
        }
        let segment = info.segment.clamp(1, data.len());
        let segments = data.chunks(segment);
        if info.is_forwarded() {
            return segments.map(|bytes| self.adopt(bytes, each)).sum();
        }
        // A member of a multicast group receives packets for any queue pair.
        let multicast = info.destination.is_multicast();
        let mut run = IncomingRun {
            merged: info.incoming(),
            segment,
        };
        let (mut count, mut begun) = (0, 0);
        let mut deliver = |run: &mut IncomingRun<'a>, packets: Range<usize>| {
            if !packets.is_empty() {
                count += packets.len().div_ceil(segment);
                run.merged.datagram.payload = &data[packets];
                each(run);
            }
        };
        for (index, payload) in segments.enumerate() {
            if index > 0 && !multicast && steering::slot_of(payload) != self.slot {
                let at = index * segment;
                deliver(&mut run, begun..at);
                begun = at + payload.len();
                run.merged.datagram.payload = payload;
                let flushed = self.forwarder.push(forward_by, &run.merged);
                self.count_forwarded(flushed);
            }
        }
        deliver(&mut run, begun..data.len());
        let flushed = self.forwarder.flush(forward_by);
        self.count_forwarded(flushed);
        count
    }

    /// Delivers a packet that another slot has forwarded to this one.
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

    fn count_forwarded(&mut self, flushed: Flushed) {
        self.stats.forwarded += flushed.sent as u64;
        self.stats.forward_failed += flushed.lost as u64;
        self.report(Counter::RxForwarded, flushed.sent);
        self.report(Counter::RxForwardErr, flushed.lost);
    }
}

impl PacketInfo {
    fn read(message: Received<'_>) -> Option<PacketInfo> {
        let (source, source_port) = message.name.parse(message.name_len)?;
        let mut info = PacketInfo {
            source,
            source_port,
            destination: source,
            ifindex: 0,
            traffic_class: 0,
            hop_limit: 0,
            segment: usize::MAX,
        };
        let mut addressed = false;
        for item in message.control {
            let number = item.number().unwrap_or(0);
            match (item.level, item.kind) {
                (libc::SOL_IP, libc::IP_PKTINFO) => {
                    // ifindex, local address, destination address of the header.
                    info.ifindex = number as u32;
                    info.destination = address::v4(item.data.get(8..)?)?.into();
                    addressed = true;
                }
                (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                    info.destination = address::v6(item.data)?.into();
                    let ifindex = item.data.get(16..)?.first_chunk()?;
                    info.ifindex = u32::from_ne_bytes(*ifindex);
                    addressed = true;
                }
                (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                    info.traffic_class = number as u8;
                }
                (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                    info.hop_limit = number as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    info.segment = usize::try_from(number).ok()?;
                }
                _ => {}
            }
        }
        addressed.then_some(info)
    }

    fn is_forwarded(&self) -> bool {
        forward::is_forwarded(self.source, self.source_port, self.destination)
    }

    /// Returns a datagram with an empty payload.
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
