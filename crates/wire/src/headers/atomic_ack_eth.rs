//! Atomic acknowledge extended transport header.

use crate::head;

/// The result of an atomic operation.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct AtomicAckEth {
    /// The value in memory before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> AtomicAckEth {
        AtomicAckEth {
            original: u64::from_be_bytes(*head(bytes)),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.original.to_be_bytes());
    }
}
