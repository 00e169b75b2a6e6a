//! Builds the headers of a packet to send.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, MAX_HEADER_LEN, Opcode, Psn,
    Rdeth, Reth, XrcEth, be24, head,
};

/// The BTH and extension headers of one packet in wire format, in a fixed-size buffer.
///
/// ```
/// # use ferroce_wire::*;
/// let opcode = Opcode::new(Transport::Rc, Operation::Acknowledge).unwrap();
/// let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: 1 };
/// let header = HeaderBuf::new(&Bth::new(opcode, 0x12, Psn::new(1))).aeth(&aeth).finish();
/// assert_eq!(header.as_bytes().len(), opcode.header_len());
/// ```
///
/// Append the headers in wire order: RDETH, DETH, XRCETH, FETH, RETH, AtomicETH,
/// AETH, AtomicAckETH, ImmDt, IETH. Debug builds check against the opcode that
/// the order is right and no header is missing.
#[derive(Copy, Clone, Debug)]
#[must_use]
pub struct HeaderBuf {
    bytes: [u8; MAX_HEADER_LEN],
    len: u8,
    opcode: Opcode,
    /// Rank in wire order of the last appended header.
    rank: u8,
}

macro_rules! push {
    ($($(#[$doc:meta])* $rank:literal $name:ident: $header:ident, $present:ident;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub fn $name(&mut self, header: &$header) -> &mut HeaderBuf {
                debug_assert!(self.opcode.$present(), "{} has no {}", self.opcode, stringify!($header));
                debug_assert!(self.rank < $rank, "{} out of order", stringify!($header));
                let end = self.len as usize + $header::LEN;
                header.emit(&mut self.bytes[self.len as usize..end]);
                self.len = end as u8;
                self.rank = $rank;
                self
            }
        )*
    };
}

impl HeaderBuf {
    /// Returns a buffer that holds the BTH only.
    #[inline]
    pub fn new(bth: &Bth) -> HeaderBuf {
        let mut header = HeaderBuf {
            bytes: [0; MAX_HEADER_LEN],
            len: 0,
            opcode: bth.opcode,
            rank: 0,
        };
        header.restart(bth);
        header
    }

    /// Clears the buffer and writes the BTH of another packet, in place. Copying a
    /// buffer right after it was written in small stores stalls the processor.
    #[inline]
    pub fn restart(&mut self, bth: &Bth) -> &mut HeaderBuf {
        bth.emit(&mut self.bytes);
        self.len = Bth::LEN as u8;
        self.opcode = bth.opcode;
        self.rank = 0;
        self
    }

    /// Returns the destination queue pair.
    #[inline]
    pub fn dest_qpn(&self) -> u32 {
        be24([self.bytes[5], self.bytes[6], self.bytes[7]])
    }

    /// Returns the PSN.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(u32::from_be_bytes(*head(&self.bytes[Bth::PSN])))
    }

    /// Sets AckReq: the requester asks for an acknowledgement.
    #[inline]
    pub fn set_ack_req(&mut self) {
        self.bytes[Bth::PSN.start] |= Bth::ACK_REQ;
    }

    /// Sets the PSN and clears AckReq.
    #[inline]
    pub fn set_psn(&mut self, psn: Psn) {
        self.bytes[Bth::PSN].copy_from_slice(&psn.value().to_be_bytes());
    }

    push! {
        /// Appends an RDETH.
        1 rdeth: Rdeth, has_rdeth;
        /// Appends a DETH.
        2 deth: Deth, has_deth;
        /// Appends an XRCETH.
        3 xrceth: XrcEth, has_xrceth;
        /// Appends a FETH.
        4 feth: Feth, has_feth;
        /// Appends a RETH.
        5 reth: Reth, has_reth;
        /// Appends an AtomicETH.
        6 atomic_eth: AtomicEth, has_atomic_eth;
        /// Appends an AETH.
        7 aeth: Aeth, has_aeth;
        /// Appends an AtomicAckETH.
        8 atomic_ack: AtomicAckEth, has_atomic_ack;
        /// Appends immediate data.
        9 immediate: ImmDt, has_immediate;
        /// Appends an IETH.
        10 ieth: Ieth, has_invalidate;
    }

    /// Returns a copy of the buffer, after [`check_complete`](Self::check_complete).
    #[inline]
    pub fn finish(&self) -> HeaderBuf {
        self.check_complete();
        *self
    }

    /// Asserts, in debug builds, that all headers of the opcode were appended.
    #[inline]
    pub fn check_complete(&self) {
        debug_assert_eq!(
            self.len as usize,
            self.opcode.header_len(),
            "headers of {} incomplete",
            self.opcode
        );
    }

    /// Returns the opcode of the BTH.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Returns the whole buffer, of which the first [`len`](Self::len) bytes are
    /// valid. Copying a fixed size is cheaper than copying the exact length.
    #[inline]
    pub fn buffer(&self) -> &[u8; MAX_HEADER_LEN] {
        &self.bytes
    }

    /// Returns the number of bytes written so far.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // never empty: `new` writes the BTH
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the bytes written so far.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl AsRef<[u8]> for HeaderBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}
