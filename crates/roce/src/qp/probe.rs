//! Loss probes: find a lost tail after a few round trips.
//!
//! The peer reports a gap in the middle of a stream at once, with a NAK. It cannot report
//! lost packets at the end of the stream, a lost ACK or a lost retransmission. The ACK
//! timeout of IBTA is far too long to wait for: 67 ms with the usual attribute 14, while a
//! round trip takes 20 us. So the requester retransmits the oldest unacknowledged packet
//! when a response is overdue by the measured round trips.
//!
//! TCP's tail loss probe (RFC 8985) sends the newest packet. Here the probe is the oldest
//! packet, because a responder that has sent a NAK drops all other packets.
//!
//! The response shows what was lost:
//!
//! - The ACK covers exactly the probe: the packets behind it were sent before the probe, so
//!   they are lost. The requester goes back to the packet after the probe at once. An ACK
//!   that arrives sooner after the probe than the shortest round trip belongs to the
//!   original packet, and proves no loss.
//! - The ACK covers everything: only an ACK was lost, or the peer was late. Nothing is
//!   retransmitted.
//! - The ACK covers more than the probe, but not everything: either the rest was lost, or a
//!   late peer is about to acknowledge the rest. The packet behind the ACK is the next probe
//!   if nothing else is left to send. Otherwise the next new packet shows the peer a gap.
//!
//! A probe uses up no retry and does not shrink the window. The ACK timeout still runs: it
//! alone counts retries and fails the queue pair.

use ferroce_wire::Psn;

use super::request_header::message_header;
use super::{Due, Qp};
use crate::attr::QpState;
use crate::bugs::Bug;
use crate::counters::Counter;
use crate::decision::{Decision, Retransmission};
use crate::engine::Context;
use crate::operation::OpClass;
use crate::psn_mark::PsnMark;
use crate::send_queue::Phase;
use crate::time::Deadline;
use crate::transmit::{Batch, NewPacket, Origin};
use crate::verbs::WcStatus;

impl Qp {
    /// Sends a probe because a response is overdue, and doubles the time to the next one.
    pub(super) fn probe_timer_expired(&mut self, cx: &mut Context) {
        self.req.probe_deadline = Deadline::NONE;
        if self.can_probe() {
            self.req.round_trip.back_off();
            self.req.start_probe_timer(cx, &self.attr);
            self.try_other_flush_icrc();
            self.start_probe(cx);
        }
    }

    /// Schedules a retransmission of the oldest unacknowledged packet as a probe.
    fn start_probe(&mut self, cx: &mut Context) {
        self.req.schedule_probe();
        let psn = self.req.una;
        cx.decisions.add(self.qpn, || Decision::Probe { psn });
        // An earlier retry has had no response for a whole probe timeout. From now on
        // responses belong to the probe.
        self.req.retrying = false;
        self.req.round_trip.sent_again(self.req.una);
        self.wake(cx, Due::PROBE);
    }

    /// True if the oldest work request has a packet in flight.
    fn can_probe(&self) -> bool {
        let sends = matches!(self.state, QpState::Rts | QpState::Sqd);
        let in_flight = self.req.una.is_before(self.req.psn);
        let oldest = self.sq.front();
        sends
            && in_flight
            && self.req.rnr_until.is_none()
            && !self.sq.fails(0)
            && oldest.is_some_and(|wqe| wqe.phase == Phase::Started)
    }

    /// Adds the probe to the batch: the oldest unacknowledged packet.
    pub(super) fn transmit_probe(&mut self, cx: &mut Context, batch: &mut Batch, limit: usize) {
        // A response may have arrived since the probe was scheduled.
        if self.req.probe != PsnMark::at(self.req.una) || !self.can_probe() {
            return;
        }
        if batch.room(limit, 1) == 0 {
            return self.wake(cx, Due::PROBE);
        }
        let place = self.req.move_cursor_to_oldest();
        self.push_oldest(cx, batch);
        self.req.note_probe_sent(cx.now);
        self.req.restore_cursor(place);
    }

    /// Adds the packet under the cursor, the oldest unacknowledged one, to the batch.
    fn push_oldest(&mut self, cx: &mut Context, batch: &mut Batch) {
        let packet = self.req.acked;
        let Some(wqe) = self.sq.front() else {
            return;
        };
        match wqe.op.info().class {
            OpClass::Message => {
                let mark = batch.mark();
                let start = wqe.bytes_before(packet, self.mtu);
                let payload_len = (wqe.bytes_before(packet + 1, self.mtu) - start) as u32;
                if let Err(reason) = self.gather_packet(cx, batch, 0, wqe, packet, payload_len) {
                    return self.fail_later(cx, 0, WcStatus::LocalProtection, reason);
                }
                message_header(self, batch, wqe, packet, payload_len, true);
                let new = NewPacket {
                    qpn: self.qpn,
                    origin: Origin::Request(self.req.psn),
                    payload_len,
                    flush_quirk: false,
                };
                batch.push(&self.path, mark, new);
            }
            OpClass::Read => {
                let chunk = u32::from(wqe.chunk);
                // A READ request that may have been lost is retransmitted unchanged. A peer
                // without it would execute a shorter one in its place, and drop the whole
                // chunk of a later retry, which is longer than the saved request. Retries
                // cannot be shortened as well: hfi1 drops a duplicate READ that does not
                // reach to the end of the saved one.
                // If a response has arrived, the peer has saved the request, and one more
                // packet shows whether the others were lost.
                let unseen = packet.is_multiple_of(chunk);
                let to = match unseen && !cx.has_bug(Bug::ProbeUnseenReadInPart) {
                    true => (packet + chunk).min(wqe.packets),
                    false => packet + 1,
                };
                self.push_read(cx, batch, packet..to);
            }
            OpClass::Single | OpClass::Local => {
                let _failure_is_queued = self.push_single(cx, batch);
            }
        }
    }

    /// Handles a response that arrived while the probe `psn` was outstanding.
    pub(super) fn probe_acknowledged(&mut self, cx: &mut Context, psn: Psn) {
        if self.req.una == psn.next() && self.req.probe_can_be_answered(cx.now) {
            self.confirm_loss(cx);
        } else if psn.is_before(self.req.una) && self.can_probe() && self.has_sent_all() {
            self.start_probe(cx);
        }
    }

    /// True if every posted work request has been sent. Then no later packet shows the
    /// responder a gap.
    fn has_sent_all(&self) -> bool {
        self.req.index() >= self.sq.len()
    }

    /// Goes back to the packet after the probe: the peer has acknowledged the probe and
    /// nothing behind it, so all of that was lost.
    pub(super) fn confirm_loss(&mut self, cx: &mut Context) {
        if self.state == QpState::Err || !self.req.una.is_before(self.req.psn) {
            return;
        }
        cx.count(Counter::CompleterRetryErr);
        self.retry_counts.retries = self.retry_counts.retries.wrapping_add(1);
        self.req.window.lost(self.req.sent_up_to);
        self.note_go_back(cx, Retransmission::ProbeAnswered);
        self.req.rewind();
        self.wake(cx, Due::REQUESTS);
    }
}
