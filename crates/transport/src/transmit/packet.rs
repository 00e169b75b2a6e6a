//! A packet on its way out.

use ferroce_wire::{Bth, HeaderBuf, Psn};

use super::ICRC_LEN;
use crate::memory::MemRef;

/// A piece of payload.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// In the program's memory.
    Memory { at: MemRef, length: u32 },
    /// In the batch itself.
    Inline { offset: u32, length: u32 },
}

// A batch has one for every packet and more.
const _: () = assert!(size_of::<Piece>() == 16);

/// Whose packet it is, to know what to do if its payload cannot be read.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Request(Psn),
    Response(Psn),
    /// An answer given before: nobody minds if it cannot be given again.
    Replay,
}

impl Origin {
    /// That of a later packet of the same kind.
    fn later(self, step: u32) -> Origin {
        match self {
            Origin::Request(psn) => Origin::Request(psn.add(step)),
            Origin::Response(psn) => Origin::Response(psn.add(step)),
            Origin::Replay => Origin::Replay,
        }
    }
}

/// One packet: header, payload pieces, padding; the ICRC follows. Or several that differ
/// in their PSNs only, which count up, and in the one piece of payload each has: those lie
/// one behind the other in the program's memory.
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
    /// The number of the first in the batch, and how many they are.
    pub(super) number: u32,
    pub(super) count: u32,
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

    /// Returns the destination QPN.
    #[inline]
    pub(super) fn dest_qpn(&self) -> u32 {
        self.header.dest_qpn()
    }

    /// One of several.
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

    /// A packet to be written over.
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
