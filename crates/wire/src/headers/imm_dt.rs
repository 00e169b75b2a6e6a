//! Immediate data.

use crate::head;

/// Immediate data: four bytes that the receiver finds in its work completion.
///
/// The number holds the bytes in wire order, like `ibv_wc.imm_data`. This crate
/// never swaps them.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Length on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> ImmDt {
        ImmDt(u32::from_ne_bytes(*head(bytes)))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.0.to_ne_bytes());
    }
}
