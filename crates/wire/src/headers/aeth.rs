//! Acknowledge extended transport header.

use super::Syndrome;
use crate::{be24, head};

/// The AETH: whether the responder accepted a request, and how far it has got.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Message sequence number: messages that the responder has completed, 24 bits.
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
