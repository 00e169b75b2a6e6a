//! Datagram extended transport header.

use crate::{be24, head};

/// The DETH of a datagram: the sender's queue pair, and the receiver's Q_Key.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Deth {
    /// Q_Key. The receiver drops the datagram unless this is its own Q_Key.
    pub qkey: u32,
    /// Number of the sender's queue pair, 24 bits.
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
