//! Packets on their way out, in runs that fit generic segmentation offload.
//!
//! The engine writes headers and says where payload lies; nobody copies payload
//! until the wire needs it. Consecutive packets of equal size to one peer form
//! a [`Run`], of which only the last may be shorter: one `sendmsg` with
//! `UDP_SEGMENT`.

use core::ops::Range;

use ferroce_wire::{Bth, Flow, FlowIcrc, HeaderBuf, Psn, icrc};

use crate::memory::{Fault, Memory};

/// Most packets in a run: what the kernel takes in one segmented send.
pub const MAX_RUN_PACKETS: usize = 64;
/// Most bytes in a run, UDP payload only.
pub const MAX_RUN_BYTES: usize = 65_000;
/// Where in a BTH the top byte of the destination QPN stands.
const DEST_SLOT: usize = 5;
/// Bytes of the ICRC behind every packet.
pub const ICRC_LEN: usize = 4;

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
    icrc: FlowIcrc,
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

/// A piece of payload.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// In the program's memory.
    Memory {
        /// Where.
        address: u64,
        /// How long.
        length: u32,
    },
    /// In the batch itself: see [`Batch::bytes`].
    Inline {
        /// Where.
        offset: u32,
        /// How long.
        length: u32,
    },
}

/// Whose packet it is, to know what to do if its payload cannot be read.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Request(Psn),
    Response(Psn),
    /// An answer given before: nobody minds if it cannot be given again.
    Replay,
}

/// One packet: header, payload pieces, padding; the ICRC follows.
#[derive(Clone, Debug)]
pub struct TxPacket {
    header: HeaderBuf,
    pad: u8,
    flush_quirk: bool,
    first_piece: u32,
    pieces: u32,
    payload_len: u32,
    qpn: u32,
    origin: Origin,
}

impl TxPacket {
    /// Bytes of the packet on the wire, from the BTH to the ICRC.
    pub fn wire_len(&self) -> usize {
        self.header.len() + self.payload_len as usize + self.pad as usize + ICRC_LEN
    }

    /// The header, from the BTH to the payload.
    pub fn header(&self) -> &[u8] {
        self.header.as_bytes()
    }

    /// The queue pair that sends it.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// A packet to be written over.
    fn blank(bth: &Bth) -> TxPacket {
        TxPacket {
            header: HeaderBuf::new(bth),
            pad: 0,
            flush_quirk: false,
            first_piece: 0,
            pieces: 0,
            payload_len: 0,
            qpn: 0,
            origin: Origin::Replay,
        }
    }
}

/// Packets of equal size to one slot of one peer; the last may be shorter.
#[derive(Clone, Debug)]
pub struct Run {
    /// The way.
    pub path: Path,
    /// Which packets of the batch.
    pub packets: Range<usize>,
    /// Bytes of all packets but perhaps the last.
    pub segment: usize,
    bytes: usize,
    /// The top byte of the destination QPN: by it peers steer whole runs.
    slot: u8,
}

/// What [`Engine::poll_transmit`](crate::Engine::poll_transmit) fills: reused
/// from call to call, so that nothing is allocated on the way.
#[derive(Debug)]
pub struct Batch {
    limit: usize,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// Of which the first `len` count: the others are to be written over.
    packets: Vec<TxPacket>,
    len: usize,
    runs: Vec<Run>,
    faults: Vec<(usize, Fault)>,
    pub(crate) handed_over: Vec<(u32, u32)>,
}

/// What a packet to be added to a batch has beside its header.
pub(crate) struct NewPacket {
    pub(crate) qpn: u32,
    pub(crate) origin: Origin,
    pub(crate) payload_len: u32,
    pub(crate) flush_quirk: bool,
}

impl Batch {
    /// A batch for up to `limit` packets.
    pub fn new(limit: usize) -> Batch {
        Batch {
            limit: limit.max(1),
            bytes: Vec::new(),
            pieces: Vec::with_capacity(limit * 2),
            packets: Vec::with_capacity(limit),
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
    pub fn packet(&self, index: usize) -> &TxPacket {
        &self.packets[..self.len][index]
    }

    /// The payload of a packet, in pieces.
    pub fn payload(&self, packet: &TxPacket) -> &[Piece] {
        let start = packet.first_piece as usize;
        &self.pieces[start..start + packet.pieces as usize]
    }

    /// What an inline piece refers to.
    pub fn bytes(&self, offset: u32, length: u32) -> &[u8] {
        &self.bytes[offset as usize..][..length as usize]
    }

    /// Writes a whole packet to the front of `out`, ICRC included, and returns
    /// its length. `ip_id` is the IPv4 identification it will travel under.
    pub fn assemble(
        &self,
        index: usize,
        path: &Path,
        ip_id: u16,
        memory: &dyn Memory,
        out: &mut [u8],
    ) -> Result<usize, Fault> {
        let len = self.assemble_without_icrc(index, memory, out)?;
        let packet = &self.packets[index];
        let crc = if packet.flush_quirk {
            icrc::compute_flush_quirk(&path.flow, ip_id, &out[..len])
        } else {
            path.icrc.compute(ip_id, &out[..len])
        };
        out[len..len + ICRC_LEN].copy_from_slice(&crc);
        Ok(len + ICRC_LEN)
    }

    /// As [`Batch::assemble`], but leaves out the ICRC; returns the length without it.
    pub fn assemble_without_icrc(
        &self,
        index: usize,
        memory: &dyn Memory,
        out: &mut [u8],
    ) -> Result<usize, Fault> {
        let packet = &self.packets[index];
        let mut at = packet.header.len();
        match out.first_chunk_mut() {
            // The payload overwrites what is too much.
            Some(front) => *front = *packet.header.buffer(),
            None => out[..at].copy_from_slice(packet.header()),
        }
        for piece in self.payload(packet) {
            match *piece {
                Piece::Memory { address, length } => {
                    memory.read(address, &mut out[at..at + length as usize])?;
                    at += length as usize;
                }
                Piece::Inline { offset, length } => {
                    out[at..at + length as usize].copy_from_slice(self.bytes(offset, length));
                    at += length as usize;
                }
            }
        }
        out[at..at + packet.pad as usize].fill(0);
        Ok(at + packet.pad as usize)
    }

    /// Reports that a packet's payload could not be read: it did not leave.
    pub fn fault(&mut self, index: usize, fault: Fault) {
        self.faults.push((index, fault));
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len < self.limit
    }

    /// How many packets there is room for, if there shall be no more than `limit`.
    pub(crate) fn room(&self, limit: usize) -> usize {
        self.limit.min(limit).saturating_sub(self.len)
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = (u32, Origin, Fault)> + '_ {
        self.faults.iter().map(|&(index, fault)| {
            let packet = &self.packets[index];
            (packet.qpn, packet.origin, fault)
        })
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes as u64).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
        self.len = 0;
        self.runs.clear();
        self.faults.clear();
        self.handed_over.clear();
    }

    /// Adds payload of the next packet, before [`Batch::push`].
    pub(crate) fn push_memory(&mut self, address: u64, length: u32) {
        self.pieces.push(Piece::Memory { address, length });
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
        if self.len == self.packets.len() {
            self.grow(bth);
        }
        self.packets[self.len].header.restart(bth)
    }

    #[cold]
    fn grow(&mut self, bth: &Bth) {
        self.packets.push(TxPacket::blank(bth));
    }

    /// Adds the packet whose header has been written and whose payload pieces
    /// are those pushed since `mark`.
    #[inline(always)]
    pub(crate) fn push(&mut self, path: &Path, mark: usize, new: NewPacket) {
        let index = self.len;
        let packet = &mut self.packets[index];
        packet.header.check_complete();
        packet.pad = ferroce_wire::padding(new.payload_len as usize) as u8;
        packet.flush_quirk = new.flush_quirk;
        packet.first_piece = mark as u32;
        packet.pieces = (self.pieces.len() - mark) as u32;
        packet.payload_len = new.payload_len;
        packet.qpn = new.qpn;
        packet.origin = new.origin;
        let len = packet.wire_len();
        let slot = packet.header.buffer()[DEST_SLOT];
        self.len += 1;
        if let Some(run) = self.runs.last_mut()
            && run.takes(len, path, slot)
        {
            run.packets.end = index + 1;
            run.bytes += len;
            return;
        }
        self.start_run(path, index, len, slot);
    }

    /// Adds `count` packets: that whose header has been written, and others that differ
    /// from it in their PSN only. Their payload lies one behind the other from `address` on.
    pub(crate) fn push_alike(&mut self, path: &Path, new: NewPacket, address: u64, count: u32) {
        let (first, mark) = (self.len, self.pieces.len());
        let length = new.payload_len;
        let Origin::Request(psn) = new.origin else {
            unreachable!("answers are added one by one");
        };
        self.push_memory(address, length);
        self.push(path, mark, new);
        for step in 1..count {
            let mut packet = self.packets[first].clone();
            let psn = psn.add(step);
            packet.header.set_psn(psn);
            packet.origin = Origin::Request(psn);
            packet.first_piece = self.pieces.len() as u32;
            self.push_memory(address + u64::from(step * length), length);
            match self.packets.get_mut(self.len) {
                Some(place) => *place = packet,
                None => self.packets.push(packet),
            }
            self.len += 1;
        }
        let packet = &self.packets[first];
        let (len, slot) = (packet.wire_len(), packet.header.buffer()[DEST_SLOT]);
        let mut next = first + 1;
        while next < self.len {
            let left = self.len - next;
            next += match self.runs.last_mut() {
                Some(run) if run.takes(len, path, slot) => run.take(len, left),
                _ => {
                    self.start_run(path, next, len, slot);
                    1
                }
            };
        }
    }

    fn start_run(&mut self, path: &Path, index: usize, len: usize, slot: u8) {
        self.runs.push(Run {
            path: *path,
            packets: index..index + 1,
            segment: len,
            bytes: len,
            slot,
        });
    }
}

impl Run {
    /// The top byte of the destination QPN.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    #[inline]
    fn takes(&self, len: usize, path: &Path, slot: u8) -> bool {
        let whole = self.segment * self.packets.len() == self.bytes;
        whole
            && len <= self.segment
            && self.packets.len() < MAX_RUN_PACKETS
            && self.bytes + len <= MAX_RUN_BYTES
            && self.slot == slot
            && self.path == *path
    }
    /// Adds as many packets of `len` bytes as fit, of which there are `many`, where it
    /// takes one; returns how many.
    fn take(&mut self, len: usize, many: usize) -> usize {
        let fit = match len == self.segment {
            true => (MAX_RUN_PACKETS - self.packets.len()).min((MAX_RUN_BYTES - self.bytes) / len),
            false => 1,
        };
        let count = many.min(fit);
        self.packets.end += count;
        self.bytes += count * len;
        count
    }
}
