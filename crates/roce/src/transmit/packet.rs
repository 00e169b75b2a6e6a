//! The packets of a batch.

use ferroce_wire::{Bth, HeaderBuf, MAX_HEADER_LEN, Psn};

use super::ICRC_LEN;
use crate::memory::MemRef;

/// A piece of payload.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// Payload in the program's memory.
    Memory { at: MemRef, length: u32 },
    /// Payload that was copied into the batch.
    Inline { offset: u32, length: u32 },
}

// Every packet with payload has a piece, so its size counts.
const _: () = assert!(size_of::<Piece>() == 16);

/// The origin of a packet, which decides what fails if its payload cannot be read.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A request: its work request fails.
    Request(Psn),
    /// A response: the queue pair fails.
    Response(Psn),
    /// A repeated response: nothing fails.
    Replay,
}

impl Origin {
    /// Returns the origin of the packet `step` PSNs later.
    fn later(self, step: u32) -> Origin {
        match self {
            Origin::Request(psn) => Origin::Request(psn.add(step)),
            Origin::Response(psn) => Origin::Response(psn.add(step)),
            Origin::Replay => Origin::Replay,
        }
    }
}

/// A packet, or a uniform run of packets.
///
/// A packet has a header, pieces of payload and padding; the ICRC is computed later. The
/// packets of a uniform run differ in their PSNs, which count up, and in their payload: each
/// has one piece, and the pieces are contiguous in the program's memory.
#[derive(Clone, Debug)]
pub struct TxPacket {
    pub(super) header: HeaderBuf,
    pub(super) pad: u8,
    pub(super) flush_quirk: bool,
    pub(super) first_piece: u32,
    pub(super) pieces: u32,
    pub(super) payload_len: u32,
    pub(super) qpn: u32,
    pub(super) origin: Origin,
    /// Number of the first packet in the batch.
    pub(super) number: u32,
    /// Number of packets.
    pub(super) count: u32,
}

impl TxPacket {
    /// Returns the bytes of a packet on the wire, from the BTH to the ICRC.
    pub fn wire_len(&self) -> usize {
        self.header.len() + self.payload_len as usize + self.pad as usize + ICRC_LEN
    }

    /// Returns the header, from the BTH to the payload.
    pub fn header(&self) -> &[u8] {
        self.header.as_bytes()
    }

    /// Returns the buffer of the header, whose bytes behind the header mean nothing.
    #[inline]
    pub fn header_buffer(&self) -> &[u8; MAX_HEADER_LEN] {
        self.header.buffer()
    }

    /// Returns the number of packets of a uniform run; 1 for a packet alone.
    #[inline]
    pub fn packets(&self) -> usize {
        self.count as usize
    }

    /// Returns the number of the queue pair that sends the packet.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Returns the destination QPN.
    #[inline]
    pub(super) fn dest_qpn(&self) -> u32 {
        self.header.dest_qpn()
    }

    /// Returns one packet of a uniform run.
    pub(super) fn step(&self, step: u32) -> TxPacket {
        let mut packet = self.clone();
        if step > 0 {
            packet.header.set_psn(self.header.psn().add(step));
        }
        packet.origin = self.origin.later(step);
        packet.number += step;
        packet.count = 1;
        packet
    }

    /// Returns a packet whose fields the caller overwrites.
    pub(super) fn blank(bth: &Bth) -> TxPacket {
        TxPacket {
            header: HeaderBuf::new(bth),
            pad: 0,
            flush_quirk: false,
            first_piece: 0,
            pieces: 0,
            payload_len: 0,
            qpn: 0,
            origin: Origin::Replay,
            number: 0,
            count: 1,
        }
    }
}
