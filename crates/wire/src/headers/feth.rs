//! Flush extended transport header.

use crate::head;

/// The guarantee that a FLUSH asks for, and the memory it applies to.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Feth {
    /// Placement type, 4 bits: [`Feth::GLOBAL`], [`Feth::PERSISTENT`] or both.
    pub placement: u8,
    /// Selectivity, 2 bits: [`Feth::RANGE`] or [`Feth::WHOLE_MR`].
    pub selectivity: u8,
}

impl Feth {
    /// Length on the wire.
    pub const LEN: usize = 4;

    /// Placement: earlier WRITEs become globally visible.
    pub const GLOBAL: u8 = 1;
    /// Placement: earlier WRITEs become persistent.
    pub const PERSISTENT: u8 = 2;
    /// Selectivity: flush the address range in the RETH.
    pub const RANGE: u8 = 0;
    /// Selectivity: flush the whole memory region and ignore the RETH's address and length.
    pub const WHOLE_MR: u8 = 1;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Feth {
        let [_, _, _, bits] = *head::<4>(bytes);
        Feth {
            placement: bits & 0x0f,
            selectivity: bits >> 4 & 3,
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let bits = (self.selectivity & 3) << 4 | self.placement & 0x0f;
        out[..4].copy_from_slice(&[0, 0, 0, bits]);
    }
}
