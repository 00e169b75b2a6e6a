//! Base transport header.

use core::ops::Range;

use crate::{Opcode, ParseError, Psn, be24};

/// The base transport header, the first header of every packet.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bth {
    /// Transport and operation of the packet.
    pub opcode: Opcode,
    /// Solicited event: notify a completion queue that is armed for solicited events only.
    pub solicited: bool,
    /// MigReq. rxe sends 0 and ConnectX sends 1; receivers ignore it.
    pub migrated: bool,
    /// Pad bytes between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Transport header version; only 0 exists.
    pub version: u8,
    /// Partition key; 0xffff on RoCE.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination queue pair, 24 bits.
    pub dest_qpn: u32,
    /// AckReq: the requester asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length on the wire.
    pub const LEN: usize = 12;
    /// Byte range of the last word, which holds AckReq and the PSN.
    pub const PSN: Range<usize> = 8..12;
    /// The AckReq bit in the first byte of [`Bth::PSN`].
    pub const ACK_REQ: u8 = 0x80;

    /// Partition key of the default partition, with full membership.
    pub const DEFAULT_PKEY: u16 = 0xffff;

    /// Returns a header with this opcode, destination and PSN, the default
    /// partition key, and all other fields zero.
    pub const fn new(opcode: Opcode, dest_qpn: u32, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            version: 0,
            pkey: Self::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
        }
    }

    /// Reads a header. The caller must check the version.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than 12 bytes,
    /// [`ParseError::UnknownOpcode`] if the first byte is not an opcode.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Bth, ParseError> {
        let Some(bytes) = bytes.first_chunk() else {
            return Err(ParseError::Truncated {
                len: bytes.len(),
                need: Self::LEN,
            });
        };
        match Opcode::from_byte(bytes[0]) {
            Some(opcode) => Ok(Bth::with_opcode(opcode, bytes)),
            None => Err(ParseError::UnknownOpcode(bytes[0])),
        }
    }

    #[inline]
    pub(crate) const fn with_opcode(opcode: Opcode, bytes: &[u8; Self::LEN]) -> Bth {
        let b = bytes;
        Bth {
            opcode,
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            version: b[1] & 0x0f,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qpn: be24([b[5], b[6], b[7]]),
            ack_req: b[8] & Bth::ACK_REQ != 0,
            psn: Psn::new(be24([b[9], b[10], b[11]])),
        }
    }

    /// Writes the header to the first 12 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let flags = (self.solicited as u32) << 7
            | (self.migrated as u32) << 6
            | (self.pad as u32 & 3) << 4
            | self.version as u32 & 0x0f;
        let congestion = (self.fecn as u32) << 7 | (self.becn as u32) << 6;
        let words = [
            (self.opcode.byte() as u32) << 24 | flags << 16 | self.pkey as u32,
            congestion << 24 | self.dest_qpn & 0xff_ffff,
            (self.ack_req as u32) << 31 | self.psn.value(),
        ];
        for (out, word) in out[..Self::LEN].chunks_exact_mut(4).zip(words) {
            out.copy_from_slice(&word.to_be_bytes());
        }
    }
}
