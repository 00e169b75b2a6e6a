//! XRC extended transport header.

use crate::{be24, head};

/// The shared receive queue that an XRC request is for. XRC responses have no XRCETH.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct XrcEth {
    /// XRC shared receive queue number, 24 bits.
    pub srq_number: u32,
}

impl XrcEth {
    /// Length on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> XrcEth {
        let [_, srq_number @ ..] = *head::<4>(bytes);
        XrcEth {
            srq_number: be24(srq_number),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&(self.srq_number & 0x00ff_ffff).to_be_bytes());
    }
}
