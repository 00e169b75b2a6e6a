//! Middle packets of a long SEND or WRITE, added to the batch many at a time.
//!
//! Packets between FIRST and LAST differ only in PSN and payload address. While they come
//! from a single SGE and none needs AckReq, one header and one key lookup serve all of them.
//! The requester sends all other packets one by one.

use super::Qp;
use super::request_header::message_header;
use crate::congestion::PACKET_OVERHEAD;
use crate::engine::Context;
use crate::transmit::{Batch, NewPacket, Origin};
use crate::verbs::Access;

impl Qp {
    /// Adds the middle packets of work request `index` that may be sent now, while the batch
    /// has fewer than `limit` packets. It may add none. The first packet has been sent.
    pub(super) fn push_middle_packets(
        &mut self,
        cx: &Context,
        batch: &mut Batch,
        index: usize,
        limit: usize,
    ) {
        let (Some(wqe), Some(pd)) = (self.sq.get(index), &self.pd) else {
            return;
        };
        let packet = self.req.sent;
        let middle_packets = wqe.packets.saturating_sub(packet + 1);
        if wqe.num_sge != 1 {
            return;
        }
        let cost = self.mtu + PACKET_OVERHEAD;
        let acknowledged = self.kind.is_reliable();
        let room = batch
            .room(limit, self.mtu as usize)
            .max(self.room_in_run(batch));
        let mut count = room.min(middle_packets as usize) as u32;
        if acknowledged {
            // If the packet before had AckReq set, these packets begin a new group.
            if middle_packets == 0 || !self.req.admits_group(cost, middle_packets, self.mtu) {
                return;
            }
            count = count.min(self.req.packets_without_ack_req(cost));
        }
        if count < 2 {
            return;
        }
        let addr = wqe.sge.addr.wrapping_add(self.offset_of(cx, wqe, packet));
        let length = count * self.mtu;
        let Ok(address) = cx.local(wqe.sge.lkey, pd, Access::empty(), addr, length) else {
            return;
        };
        message_header(self, batch, wqe, packet, self.mtu, false);
        let new = NewPacket {
            qpn: self.qpn,
            origin: Origin::Request(self.req.psn),
            payload_len: self.mtu,
            flush_quirk: false,
        };
        batch.push_uniform(&self.path, new, address, count);
        self.req.sent += count;
        self.req.psn = self.req.psn.add(count);
        if acknowledged {
            self.req.note_sent_without_ack_req(count, cost);
            self.req.note_sent(cx, &self.attr);
        }
    }
}
