//! Runs: packets that are sent together.

use core::ops::Range;

use ferroce_wire::{Flow, FlowIcrc, ICRC_LEN, icrc};

/// The contents of the UDP and IP headers that all packets of a flow share.
#[derive(Copy, Clone, Debug)]
pub struct Path {
    /// Addresses and source port.
    pub flow: Flow,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// True if the packets travel through memory that is shared with the peer's process. They
    /// have no ICRC then.
    pub in_memory: bool,
    /// The part of the ICRC that all packets of the flow share.
    pub(super) icrc: FlowIcrc,
}

impl Path {
    /// Returns a path.
    pub fn new(flow: Flow, traffic_class: u8, hop_limit: u8) -> Path {
        Path {
            flow,
            traffic_class,
            hop_limit,
            in_memory: false,
            icrc: FlowIcrc::new(&flow),
        }
    }

    /// Splits the trailer off a packet of this path and returns the rest together with
    /// the trailer for the IPv4 identification 0. The given packet has the trailer for
    /// identification `ip_id`. Returns `None` if the trailer stays as it is.
    ///
    /// This recomputes the checksum of the whole packet. A network that cannot number the
    /// packets of a run needs it after all.
    pub fn clear_ip_id<'a>(
        &self,
        ip_id: u16,
        packet: &'a [u8],
    ) -> Option<(&'a [u8], [u8; ICRC_LEN])> {
        if ip_id == 0 || !self.flow.is_ipv4() {
            return None;
        }
        icrc::change_id(&self.flow, ip_id, 0, packet)
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Path) -> bool {
        self.flow == other.flow
            && self.traffic_class == other.traffic_class
            && self.hop_limit == other.hop_limit
            && self.in_memory == other.in_memory
    }
}

impl Eq for Path {}

/// The longest run that the network takes in one call, and the packets that may share it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RunLimits {
    /// Most packets in a run.
    pub packets: usize,
    /// Most bytes in a run, from the first BTH to the last ICRC.
    pub bytes: usize,
    /// Bits in which the destination QPNs of a run agree. A network that steers a run by
    /// bits of its first packet's destination QPN names those bits.
    pub qpn_mask: u32,
}

impl RunLimits {
    /// No limits: runs of any length, to any queue pairs of a peer.
    pub const NONE: RunLimits = RunLimits {
        packets: usize::MAX,
        bytes: usize::MAX,
        qpn_mask: 0,
    };
}

/// Packets of equal size to one peer; the last may be shorter.
#[derive(Clone, Debug)]
pub struct Run {
    /// The path of all its packets.
    pub path: Path,
    /// The packets, by their numbers in the batch.
    pub packets: Range<usize>,
    /// Bytes of each packet, except that the last may be shorter.
    pub segment: usize,
    /// Indices of the batch's entries, each of which may be several packets.
    pub(super) entries: Range<usize>,
    pub(super) bytes: usize,
    /// Destination QPN of the first packet.
    dest_qpn: u32,
}

impl Run {
    /// Returns a run without packets.
    pub(super) fn new(path: &Path, packet: usize, entry: usize, len: usize, dest_qpn: u32) -> Run {
        Run {
            path: *path,
            packets: packet..packet,
            segment: len,
            entries: entry..entry,
            bytes: 0,
            dest_qpn,
        }
    }

    /// Returns the destination QPN of the first packet. Those of the others agree with it
    /// in the bits of [`RunLimits::qpn_mask`].
    pub fn dest_qpn(&self) -> u32 {
        self.dest_qpn
    }

    /// Returns the number of packets. `Range::len` would check that its result is exact.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.packets.end - self.packets.start
    }

    /// Returns true if a packet of `len` bytes may follow in this run.
    pub(super) fn takes(&self, len: usize, path: &Path, dest_qpn: u32, limits: &RunLimits) -> bool {
        self.is_whole()
            && len <= self.segment
            && self.count() < limits.packets
            && len <= limits.bytes.saturating_sub(self.bytes)
            && (self.dest_qpn ^ dest_qpn) & limits.qpn_mask == 0
            && self.path == *path
    }

    /// Returns true if all packets have the same size. A shorter packet ends the run.
    #[inline]
    fn is_whole(&self) -> bool {
        self.segment * self.count() == self.bytes
    }

    /// Returns how many packets of the same size may follow.
    pub(super) fn room(&self, limits: &RunLimits) -> usize {
        let packets = limits.packets.saturating_sub(self.count());
        let room = packets.min(limits.bytes.saturating_sub(self.bytes) / self.segment);
        if self.is_whole() { room } else { 0 }
    }

    /// Adds an entry of one packet.
    #[inline]
    pub(super) fn add(&mut self, len: usize) {
        self.packets.end += 1;
        self.entries.end += 1;
        self.bytes += len;
    }

    /// Adds up to `most` packets of `len` bytes to the last entry. Returns how many.
    pub(super) fn extend(&mut self, len: usize, most: usize, limits: &RunLimits) -> usize {
        if len != self.segment {
            return 0;
        }
        let count = most.min(self.room(limits));
        self.packets.end += count;
        self.bytes += count * len;
        count
    }
}
