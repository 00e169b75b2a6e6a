//! MRA: message receipt acknowledgement.

use super::Subject;
use crate::PrivateData;
use crate::codec::*;

/// A request to the sender of a REQ or REP to wait longer before it retransmits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID.
    pub remote_id: u32,
    /// The message that is acknowledged.
    pub subject: Subject,
    /// Time that the answer may take; a time code.
    pub service_timeout: u8,
    /// Private data.
    pub private_data: PrivateData<222>,
}

impl Mra {
    pub(crate) fn parse(body: &Body) -> Mra {
        Mra {
            local_id: get32(body, 0),
            remote_id: get32(body, 4),
            subject: Subject::from_bits(get_bits(body, 8, 7, 6)),
            service_timeout: get_bits(body, 9, 7, 3),
            private_data: PrivateData(get_bytes(body, 10)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.local_id);
        put32(body, 4, self.remote_id);
        put_bits(body, 8, 7, 6, self.subject as u8);
        put_bits(body, 9, 7, 3, self.service_timeout);
        put_bytes(body, 10, &self.private_data.0);
    }
}
