//! REP: the reply that accepts a request.

use crate::PrivateData;
use crate::codec::*;

/// The reply to a REQ, from the passive side.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's communication ID.
    pub local_id: u32,
    /// The receiver's communication ID, from its REQ.
    pub remote_id: u32,
    /// Q_Key, for datagrams.
    pub qkey: u32,
    /// The sender's queue pair, 24 bits.
    pub qpn: u32,
    /// Vendor ID of enhanced connection establishment, 24 bits.
    pub vendor_id: u32,
    /// The sender's end-to-end context, or XRC target queue pair; 24 bits.
    pub eecn: u32,
    /// First PSN that the sender expects, 24 bits.
    pub starting_psn: u32,
    /// Concurrent READs and atomics that the sender serves.
    pub responder_resources: u8,
    /// READs and atomics that the sender may have outstanding.
    pub initiator_depth: u8,
    /// Time in which the sender's adapter acknowledges a packet; a time code.
    pub target_ack_delay: u8,
    /// Answer to the alternate path of the REQ, 2 bits; 0 is accepted.
    pub failover_accepted: u8,
    /// True if the sender uses end-to-end flow control.
    pub flow_control: bool,
    /// RNR retry count for the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// True if the sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// Private data.
    pub private_data: PrivateData<196>,
}

impl Rep {
    pub(crate) fn parse(body: &Body) -> Rep {
        Rep {
            local_id: get32(body, 0),
            remote_id: get32(body, 4),
            qkey: get32(body, 8),
            qpn: get24(body, 12),
            vendor_id: u32::from_be_bytes([0, body[15], body[19], body[23]]),
            eecn: get24(body, 16),
            starting_psn: get24(body, 20),
            responder_resources: body[24],
            initiator_depth: body[25],
            target_ack_delay: get_bits(body, 26, 7, 3),
            failover_accepted: get_bits(body, 26, 2, 1),
            flow_control: get_flag(body, 26, 0),
            rnr_retry_count: get_bits(body, 27, 7, 5),
            srq: get_flag(body, 27, 4),
            ca_guid: get64(body, 28),
            private_data: PrivateData(get_bytes(body, 36)),
        }
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        let [_, high, middle, low] = self.vendor_id.to_be_bytes();
        put32(body, 0, self.local_id);
        put32(body, 4, self.remote_id);
        put32(body, 8, self.qkey);
        put24(body, 12, self.qpn);
        body[15] = high;
        put24(body, 16, self.eecn);
        body[19] = middle;
        put24(body, 20, self.starting_psn);
        body[23] = low;
        body[24] = self.responder_resources;
        body[25] = self.initiator_depth;
        put_bits(body, 26, 7, 3, self.target_ack_delay);
        put_bits(body, 26, 2, 1, self.failover_accepted);
        put_flag(body, 26, 0, self.flow_control);
        put_bits(body, 27, 7, 5, self.rnr_retry_count);
        put_flag(body, 27, 4, self.srq);
        put64(body, 28, self.ca_guid);
        put_bytes(body, 36, &self.private_data.0);
    }
}
