//! Reads a received packet.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, ICRC_LEN, Ieth, ImmDt, Opcode, Psn, Rdeth,
    Reth, XrcEth, be24, head,
};

/// A checked view of a UDP payload: BTH, extension headers, payload, pad and ICRC.
///
/// A `Packet` has a known opcode and is long enough for all headers of that opcode, so no
/// accessor can fail. The transport checks what depends on queue pair state: payload
/// length, PSN and keys. The [`icrc`](crate::icrc) module checks the ICRC.
#[derive(Copy, Clone, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    opcode: Opcode,
}

/// The reason why bytes are not a valid packet.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ParseError {
    /// The packet is shorter than its headers, pad and ICRC.
    #[error("packet of {len} bytes is too short: its headers, pad and ICRC need {need}")]
    Truncated {
        /// Length of the packet.
        len: usize,
        /// Smallest possible length.
        need: usize,
    },
    /// The first byte is not an opcode.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The transport header version is not 0.
    #[error("unknown transport header version {0}")]
    Version(u8),
}

impl<'a> Packet<'a> {
    /// Checks a UDP payload.
    ///
    /// # Errors
    /// If the opcode or version is unknown, or the payload is too short for the headers
    /// of the opcode.
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

    /// Returns the whole packet, from the BTH to the ICRC.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the BTH and extension headers.
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        &self.bytes[..self.opcode.header_len()]
    }

    /// Returns the payload, without pad.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = self.bytes.len() - ICRC_LEN - self.pad();
        &self.bytes[self.opcode.header_len()..end]
    }

    /// Returns the number of pad bytes, 0 to 3.
    #[inline]
    pub fn pad(&self) -> usize {
        (self.bytes[1] >> 4 & 3) as usize
    }

    /// Returns the ICRC: a CRC-32, which is sent least significant byte first.
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(*head(&self.bytes[self.bytes.len() - ICRC_LEN..]))
    }
}

/// The BTH and its fields.
impl Packet<'_> {
    /// Returns the base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        Bth::with_opcode(self.opcode, head(self.bytes))
    }

    /// Returns the opcode.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Returns the solicited event bit.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bytes[1] & 0x80 != 0
    }

    /// Returns the partition key.
    #[inline]
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    /// Returns the destination queue pair number.
    #[inline]
    pub fn dest_qpn(&self) -> u32 {
        be24([self.bytes[5], self.bytes[6], self.bytes[7]])
    }

    /// Returns AckReq: true if the requester asks for an acknowledgement.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.bytes[8] & 0x80 != 0
    }

    /// Returns the packet sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(be24([self.bytes[9], self.bytes[10], self.bytes[11]]))
    }
}

/// The extension headers. Each accessor returns `None` if the opcode does not have the
/// header.
///
/// The order on the wire is RDETH, DETH, XRCETH, FETH, RETH, AtomicETH, AETH,
/// AtomicAckETH, ImmDt, IETH. So each header is at a fixed distance from the start or from
/// the end of the headers.
impl Packet<'_> {
    /// Returns the RDETH: the RD end-to-end context.
    #[inline]
    pub fn rdeth(&self) -> Option<Rdeth> {
        let present = self.opcode.has_rdeth();
        present.then(|| Rdeth::parse(&self.bytes[Bth::LEN..]))
    }

    /// Returns the DETH: the datagram header.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        let offset = Bth::LEN + Rdeth::LEN * self.opcode.has_rdeth() as usize;
        let present = self.opcode.has_deth();
        present.then(|| Deth::parse(&self.bytes[offset..]))
    }

    /// Returns the XRCETH: the XRC shared receive queue.
    #[inline]
    pub fn xrceth(&self) -> Option<XrcEth> {
        let present = self.opcode.has_xrceth();
        present.then(|| XrcEth::parse(&self.bytes[Bth::LEN..]))
    }

    /// Returns the FETH: the FLUSH header.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        let present = self.opcode.has_feth();
        present.then(|| Feth::parse(self.before_payload(Feth::LEN + Reth::LEN)))
    }

    /// Returns the RETH: the remote memory range.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        let back = Reth::LEN + ImmDt::LEN * self.opcode.has_immediate() as usize;
        let present = self.opcode.has_reth();
        present.then(|| Reth::parse(self.before_payload(back)))
    }

    /// Returns the AtomicETH: the operands of an atomic.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        let present = self.opcode.has_atomic_eth();
        present.then(|| AtomicEth::parse(self.before_payload(AtomicEth::LEN)))
    }

    /// Returns the AETH: the acknowledgement.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        let back = Aeth::LEN + AtomicAckEth::LEN * self.opcode.has_atomic_ack() as usize;
        let present = self.opcode.has_aeth();
        present.then(|| Aeth::parse(self.before_payload(back)))
    }

    /// Returns the AtomicAckETH: the result of an atomic.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        let present = self.opcode.has_atomic_ack();
        present.then(|| AtomicAckEth::parse(self.before_payload(AtomicAckEth::LEN)))
    }

    /// Returns the immediate data.
    #[inline]
    pub fn immediate(&self) -> Option<ImmDt> {
        let present = self.opcode.has_immediate();
        present.then(|| ImmDt::parse(self.before_payload(ImmDt::LEN)))
    }

    /// Returns the IETH: the remote key to invalidate.
    #[inline]
    pub fn ieth(&self) -> Option<Ieth> {
        let present = self.opcode.has_invalidate();
        present.then(|| Ieth::parse(self.before_payload(Ieth::LEN)))
    }

    /// Returns the bytes that start `back` bytes before the payload.
    #[inline]
    fn before_payload(&self, back: usize) -> &[u8] {
        &self.bytes[self.opcode.header_len() - back..]
    }
}
