//! Batches of packets to send.
//!
//! The engine writes headers and references to payload. The caller copies the payload
//! when it assembles the packets. Consecutive packets of equal size to one peer form a
//! [`Run`], of which only the last may be shorter: the network can take a run in one
//! call. [`RunLimits`] states how much it takes.

mod assemble;
mod packet;
mod run;

use ferroce_wire::{Bth, HeaderBuf};

use crate::memory::{Fault, MemRef};
pub use assemble::Trailer;
pub(crate) use packet::Origin;
use packet::Piece;
pub use packet::TxPacket;
pub use run::{Path, Run, RunLimits};

/// Full runs that a batch holds: more would not fit the processor's cache when they are
/// assembled.
const RUNS: usize = 2;

/// Bytes of the ICRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// Packets to send, filled by [`Engine::poll_transmit`](crate::Engine::poll_transmit).
///
/// A batch is reused, so that sending allocates no memory.
#[derive(Debug)]
pub struct Batch {
    limit: usize,
    run_limits: RunLimits,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// The first `used` entries are valid. The others are overwritten by later packets.
    entries: Vec<TxPacket>,
    used: usize,
    /// Number of packets.
    len: usize,
    /// Bytes of all packets, from BTH to ICRC.
    size: usize,
    runs: Vec<Run>,
    faults: Vec<(usize, Fault)>,
    /// True if a piece of payload may be memory of a GPU.
    reads_gpu: bool,
    /// Messages that complete once the batch is sent: queue pair and number of messages.
    pub(crate) handed_over: Vec<(u32, u32)>,
}

/// The properties of a new packet that are not in its header.
#[derive(Copy, Clone)]
pub(crate) struct NewPacket {
    pub(crate) qpn: u32,
    pub(crate) origin: Origin,
    pub(crate) payload_len: u32,
    pub(crate) flush_quirk: bool,
}

impl Batch {
    /// Returns a batch for up to `limit` packets or two full runs, in runs that keep to
    /// `run_limits`. If `limit` is more than one full run, the batch may take packets beyond
    /// its limits that complete its last run.
    pub fn new(limit: usize, run_limits: RunLimits) -> Batch {
        Batch {
            limit: limit.max(1),
            run_limits,
            bytes: Vec::new(),
            pieces: Vec::with_capacity(limit * 2),
            entries: Vec::with_capacity(limit),
            used: 0,
            len: 0,
            size: 0,
            runs: Vec::with_capacity(limit),
            faults: Vec::new(),
            reads_gpu: false,
            handed_over: Vec::new(),
        }
    }

    /// Returns the runs in sending order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the batch has no packet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the packets and uniform runs of packets that a run consists of.
    #[inline]
    pub fn entries(&self, run: &Run) -> &[TxPacket] {
        &self.entries[run.entries.clone()]
    }

    /// Returns a packet by its number in the batch.
    pub fn packet(&self, number: usize) -> TxPacket {
        let entry = self.entry(number);
        entry.step(number as u32 - entry.number)
    }

    /// Returns the entry that contains a packet.
    fn entry(&self, number: usize) -> &TxPacket {
        let entries = &self.entries[..self.used];
        let behind = entries.partition_point(|entry| entry.number as usize <= number);
        &entries[behind - 1]
    }

    /// Records that a packet was not sent because its payload could not be read.
    pub fn fault(&mut self, number: usize, fault: Fault) {
        self.faults.push((number, fault));
    }

    /// True if the batch is below its limits.
    pub(crate) fn has_room(&self) -> bool {
        self.room(self.limit, 1) > 0
    }

    /// Returns the number of packets of `len` bytes that fit, up to a total of `limit`.
    pub(crate) fn room(&self, limit: usize, len: usize) -> usize {
        let packets = self.limit.min(limit).saturating_sub(self.len);
        let most = RUNS.saturating_mul(self.run_limits.bytes);
        packets.min(most.saturating_sub(self.size).div_ceil(len))
    }

    /// Returns the most bytes that a batch has, from BTHs to ICRCs, if its packets have up to
    /// `packet` bytes.
    pub fn max_bytes(run_limits: &RunLimits, packet: usize) -> usize {
        // One packet exceeds the limit, and others complete its run.
        (RUNS + 1) * run_limits.bytes + packet
    }

    /// Returns the number of packets of `len` bytes that fit the last run, if its last packet
    /// is one of queue pair `qpn`. Such packets may exceed the batch's limit: otherwise the
    /// rest of a message would need a run of its own.
    pub(crate) fn room_in_run(&self, qpn: u32, len: usize) -> usize {
        let entries = &self.entries[..self.used];
        let ours = entries.last().is_some_and(|entry| entry.qpn == qpn);
        let limits = &self.run_limits;
        let takes = |run: &&Run| ours && run.segment == len && self.limit > limits.packets;
        let run = self.runs.last().filter(takes);
        run.map_or(0, |run| run.room(limits))
    }

    /// Returns the most packets of a run.
    pub(crate) fn packets_of_run(&self) -> usize {
        self.run_limits.packets
    }

    /// Returns true if `count` further packets of up to `len` bytes, all of one size, fit one run.
    pub(crate) fn fits_run(&self, count: usize, len: usize) -> bool {
        let limits = &self.run_limits;
        let (packets, bytes) = match self.runs.last() {
            Some(run) => (run.count(), run.bytes),
            None => (0, 0),
        };
        // They may continue the last run.
        count <= limits.packets.saturating_sub(packets)
            && count.saturating_mul(len) <= limits.bytes.saturating_sub(bytes)
    }

    /// Sets AckReq in the last packet.
    pub(crate) fn request_ack_on_last(&mut self) {
        let entry = &mut self.entries[self.used - 1];
        debug_assert_eq!(
            entry.count, 1,
            "the last packet of a message is not part of a uniform run"
        );
        entry.header.set_ack_req();
    }

    /// Returns true if a packet could not be read.
    #[inline]
    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Returns queue pair, origin and fault of each packet that could not be read.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (u32, Origin, Fault)> + '_ {
        self.faults.iter().map(|&(number, fault)| {
            let packet = self.packet(number);
            (packet.qpn, packet.origin, fault)
        })
    }

    pub(crate) fn forget_faults(&mut self) {
        self.faults.clear();
    }

    /// Returns the bytes of all packets, from BTH to ICRC.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.size as u64
    }

    /// Empties the batch and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
        self.used = 0;
        self.len = 0;
        self.size = 0;
        self.runs.clear();
        self.forget_faults();
        self.reads_gpu = false;
        self.handed_over.clear();
    }

    /// Adds a reference to payload of the packet that [`Batch::push`] adds next.
    pub(crate) fn push_memory(&mut self, at: MemRef, length: u32) {
        self.reads_gpu |= !at.is_host();
        self.pieces.push(Piece::Memory { at, length });
    }

    /// Copies payload of the packet that [`Batch::push`] adds next.
    pub(crate) fn push_inline(&mut self, data: &[u8]) {
        let offset = self.bytes.len() as u32;
        self.bytes.extend_from_slice(data);
        self.pieces.push(Piece::Inline {
            offset,
            length: data.len() as u32,
        });
    }

    /// Returns the number of pieces, for [`Batch::push`] and [`Batch::rollback`].
    pub(crate) fn mark(&self) -> usize {
        self.pieces.len()
    }

    /// Removes the pieces of an unfinished packet: those since `mark`.
    pub(crate) fn rollback(&mut self, mark: usize) {
        self.pieces.truncate(mark);
    }

    /// Starts the header of the packet that [`Batch::push`] adds next.
    #[inline(always)]
    pub(crate) fn header(&mut self, bth: &Bth) -> &mut HeaderBuf {
        if self.used == self.entries.len() {
            self.grow(bth);
        }
        self.entries[self.used].header.restart(bth)
    }

    #[cold]
    fn grow(&mut self, bth: &Bth) {
        self.entries.push(TxPacket::blank(bth));
    }

    /// Adds the packet whose header was started last. Its payload consists of the pieces
    /// since `mark`.
    #[inline(always)]
    pub(crate) fn push(&mut self, path: &Path, mark: usize, new: NewPacket) {
        let entry = &mut self.entries[self.used];
        entry.header.check_complete();
        entry.pad = ferroce_wire::padding(new.payload_len as usize) as u8;
        entry.flush_quirk = new.flush_quirk;
        entry.first_piece = mark as u32;
        entry.pieces = (self.pieces.len() - mark) as u32;
        entry.payload_len = new.payload_len;
        entry.qpn = new.qpn;
        entry.origin = new.origin;
        entry.number = self.len as u32;
        entry.count = 1;
        let (len, dest_qpn) = (entry.wire_len(), entry.dest_qpn());
        self.run_for(path, len, dest_qpn).add(len);
        self.size += len;
        self.used += 1;
        self.len += 1;
    }

    /// Adds `count` packets that differ in their PSNs only. The header of the first was
    /// started last, and their payload is contiguous from `at` on.
    pub(crate) fn push_uniform(&mut self, path: &Path, new: NewPacket, at: MemRef, count: u32) {
        let (mut new, mut at, mut left) = (new, at, count);
        loop {
            let mark = self.mark();
            self.push_memory(at, new.payload_len);
            self.push(path, mark, new);
            let entry = &mut self.entries[self.used - 1];
            let len = entry.wire_len();
            // An entry holds as many packets as fit the run.
            let run = self.runs.last_mut();
            let limits = &self.run_limits;
            let more = run.map_or(0, |run| run.extend(len, left as usize - 1, limits));
            self.len += more;
            self.size += more * len;
            entry.count += more as u32;
            left -= entry.count;
            if left == 0 {
                return;
            }
            at = at.offset(u64::from(entry.count) * u64::from(new.payload_len));
            let next = entry.step(entry.count);
            new.origin = next.origin;
            match self.entries.get_mut(self.used) {
                Some(place) => *place = next,
                None => self.entries.push(next),
            }
        }
    }

    /// Returns the run that takes the next packet.
    #[inline(always)]
    fn run_for(&mut self, path: &Path, len: usize, dest_qpn: u32) -> &mut Run {
        let takes = match self.runs.last() {
            Some(run) => run.takes(len, path, dest_qpn, &self.run_limits),
            None => false,
        };
        if !takes {
            let run = Run::new(path, self.len, self.used, len, dest_qpn);
            self.runs.push(run);
        }
        self.runs
            .last_mut()
            .expect("a run was added if there was none")
    }
}
