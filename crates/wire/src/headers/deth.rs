//! Datagram extended transport header.

use crate::{be24, head};

/// Who sent a datagram, and the key that lets it in.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Deth {
    /// Queue key, which must equal the receiver's.
    pub qkey: u32,
    /// The sender's queue pair, 24 bits.
    pub source_qpn: u32,
}

impl Deth {
    /// Length on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Deth {
        let [_, source_qpn @ ..] = *head::<4>(&bytes[4..]);
        Deth {
            qkey: u32::from_be_bytes(*head(bytes)),
            source_qpn: be24(source_qpn),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.qkey.to_be_bytes());
        out[4..8].copy_from_slice(&(self.source_qpn & 0x00ff_ffff).to_be_bytes());
    }
}
