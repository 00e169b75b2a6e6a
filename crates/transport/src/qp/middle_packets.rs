//! The middle of a long message, many packets at a time.
//!
//! Packets of a SEND or WRITE between the first and the last differ in PSN and place only.
//! As long as they come from one piece of memory and none of them must ask for an answer,
//! what is the same for all is done once. The others are the requester's.

use super::Qp;
use super::request_header::message_header;
use crate::congestion::PACKET_OVERHEAD;
use crate::engine::Context;
use crate::transmit::{Batch, NewPacket, Origin};
use crate::verbs::Access;

impl Qp {
    /// Adds as many such packets of work request `index`, of which some have left, as may
    /// follow now, while the batch has fewer than `limit`; perhaps none.
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
        if wqe.num_sge != 1 || !cx.is_sound() {
            return;
        }
        let cost = self.mtu + PACKET_OVERHEAD;
        let acknowledged = self.kind.is_reliable();
        let room = batch.room(limit).max(self.room_in_run(batch));
        let mut count = room.min(middle_packets as usize) as u32;
        if acknowledged {
            // The one before may have asked, and these begin another group.
            if middle_packets == 0 || !self.req.admits_group(cost, middle_packets, self.mtu) {
                return;
            }
            count = count.min(self.req.packets_without_ack_req(cost));
        }
        if count < 2 {
            return;
        }
        let addr = wqe
            .sge
            .addr
            .wrapping_add(wqe.bytes_before(packet, self.mtu));
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
