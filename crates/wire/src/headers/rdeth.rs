//! Reliable datagram extended transport header.

use crate::{be24, head};

/// The end-to-end context of an RD packet.
///
/// No known adapter implements RD. This crate knows the header so that it computes
/// the header length of RD opcodes correctly.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rdeth {
    /// End-to-end context, 24 bits.
    pub ee_context: u32,
}

impl Rdeth {
    /// Length on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Rdeth {
        let [_, ee_context @ ..] = *head::<4>(bytes);
        Rdeth {
            ee_context: be24(ee_context),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&(self.ee_context & 0x00ff_ffff).to_be_bytes());
    }
}
