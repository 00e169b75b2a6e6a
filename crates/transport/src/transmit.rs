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

/// Bytes of the ICRC behind every packet.
pub const ICRC_LEN: usize = 4;

/// What [`Engine::poll_transmit`](crate::Engine::poll_transmit) fills: reused
/// from call to call, so that nothing is allocated on the way.
#[derive(Debug)]
pub struct Batch {
    limit: usize,
    run_limits: RunLimits,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// Of which the first `used` count: the others are to be written over.
    entries: Vec<TxPacket>,
    used: usize,
    /// Packets.
    len: usize,
    runs: Vec<Run>,
    faults: Vec<(usize, Fault)>,
    pub(crate) handed_over: Vec<(u32, u32)>,
}

/// What a packet to be added to a batch has beside its header.
#[derive(Copy, Clone)]
pub(crate) struct NewPacket {
    pub(crate) qpn: u32,
    pub(crate) origin: Origin,
    pub(crate) payload_len: u32,
    pub(crate) flush_quirk: bool,
}

impl Batch {
    /// Returns a batch for up to `limit` packets, in runs of any length.
    pub fn new(limit: usize) -> Batch {
        Batch::with_run_limits(limit, RunLimits::NONE)
    }

    /// Returns a batch for up to `limit` packets, in runs that keep to `run_limits`. If
    /// the batch holds more than one full run, it may take packets beyond `limit` that
    /// complete its last run.
    pub fn with_run_limits(limit: usize, run_limits: RunLimits) -> Batch {
        Batch {
            limit: limit.max(1),
            run_limits,
            bytes: Vec::new(),
            pieces: Vec::with_capacity(limit * 2),
            entries: Vec::with_capacity(limit),
            used: 0,
            len: 0,
            runs: Vec::with_capacity(limit),
            faults: Vec::new(),
            handed_over: Vec::new(),
        }
    }

    /// The runs, in the order they must leave.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// How many packets there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether payload is to be read from the program's memory.
    pub fn reads_memory(&self) -> bool {
        let from_memory = |piece: &Piece| matches!(piece, Piece::Memory { .. });
        self.pieces.iter().any(from_memory)
    }

    /// A packet by its number in the batch.
    pub fn packet(&self, number: usize) -> TxPacket {
        let entry = self.entry(number);
        entry.step(number as u32 - entry.number)
    }

    /// The entry that a packet is in.
    fn entry(&self, number: usize) -> &TxPacket {
        let entries = &self.entries[..self.used];
        let behind = entries.partition_point(|entry| entry.number as usize <= number);
        &entries[behind - 1]
    }

    /// Reports that a packet's payload could not be read: it did not leave.
    pub fn fault(&mut self, number: usize, fault: Fault) {
        self.faults.push((number, fault));
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len < self.limit
    }

    /// How many packets there is room for, if there shall be no more than `limit`.
    pub(crate) fn room(&self, limit: usize) -> usize {
        self.limit.min(limit).saturating_sub(self.len)
    }

    /// How many packets more of `len` bytes the last run would take, if its last packet is
    /// one of queue pair `qpn`: no limit is worth a run of its own for the rest.
    pub(crate) fn room_in_run(&self, qpn: u32, len: usize) -> usize {
        let entries = &self.entries[..self.used];
        let ours = entries.last().is_some_and(|entry| entry.qpn == qpn);
        let limits = &self.run_limits;
        let takes = |run: &&Run| ours && run.segment == len && self.limit > limits.packets;
        let run = self.runs.last().filter(takes);
        run.map_or(0, |run| run.room(limits))
    }

    /// Makes the last packet ask for an acknowledgement.
    pub(crate) fn request_ack_on_last(&mut self) {
        let entry = &mut self.entries[self.used - 1];
        debug_assert_eq!(
            entry.count, 1,
            "the end of a message is like no other packet"
        );
        entry.header.set_ack_req();
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = (u32, Origin, Fault)> + '_ {
        self.faults.iter().map(|&(number, fault)| {
            let packet = self.packet(number);
            (packet.qpn, packet.origin, fault)
        })
    }

    pub(crate) fn forget_faults(&mut self) {
        self.faults.clear();
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes as u64).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
        self.used = 0;
        self.len = 0;
        self.runs.clear();
        self.forget_faults();
        self.handed_over.clear();
    }

    /// Adds payload of the next packet, before [`Batch::push`].
    pub(crate) fn push_memory(&mut self, at: MemRef, length: u32) {
        self.pieces.push(Piece::Memory { at, length });
    }

    /// Copies payload of the next packet, before [`Batch::push`].
    pub(crate) fn push_inline(&mut self, data: &[u8]) {
        let offset = self.bytes.len() as u32;
        self.bytes.extend_from_slice(data);
        self.pieces.push(Piece::Inline {
            offset,
            length: data.len() as u32,
        });
    }

    /// How many pieces there are, to take back those of an unfinished packet.
    pub(crate) fn mark(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn rollback(&mut self, mark: usize) {
        self.pieces.truncate(mark);
    }

    /// Starts the header of the next packet, to be followed by [`Batch::push`].
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

    /// Adds the packet whose header has been written and whose payload pieces
    /// are those pushed since `mark`.
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
        self.used += 1;
        self.len += 1;
    }

    /// Adds `count` packets: that whose header has been written, and others that differ
    /// from it in their PSN only. Their payload lies one behind the other from `at` on.
    pub(crate) fn push_uniform(&mut self, path: &Path, new: NewPacket, at: MemRef, count: u32) {
        let (mut new, mut at, mut left) = (new, at, count);
        loop {
            let mark = self.mark();
            self.push_memory(at, new.payload_len);
            self.push(path, mark, new);
            let entry = &mut self.entries[self.used - 1];
            let len = entry.wire_len();
            // As many as the run has room for are one entry.
            let run = self.runs.last_mut();
            let limits = &self.run_limits;
            let more = run.map_or(0, |run| run.extend(len, left as usize - 1, limits));
            self.len += more;
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
        let takes = |run: &Run| run.takes(len, path, dest_qpn, &self.run_limits);
        if !self.runs.last().is_some_and(takes) {
            let run = Run::new(path, self.len, self.used, len, dest_qpn);
            self.runs.push(run);
        }
        self.runs.last_mut().expect("there is one now")
    }
}
