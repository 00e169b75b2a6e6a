//! RDMA extended transport header.

use crate::head;

/// The remote memory range of a WRITE, READ, FLUSH or ATOMIC_WRITE.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole message in bytes, not of this packet.
    pub length: u32,
}

impl Reth {
    /// Length on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Reth {
        Reth {
            va: u64::from_be_bytes(*head(bytes)),
            rkey: u32::from_be_bytes(*head(&bytes[8..])),
            length: u32::from_be_bytes(*head(&bytes[12..])),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..16].copy_from_slice(&self.length.to_be_bytes());
    }
}
