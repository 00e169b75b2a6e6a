//! Acknowledge extended transport header.

use super::Syndrome;
use crate::{be24, head};

/// What a response says about the request and the responder's progress.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Aeth {
    /// Acknowledged, not ready, or refused.
    pub syndrome: Syndrome,
    /// Message sequence number: messages completed so far, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Length on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Aeth {
        let [syndrome, msn @ ..] = *head::<4>(bytes);
        Aeth {
            syndrome: Syndrome::from_byte(syndrome),
            msn: be24(msn),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let [_, msn @ ..] = self.msn.to_be_bytes();
        out[0] = self.syndrome.byte();
        out[1..4].copy_from_slice(&msn);
    }
}
