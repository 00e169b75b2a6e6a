//! SIDR_REQ and SIDR_REP: resolution of a service ID to a queue pair for datagrams.

use crate::PrivateData;
use crate::codec::*;

/// A request for the queue pair that serves a service.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// ID of the request.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// The requested service.
    pub service_id: u64,
    /// Private data.
    pub private_data: PrivateData<216>,
}

/// The reply to a SIDR_REQ.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// ID of the answered request.
    pub request_id: u32,
    /// Status. QPN and Q_Key are valid if this is [`SidrStatus::VALID`].
    pub status: SidrStatus,
    /// Length of the additional information.
    pub info_len: u8,
    /// Vendor ID of enhanced connection establishment, 24 bits.
    pub vendor_id: u32,
    /// Number of the queue pair, 24 bits.
    pub qpn: u32,
    /// The requested service.
    pub service_id: u64,
    /// Q_Key that datagrams to the queue pair must carry.
    pub qkey: u32,
    /// Additional information.
    pub info: [u8; 72],
    /// Private data.
    pub private_data: PrivateData<136>,
}

/// Status of a SIDR_REP.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QPN and Q_Key are valid.
    pub const VALID: SidrStatus = SidrStatus(0);
    /// The service has no listener.
    pub const UNSUPPORTED_SERVICE: SidrStatus = SidrStatus(1);
    /// The application has rejected the request.
    pub const REJECTED: SidrStatus = SidrStatus(2);
    /// The node has no queue pair for the service.
    pub const NO_QP: SidrStatus = SidrStatus(3);
    /// Another node or port serves the request.
    pub const REDIRECT: SidrStatus = SidrStatus(4);
    /// The class version of the request is not supported.
    pub const UNSUPPORTED_VERSION: SidrStatus = SidrStatus(5);
}

impl SidrReq {
    pub(crate) fn parse(body: &Body) -> SidrReq {
        SidrReq {
            request_id: get32(body, 0),
            pkey: get16(body, 4),
            service_id: get64(body, 8),
            private_data: PrivateData(get_bytes(body, 16)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.request_id);
        put16(body, 4, self.pkey);
        put64(body, 8, self.service_id);
        put_bytes(body, 16, &self.private_data.0);
    }
}

impl SidrRep {
    pub(crate) fn parse(body: &Body) -> SidrRep {
        SidrRep {
            request_id: get32(body, 0),
            status: SidrStatus(body[4]),
            info_len: body[5],
            vendor_id: u32::from_be_bytes([0, body[6], body[7], body[11]]),
            qpn: get24(body, 8),
            service_id: get64(body, 12),
            qkey: get32(body, 20),
            info: get_bytes(body, 24),
            private_data: PrivateData(get_bytes(body, 96)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        let [_, high, middle, low] = self.vendor_id.to_be_bytes();
        put32(body, 0, self.request_id);
        body[4] = self.status.0;
        body[5] = self.info_len;
        body[6] = high;
        body[7] = middle;
        put24(body, 8, self.qpn);
        body[11] = low;
        put64(body, 12, self.service_id);
        put32(body, 20, self.qkey);
        put_bytes(body, 24, &self.info);
        put_bytes(body, 96, &self.private_data.0);
    }
}
