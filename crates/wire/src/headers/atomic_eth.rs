//! Atomic extended transport header.

use crate::head;

/// The operands of COMPARE_SWAP and FETCH_ADD.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct AtomicEth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// The new value (COMPARE_SWAP) or the addend (FETCH_ADD).
    pub swap_or_add: u64,
    /// The value to compare with. FETCH_ADD does not use this field; rxe sends
    /// leftover bytes in it.
    pub compare: u64,
}

impl AtomicEth {
    /// Length on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> AtomicEth {
        AtomicEth {
            va: u64::from_be_bytes(*head(bytes)),
            rkey: u32::from_be_bytes(*head(&bytes[8..])),
            swap_or_add: u64::from_be_bytes(*head(&bytes[12..])),
            compare: u64::from_be_bytes(*head(&bytes[20..])),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        out[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}
