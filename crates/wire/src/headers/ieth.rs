//! Invalidate extended transport header.

use crate::head;

/// The remote key that a SEND with invalidate invalidates at the responder.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ieth {
    /// The remote key to invalidate.
    pub rkey: u32,
}

impl Ieth {
    /// Length on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Ieth {
        Ieth {
            rkey: u32::from_be_bytes(*head(bytes)),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.rkey.to_be_bytes());
    }
}
