//! LAP and APR: alternate paths, which RoCE does not have.

use super::Path;
use crate::PrivateData;
use crate::codec::*;

/// A request to load an alternate path.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Lap {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID.
    pub remote_id: u32,
    /// The receiver's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// Time in which the receiver should answer; a time code.
    pub remote_response_timeout: u8,
    /// The alternate path.
    pub path: Path,
    /// Private data.
    pub private_data: PrivateData<168>,
}

/// The response to a LAP.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Apr {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID.
    pub remote_id: u32,
    /// Length of the additional information.
    pub info_len: u8,
    /// Result of the LAP.
    pub status: AprStatus,
    /// Additional information.
    pub info: [u8; 72],
    /// Private data.
    pub private_data: PrivateData<148>,
}

/// The result of a LAP.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AprStatus(pub u8);

impl AprStatus {
    /// The path is loaded.
    pub const LOADED: AprStatus = AprStatus(0);
    /// The node does not support alternate paths.
    pub const UNSUPPORTED: AprStatus = AprStatus(2);
}

impl Lap {
    pub(crate) fn parse(body: &Body) -> Lap {
        Lap {
            local_id: get32(body, 0),
            remote_id: get32(body, 4),
            remote_qpn: get24(body, 12),
            remote_response_timeout: get_bits(body, 15, 7, 3),
            path: Path::parse_lap(body, 20),
            private_data: PrivateData(get_bytes(body, 64)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.local_id);
        put32(body, 4, self.remote_id);
        put24(body, 12, self.remote_qpn);
        put_bits(body, 15, 7, 3, self.remote_response_timeout);
        self.path.emit_lap(body, 20);
        put_bytes(body, 64, &self.private_data.0);
    }
}

impl Apr {
    pub(crate) fn parse(body: &Body) -> Apr {
        Apr {
            local_id: get32(body, 0),
            remote_id: get32(body, 4),
            info_len: body[8],
            status: AprStatus(body[9]),
            info: get_bytes(body, 12),
            private_data: PrivateData(get_bytes(body, 84)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.local_id);
        put32(body, 4, self.remote_id);
        body[8] = self.info_len;
        body[9] = self.status.0;
        put_bytes(body, 12, &self.info);
        put_bytes(body, 84, &self.private_data.0);
    }
}
