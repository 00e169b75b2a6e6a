//! REQ: connection request.

use super::Path;
use crate::PrivateData;
use crate::codec::*;

/// A connection request, from the active to the passive side.
///
/// "Local" means the sender of the message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's communication ID.
    pub local_id: u32,
    /// Vendor ID of enhanced connection establishment, 24 bits.
    pub vendor_id: u32,
    /// The requested service.
    pub service_id: u64,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// Q_Key, for datagrams.
    pub qkey: u32,
    /// The sender's queue pair, 24 bits.
    pub qpn: u32,
    /// Concurrent READs and atomics that the sender serves.
    pub responder_resources: u8,
    /// The sender's end-to-end context, 24 bits.
    pub eecn: u32,
    /// READs and atomics that the sender may have outstanding.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context, 24 bits.
    pub remote_eecn: u32,
    /// Time in which the receiver should answer; a time code.
    pub remote_response_timeout: u8,
    /// Transport service type of the connection.
    pub transport: Transport,
    /// True if the sender uses end-to-end flow control.
    pub flow_control: bool,
    /// First PSN that the sender expects, 24 bits.
    pub starting_psn: u32,
    /// Time in which the sender answers; a time code.
    pub local_response_timeout: u8,
    /// Retry count for the receiver's queue pair, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU as an enumeration: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// True if a reliable datagram channel exists.
    pub rdc_exists: bool,
    /// RNR retry count for the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// Number of retransmissions of a CM message, 4 bits.
    pub max_cm_retries: u8,
    /// True if the sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Extended transport, 3 bits; 1 is XRC.
    pub extended_transport: u8,
    /// The primary path.
    pub primary: Path,
    /// The alternate path.
    pub alternate: Path,
    /// True if the sender supports a suspended alternate path.
    pub sap_supported: bool,
    /// Private data.
    pub private_data: PrivateData<92>,
}

/// Transport service type.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// The transport in [`Req::extended_transport`].
    Extended,
}

impl Req {
    pub(crate) fn parse(body: &Body) -> Req {
        Req {
            local_id: get32(body, 0),
            vendor_id: get24(body, 5),
            service_id: get64(body, 8),
            ca_guid: get64(body, 16),
            qkey: get32(body, 28),
            qpn: get24(body, 32),
            responder_resources: body[35],
            eecn: get24(body, 36),
            initiator_depth: body[39],
            remote_eecn: get24(body, 40),
            remote_response_timeout: get_bits(body, 43, 7, 3),
            transport: Transport::from_bits(get_bits(body, 43, 2, 1)),
            flow_control: get_flag(body, 43, 0),
            starting_psn: get24(body, 44),
            local_response_timeout: get_bits(body, 47, 7, 3),
            retry_count: get_bits(body, 47, 2, 0),
            pkey: get16(body, 48),
            path_mtu: get_bits(body, 50, 7, 4),
            rdc_exists: get_flag(body, 50, 3),
            rnr_retry_count: get_bits(body, 50, 2, 0),
            max_cm_retries: get_bits(body, 51, 7, 4),
            srq: get_flag(body, 51, 3),
            extended_transport: get_bits(body, 51, 2, 0),
            primary: Path::parse_req(body, 52),
            alternate: Path::parse_req(body, 96),
            sap_supported: get_flag(body, 139, 2),
            private_data: PrivateData(get_bytes(body, 140)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        put32(body, 0, self.local_id);
        put24(body, 5, self.vendor_id);
        put64(body, 8, self.service_id);
        put64(body, 16, self.ca_guid);
        put32(body, 28, self.qkey);
        put24(body, 32, self.qpn);
        body[35] = self.responder_resources;
        put24(body, 36, self.eecn);
        body[39] = self.initiator_depth;
        put24(body, 40, self.remote_eecn);
        put_bits(body, 43, 7, 3, self.remote_response_timeout);
        put_bits(body, 43, 2, 1, self.transport as u8);
        put_flag(body, 43, 0, self.flow_control);
        put24(body, 44, self.starting_psn);
        put_bits(body, 47, 7, 3, self.local_response_timeout);
        put_bits(body, 47, 2, 0, self.retry_count);
        put16(body, 48, self.pkey);
        put_bits(body, 50, 7, 4, self.path_mtu);
        put_flag(body, 50, 3, self.rdc_exists);
        put_bits(body, 50, 2, 0, self.rnr_retry_count);
        put_bits(body, 51, 7, 4, self.max_cm_retries);
        put_flag(body, 51, 3, self.srq);
        put_bits(body, 51, 2, 0, self.extended_transport);
        self.primary.emit_req(body, 52);
        self.alternate.emit_req(body, 96);
        put_flag(body, 139, 2, self.sap_supported);
        put_bytes(body, 140, &self.private_data.0);
    }
}

impl Transport {
    fn from_bits(bits: u8) -> Transport {
        match bits & 3 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Rd,
            _ => Transport::Extended,
        }
    }
}
