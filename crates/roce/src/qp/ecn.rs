//! Congestion notification packets (CNPs).
//!
//! A router marks packets as it becomes congested (ECN). The receiver of a marked packet
//! sends a CNP to the sender, which then shrinks its window.

use ferroce_wire::{Bth, Opcode, Operation, Psn, Transport};

use super::{Due, Qp};
use crate::counters::Counter;
use crate::engine::Context;
use crate::time::Time;
use crate::transmit::{Batch, NewPacket, Origin};

/// Reserved bytes behind the BTH of a CNP.
const RESERVED: [u8; 16] = [0; 16];
/// Minimum time between two CNPs of a queue pair.
const INTERVAL_NS: u64 = 50_000;

/// State of the CNPs to the peer.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    due: bool,
    last: Option<Time>,
}

impl Qp {
    /// Queues a CNP because a packet of the peer carries the congestion mark.
    pub(crate) fn notify_congestion(&mut self, cx: &mut Context) {
        let recent = |last: Time| cx.now.nanos_since(last) < INTERVAL_NS;
        if !self.notifications.last.is_some_and(recent) {
            self.notifications.last = Some(cx.now);
            self.notifications.due = true;
            self.wake(cx, Due::RESPONSES);
        }
    }

    /// Handles a CNP of the peer: shrinks the window.
    pub(crate) fn congestion_notified(&mut self, cx: &mut Context) {
        cx.count(Counter::RcvdCnp);
        self.req.window.marked(self.req.sent_up_to);
    }

    /// Adds a CNP to the batch if one is due.
    pub(super) fn transmit_notification(&mut self, cx: &mut Context, batch: &mut Batch) {
        if !self.notifications.due {
            return;
        }
        self.notifications.due = false;
        cx.count(Counter::SentCnp);
        let opcode = Opcode::new(Transport::Cnp, Operation::CongestionNotification)
            .expect("the CNP transport has this opcode");
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
