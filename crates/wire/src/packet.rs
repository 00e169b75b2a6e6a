//! A received packet.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, ICRC_LEN, Ieth, ImmDt, Opcode, Psn, Rdeth,
    Reth, XrcEth, be24, head,
};

/// A checked view over a UDP payload: BTH, extension headers, payload, pad and
/// ICRC.
///
/// Holding one means that the opcode is known and that everything it promises
/// is there, so no accessor can fail. What needs the state of a queue pair
/// (payload length, sequence, keys) is left to the transport, and the ICRC to
/// [`icrc`](crate::icrc).
#[derive(Copy, Clone, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    opcode: Opcode,
}

/// Why bytes are not a packet.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ParseError {
    /// Shorter than its headers, pad and ICRC.
    #[error("packet of {len} bytes, where its headers, pad and ICRC take {need}")]
    Truncated {
        /// Bytes there are.
        len: usize,
        /// Bytes there must at least be.
        need: usize,
    },
    /// No such opcode.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// A transport header version other than 0.
    #[error("unknown transport header version {0}")]
    Version(u8),
}

impl<'a> Packet<'a> {
    /// Checks a UDP payload.
    ///
    /// # Errors
    /// If it is not a packet of a known opcode and version, or too short for
    /// the headers of that opcode.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let truncated = |need| ParseError::Truncated {
            len: bytes.len(),
            need,
        };
        let bth: &[u8; Bth::LEN] = bytes.first_chunk().ok_or(truncated(Bth::LEN))?;
        let opcode = Opcode::from_byte(bth[0]).ok_or(ParseError::UnknownOpcode(bth[0]))?;
        match bth[1] & 0x0f {
            0 => {}
            version => return Err(ParseError::Version(version)),
        }
        let need = opcode.header_len() + (bth[1] >> 4 & 3) as usize + ICRC_LEN;
        if bytes.len() < need {
            return Err(truncated(need));
        }
        Ok(Packet { bytes, opcode })
    }

    /// The whole packet, BTH to ICRC.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// BTH and extension headers.
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        &self.bytes[..self.opcode.header_len()]
    }

    /// The payload, without pad.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = self.bytes.len() - ICRC_LEN - self.pad();
        &self.bytes[self.opcode.header_len()..end]
    }

    /// The number of pad bytes, 0 to 3.
    #[inline]
    pub fn pad(&self) -> usize {
        (self.bytes[1] >> 4 & 3) as usize
    }

    /// The ICRC: a CRC-32, which goes out least significant byte first.
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(*head(&self.bytes[self.bytes.len() - ICRC_LEN..]))
    }
}

/// The BTH, whole and by field.
impl Packet<'_> {
    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        Bth::with_opcode(self.opcode, head(self.bytes))
    }

    /// What the packet is.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bytes[1] & 0x80 != 0
    }

    /// Partition key.
    #[inline]
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    /// Destination queue pair number.
    #[inline]
    pub fn dest_qpn(&self) -> u32 {
        be24([self.bytes[5], self.bytes[6], self.bytes[7]])
    }

    /// The sender asks for an acknowledgement.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.bytes[8] & 0x80 != 0
    }

    /// Packet sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(be24([self.bytes[9], self.bytes[10], self.bytes[11]]))
    }
}

/// The extension headers: `None` where the opcode has none such.
///
/// Their order is RDETH, DETH, XRCETH, FETH, RETH, AtomicETH, AETH,
/// AtomicAckETH, ImmDt, IETH, so each stands at a fixed distance from one end
/// of the headers.
impl Packet<'_> {
    /// RD end-to-end context.
    #[inline]
    pub fn rdeth(&self) -> Option<Rdeth> {
        let present = self.opcode.has_rdeth();
        present.then(|| Rdeth::parse(&self.bytes[Bth::LEN..]))
    }

    /// Datagram header.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        let offset = Bth::LEN + Rdeth::LEN * self.opcode.has_rdeth() as usize;
        let present = self.opcode.has_deth();
        present.then(|| Deth::parse(&self.bytes[offset..]))
    }

    /// XRC shared receive queue.
    #[inline]
    pub fn xrceth(&self) -> Option<XrcEth> {
        let present = self.opcode.has_xrceth();
        present.then(|| XrcEth::parse(&self.bytes[Bth::LEN..]))
    }

    /// Flush header.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        let present = self.opcode.has_feth();
        present.then(|| Feth::parse(self.before_payload(Feth::LEN + Reth::LEN)))
    }

    /// RDMA header.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        let back = Reth::LEN + ImmDt::LEN * self.opcode.has_immediate() as usize;
        let present = self.opcode.has_reth();
        present.then(|| Reth::parse(self.before_payload(back)))
    }

    /// Operands of an atomic.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        let present = self.opcode.has_atomic_eth();
        present.then(|| AtomicEth::parse(self.before_payload(AtomicEth::LEN)))
    }

    /// Acknowledgement.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        let back = Aeth::LEN + AtomicAckEth::LEN * self.opcode.has_atomic_ack() as usize;
        let present = self.opcode.has_aeth();
        present.then(|| Aeth::parse(self.before_payload(back)))
    }

    /// Result of an atomic.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        let present = self.opcode.has_atomic_ack();
        present.then(|| AtomicAckEth::parse(self.before_payload(AtomicAckEth::LEN)))
    }

    /// Immediate data.
    #[inline]
    pub fn immediate(&self) -> Option<ImmDt> {
        let present = self.opcode.has_immediate();
        present.then(|| ImmDt::parse(self.before_payload(ImmDt::LEN)))
    }

    /// Key to invalidate.
    #[inline]
    pub fn ieth(&self) -> Option<Ieth> {
        let present = self.opcode.has_invalidate();
        present.then(|| Ieth::parse(self.before_payload(Ieth::LEN)))
    }

    #[inline]
    fn before_payload(&self, back: usize) -> &[u8] {
        &self.bytes[self.opcode.header_len() - back..]
    }
}
