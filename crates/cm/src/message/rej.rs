//! REJ: rejection.

use super::Subject;
use crate::codec::*;
use crate::{PrivateData, Reason};

/// The rejection of a REQ or REP, or the end of an attempt to connect.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's communication ID, 0 if it has none.
    pub local_id: u32,
    /// The receiver's communication ID, 0 if the sender does not know it.
    pub remote_id: u32,
    /// The rejected message.
    pub subject: Subject,
    /// Length of the additional reject information, 7 bits.
    pub ari_len: u8,
    /// Reason of the rejection.
    pub reason: Reason,
    /// Additional reject information (ARI): details of the reason.
    pub ari: [u8; 72],
    /// Private data.
    pub private_data: PrivateData<148>,
}

impl Rej {
    /// Returns the valid part of the additional reject information.
    pub fn ari(&self) -> &[u8] {
        &self.ari[..usize::from(self.ari_len).min(72)]
    }

    /// Sets the additional reject information, truncated to 72 bytes.
    #[must_use]
    pub fn with_ari(mut self, information: &[u8]) -> Rej {
        let len = information.len().min(72);
        self.ari = [0; 72];
        self.ari[..len].copy_from_slice(&information[..len]);
        self.ari_len = len as u8;
        self
    }

    pub(crate) fn parse(body: &Body) -> Rej {
        Rej {
            local_id: get32(body, 0),
            remote_id: get32(body, 4),
            subject: Subject::from_bits(get_bits(body, 8, 7, 6)),
            ari_len: get_bits(body, 9, 7, 1),
            reason: Reason(get16(body, 10)),
            ari: get_bytes(body, 12),
            private_data: PrivateData(get_bytes(body, 84)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.local_id);
        put32(body, 4, self.remote_id);
        put_bits(body, 8, 7, 6, self.subject as u8);
        put_bits(body, 9, 7, 1, self.ari_len);
        put16(body, 10, self.reason.0);
        put_bytes(body, 12, &self.ari);
        put_bytes(body, 84, &self.private_data.0);
    }
}
