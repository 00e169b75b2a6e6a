//! Loss probes: a lost tail is found after a few round trips.
//!
//! A gap in the middle of a stream is reported by the peer at once. If the last packets in
//! flight are lost, or the peer's answer, or a retransmission, then the peer has nothing to
//! report, and only silence tells. The ACK timeout of IBTA is far too long to wait for
//! (67 ms with the usual attribute 14, while a round trip takes 20 us), so the oldest
//! unacknowledged packet is sent again when an answer is overdue by the measured round
//! trips. The idea is that of TCP's tail loss probe (RFC 8985), but the probe is the oldest
//! packet and not the newest: a responder that has sent a NAK ignores everything else.
//!
//! The answer tells what was lost:
//!
//! - The ACK covers exactly the probe: the peer has nothing behind it, because every packet
//!   left before the probe. The requester goes back to the packet after the probe at once.
//! - The ACK covers everything: only an ACK was lost, or the peer was late. Nothing is
//!   retransmitted.
//! - The ACK covers more than the probe, but not everything: either the rest was lost, or a
//!   late peer is about to answer the rest. The packet behind the ACK is the next probe if
//!   nothing else is left to send; otherwise a gap is reported when the next packet arrives.
//!
//! A probe uses up no retry and does not shrink the window. The ACK timeout still runs:
//! it alone counts retries and declares a peer dead.

use ferroce_wire::Psn;

use super::request_header::message_header;
use super::{Due, Qp};
use crate::attr::QpState;
use crate::bugs::Bug;
use crate::counters::Counter;
use crate::engine::Context;
use crate::psn_mark::PsnMark;
use crate::send_queue::Phase;
use crate::time::Deadline;
use crate::transmit::{Batch, NewPacket, Origin};
use crate::verbs::{SendOp, WcStatus};

impl Qp {
    /// Sends a probe, and the next one later: the answer is overdue.
    pub(super) fn probe_timer_expired(&mut self, cx: &mut Context) {
        self.req.probe_deadline = Deadline::NONE;
        if self.can_probe() {
            self.req.window.back_off();
            self.req.start_probe_timer(cx, &self.attr);
            self.try_other_flush_icrc();
            self.start_probe(cx);
        }
    }

    /// Asks for a turn to send the oldest unacknowledged packet once more.
    fn start_probe(&mut self, cx: &mut Context) {
        self.req.probe = PsnMark::at(self.req.una);
        // A retry before it has been silent for long: from now on answers are news.
        self.req.retrying = false;
        self.req.window.sent_again(self.req.una);
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

    /// Adds the probe to the batch: the oldest unacknowledged packet once more.
    pub(super) fn transmit_probe(&mut self, cx: &mut Context, batch: &mut Batch, limit: usize) {
        // An answer may have come since; then there is nothing to ask.
        if self.req.probe != PsnMark::at(self.req.una) || !self.can_probe() {
            return;
        }
        if batch.room(limit) == 0 {
            return self.wake(cx, Due::PROBE);
        }
        let place = self.req.move_cursor_to_oldest();
        self.push_oldest(cx, batch);
        self.req.restore_cursor(place);
    }

    /// Adds the packet under the cursor, which is the oldest one.
    fn push_oldest(&mut self, cx: &mut Context, batch: &mut Batch) {
        let packet = self.req.acked;
        let Some(wqe) = self.sq.front() else {
            return;
        };
        match wqe.op {
            SendOp::Send { .. } | SendOp::SendInvalidate { .. } | SendOp::Write { .. } => {
                let mark = batch.mark();
                if let Err(reason) = self.gather_packet(cx, batch, 0, packet) {
                    return self.fail_later(cx, 0, WcStatus::LocalProtection, reason);
                }
                let start = wqe.bytes_before(packet, self.mtu);
                let payload_len = (wqe.bytes_before(packet + 1, self.mtu) - start) as u32;
                message_header(self, batch, wqe, packet, payload_len, true);
                let new = NewPacket {
                    qpn: self.qpn,
                    origin: Origin::Request(self.req.psn),
                    payload_len,
                    flush_quirk: false,
                };
                batch.push(&self.path, mark, new);
            }
            SendOp::Read { .. } => {
                let chunk = u32::from(wqe.chunk);
                // A request that may have been lost is sent unchanged: the peer would take a
                // shorter one for all there is. If some of its responses have come, one more
                // packet is enough to learn whether the others were lost.
                let unseen = packet.is_multiple_of(chunk);
                let to = match unseen && !cx.has_bug(Bug::ProbeUnseenReadInPart) {
                    true => (packet + chunk).min(wqe.packets),
                    false => packet + 1,
                };
                self.push_read(cx, batch, packet..to);
            }
            _ => {
                let _a_failure_is_noted = self.push_single(cx, batch);
            }
        }
    }

    /// Draws the conclusion from an ACK that covers the probe `psn`.
    pub(super) fn probe_acknowledged(&mut self, cx: &mut Context, psn: Psn) {
        if self.req.una == psn.next() {
            self.confirm_loss(cx);
        } else if psn.is_before(self.req.una) && self.can_probe() && self.has_sent_all() {
            self.start_probe(cx);
        }
    }

    /// True if every posted work request has been sent: no later packet will show the
    /// responder a gap.
    fn has_sent_all(&self) -> bool {
        self.req.index() >= self.sq.len()
    }

    /// Goes back to the packet after the probe: the peer has answered the probe and
    /// nothing behind it, so all of that was lost.
    pub(super) fn confirm_loss(&mut self, cx: &mut Context) {
        if self.state == QpState::Err || !self.req.una.is_before(self.req.psn) {
            return;
        }
        cx.count(Counter::CompleterRetryErr);
        self.req.window.lost(self.req.sent_up_to);
        self.req.rewind();
        self.wake(cx, Due::REQUESTS);
    }
}
