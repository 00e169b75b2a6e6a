//! Congestion notification: what the network says about itself.

use ferroce_wire::{Bth, Opcode, Operation, Psn, Transport};

use super::{Due, Qp};
use crate::counters::Counter;
use crate::engine::Context;
use crate::time::Time;
use crate::transmit::{Batch, NewPacket, Origin};

/// Bytes behind the BTH of a notification, all zero.
const RESERVED: [u8; 16] = [0; 16];
/// At most one notification in this time for each queue pair.
const INTERVAL_NS: u64 = 50_000;

/// Whether the peer is to be told that its packets meet congestion.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    due: bool,
    last: Option<Time>,
}

impl Qp {
    /// A packet of the peer was marked on its way.
    pub(crate) fn notify_congestion(&mut self, cx: &mut Context) {
        let recent = |last: Time| cx.now.nanos_since(last) < INTERVAL_NS;
        if !self.notifications.last.is_some_and(recent) {
            self.notifications.last = Some(cx.now);
            self.notifications.due = true;
            self.wake(cx, Due::RESPONSES);
        }
    }

    /// The peer says that our packets meet congestion.
    pub(crate) fn congestion_notified(&mut self, cx: &mut Context) {
        cx.count(Counter::RcvdCnp);
        self.req.window.lost(self.req.sent_up_to);
    }

    pub(super) fn transmit_notification(&mut self, cx: &mut Context, batch: &mut Batch) {
        if !self.notifications.due {
            return;
        }
        self.notifications.due = false;
        cx.count(Counter::SentCnp);
        let opcode = Opcode::new(Transport::Cnp, Operation::CongestionNotification)
            .expect("the transport exists for this operation");
        let mut bth = Bth::new(opcode, self.attr.dest_qpn, Psn::new(0));
        bth.becn = true;
        let mark = batch.mark();
        batch.push_inline(&RESERVED);
        batch.header(&bth);
        batch.push(
            &self.path,
            mark,
            NewPacket {
                qpn: self.qpn,
                origin: Origin::Response(Psn::new(0)),
                payload_len: RESERVED.len() as u32,
                flush_quirk: false,
            },
        );
    }
}
