//! Packets that leave together.

use core::ops::Range;

use ferroce_wire::{Flow, FlowIcrc};

use super::{MAX_RUN_BYTES, MAX_RUN_PACKETS};

/// The way of a packet: what UDP and IP headers need to say.
#[derive(Copy, Clone, Debug)]
pub struct Path {
    /// Addresses and source port.
    pub flow: Flow,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// What the ICRCs of all packets on this way begin with.
    pub(super) icrc: FlowIcrc,
}

impl Path {
    /// A way.
    pub fn new(flow: Flow, traffic_class: u8, hop_limit: u8) -> Path {
        Path {
            flow,
            traffic_class,
            hop_limit,
            icrc: FlowIcrc::new(&flow),
        }
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Path) -> bool {
        self.flow == other.flow
            && self.traffic_class == other.traffic_class
            && self.hop_limit == other.hop_limit
    }
}

impl Eq for Path {}

/// Packets of equal size to one slot of one peer; the last may be shorter.
#[derive(Clone, Debug)]
pub struct Run {
    /// The way.
    pub path: Path,
    /// Which packets of the batch.
    pub packets: Range<usize>,
    /// Bytes of all packets but perhaps the last.
    pub segment: usize,
    /// Which of the batch's entries, each of which may be several packets.
    pub(super) entries: Range<usize>,
    pub(super) bytes: usize,
    /// The top byte of the destination QPN: by it peers steer whole runs.
    slot: u8,
}

impl Run {
    /// One that has yet to get its packets.
    pub(super) fn new(path: &Path, packet: usize, entry: usize, len: usize, slot: u8) -> Run {
        Run {
            path: *path,
            packets: packet..packet,
            segment: len,
            entries: entry..entry,
            bytes: 0,
            slot,
        }
    }

    /// The top byte of the destination QPN.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Whether it has room for a packet of so many bytes on that way.
    #[inline]
    pub(super) fn takes(&self, len: usize, path: &Path, slot: u8) -> bool {
        self.is_whole()
            && len <= self.segment
            && self.packets.len() < MAX_RUN_PACKETS
            && self.bytes + len <= MAX_RUN_BYTES
            && self.slot == slot
            && self.path == *path
    }

    /// Whether all its packets have the same size: a shorter one is the last.
    #[inline]
    fn is_whole(&self) -> bool {
        self.segment * self.packets.len() == self.bytes
    }

    /// How many packets of the same size it has room for.
    pub(super) fn room(&self) -> usize {
        let packets = MAX_RUN_PACKETS - self.packets.len();
        let room = packets.min((MAX_RUN_BYTES - self.bytes) / self.segment);
        if self.is_whole() { room } else { 0 }
    }

    /// Adds an entry of one packet.
    #[inline]
    pub(super) fn add(&mut self, len: usize) {
        self.packets.end += 1;
        self.entries.end += 1;
        self.bytes += len;
    }

    /// Adds up to so many packets like the last to the last entry; returns how many.
    pub(super) fn extend(&mut self, len: usize, most: usize) -> usize {
        if len != self.segment {
            return 0;
        }
        let count = most.min(self.room());
        self.packets.end += count;
        self.bytes += count * len;
        count
    }
}
