//! The headers of a packet to be sent.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, MAX_HEADER_LEN, Opcode, Psn,
    Rdeth, Reth, XrcEth, head,
};

/// BTH and extension headers in wire form, in a buffer of fixed size.
///
/// ```
/// # use ferroce_wire::*;
/// let opcode = Opcode::new(Transport::Rc, Operation::Acknowledge).unwrap();
/// let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: 1 };
/// let header = HeaderBuf::new(&Bth::new(opcode, 0x12, Psn::new(1))).aeth(&aeth).finish();
/// assert_eq!(header.as_bytes().len(), opcode.header_len());
/// ```
///
/// Push the headers in wire order: RDETH, DETH, XRCETH, FETH, RETH, AtomicETH,
/// AETH, AtomicAckETH, ImmDt, IETH. Debug builds check order and completeness
/// against the opcode.
#[derive(Copy, Clone, Debug)]
#[must_use]
pub struct HeaderBuf {
    bytes: [u8; MAX_HEADER_LEN],
    len: u8,
    opcode: Opcode,
    /// Rank in wire order of the header pushed last.
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
    /// Starts with the BTH.
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

    /// Starts again with the BTH of another packet, in place: what was written
    /// in pieces is expensive to copy at once.
    #[inline]
    pub fn restart(&mut self, bth: &Bth) -> &mut HeaderBuf {
        bth.emit(&mut self.bytes);
        self.len = Bth::LEN as u8;
        self.opcode = bth.opcode;
        self.rank = 0;
        self
    }

    /// The PSN.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(u32::from_be_bytes(*head(&self.bytes[Bth::PSN])))
    }

    /// Makes it ask for an acknowledgement.
    #[inline]
    pub fn ask(&mut self) {
        self.bytes[Bth::PSN.start] |= Bth::ACK_REQ;
    }

    /// Makes it the header of another packet, which does not ask for an acknowledgement
    /// and else differs in its PSN only.
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

    /// The finished headers.
    #[inline]
    pub fn finish(&self) -> HeaderBuf {
        self.check_complete();
        *self
    }

    /// Asserts, in debug builds, that all headers of the opcode are there.
    #[inline]
    pub fn check_complete(&self) {
        debug_assert_eq!(
            self.len as usize,
            self.opcode.header_len(),
            "headers of {} incomplete",
            self.opcode
        );
    }

    /// The opcode the buffer was started with.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The whole buffer, of which the first [`len`](Self::len) bytes count: a
    /// copy of fixed size is cheaper than one of the exact length.
    #[inline]
    pub fn buffer(&self) -> &[u8; MAX_HEADER_LEN] {
        &self.bytes
    }

    /// How many bytes there are so far.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // never empty: the BTH is there from the start
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The bytes so far.
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
