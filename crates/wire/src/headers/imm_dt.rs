//! Immediate data.

use crate::head;

/// Four bytes that travel with a message to the completion at the other end.
///
/// Opaque: the number holds the bytes as they are in memory and on the wire,
/// like `ibv_wc.imm_data`, and is never swapped.
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
