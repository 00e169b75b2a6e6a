//! RTU, DREQ and DREP: messages with the two communication IDs and private data.

use crate::PrivateData;
use crate::codec::*;

/// Ready to use: the active side has received the REP.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Rtu {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID.
    pub remote_id: u32,
    /// Private data.
    pub private_data: PrivateData<224>,
}

/// Disconnect request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID.
    pub remote_id: u32,
    /// The receiver's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// Private data.
    pub private_data: PrivateData<220>,
}

/// Disconnect reply.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Drep {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID.
    pub remote_id: u32,
    /// Private data.
    pub private_data: PrivateData<224>,
}

impl Rtu {
    pub(crate) fn parse(body: &Body) -> Rtu {
        Rtu {
            local_id: get32(body, 0),
            remote_id: get32(body, 4),
            private_data: PrivateData(get_bytes(body, 8)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.local_id);
        put32(body, 4, self.remote_id);
        put_bytes(body, 8, &self.private_data.0);
    }
}

impl Dreq {
    pub(crate) fn parse(body: &Body) -> Dreq {
        Dreq {
            local_id: get32(body, 0),
            remote_id: get32(body, 4),
            remote_qpn: get24(body, 8),
            private_data: PrivateData(get_bytes(body, 12)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.local_id);
        put32(body, 4, self.remote_id);
        put24(body, 8, self.remote_qpn);
        put_bytes(body, 12, &self.private_data.0);
    }
}

impl Drep {
    pub(crate) fn parse(body: &Body) -> Drep {
        Drep {
            local_id: get32(body, 0),
            remote_id: get32(body, 4),
            private_data: PrivateData(get_bytes(body, 8)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.local_id);
        put32(body, 4, self.remote_id);
        put_bytes(body, 8, &self.private_data.0);
    }
}
