//! The completer: turns responses of the peer into completions, and retransmits.
//!
//! An ACK acknowledges its PSN and all PSNs before it. Work requests complete in order.
//! READs, atomics, atomic writes and flushes complete only with a response of their own. A
//! response with a PSN beyond such a work request is an implied NAK: its response was lost,
//! and the requester goes back to it at once, without waiting for a timer.

use ferroce_wire::{NakCode, Packet, Psn, Syndrome, rnr_delay_ns};

use super::cursor::ack_timeout_ns;
use super::responder::nak_name;
use super::{Due, Qp, after_completion, queue_completion};
use crate::attr::QpState;
use crate::bugs::Bug;
use crate::congestion::{Acknowledged, PACKET_OVERHEAD};
use crate::counters::Counter;
use crate::cq::Cq;
use crate::decision::{Decision, Retransmission};
use crate::engine::Context;
use crate::error::Reason;
use crate::memory::Memory;
use crate::operation::OpClass;
use crate::psn_mark::PsnMark;
use crate::receive::{Drop, Received};
use crate::send_queue::{Phase, Wqe};
use crate::time::Deadline;
use crate::verbs::{SendOp, Wc, WcStatus};

/// Cause of a retry.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum RetryCause {
    /// A sequence NAK, or a gap in the PSNs of the responses, reports a loss.
    Gap,
    /// The ACK timeout expired.
    Timeout,
}

impl Qp {
    /// Handles a response to one of the queue pair's requests.
    pub(crate) fn response(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Received {
        let received = self.take_response(cx, memory, packet);
        self.settle(cx);
        received
    }

    fn take_response(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Received {
        let psn = packet.psn();
        let ahead = self.psn_distance(cx, psn, self.req.una);
        if ahead < 0 || ahead >= self.psn_distance(cx, self.req.sent_up_to, self.req.una) {
            return Received::Dropped(Drop::Stale);
        }
        let opcode = packet.opcode();
        if opcode.is_read_response() || opcode.has_atomic_ack() {
            self.data_response(cx, memory, packet);
            return Received::Accepted;
        }
        let Some(aeth) = packet.aeth() else {
            return Received::Dropped(Drop::Malformed);
        };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                // After a retry the ACK may answer the original or the retransmission, and
                // everything is being retransmitted anyway: it proves no loss.
                let probe = self.req.probe.get().filter(|_| !self.req.retrying);
                self.acknowledge(cx, psn.next());
                if let Some(probe) = probe {
                    self.probe_acknowledged(cx, probe);
                }
            }
            Syndrome::RnrNak { timer } => self.handle_rnr_nak(cx, psn, timer),
            Syndrome::Nak(NakCode::PsnSequence) => {
                cx.count(Counter::RcvdSeqErr);
                self.acknowledge(cx, psn);
                if self.req.una == psn || self.response_is_lost() {
                    self.retry(cx, RetryCause::Gap);
                }
            }
            Syndrome::Nak(code) => self.handle_fatal_nak(cx, psn, code),
            Syndrome::Reserved(_) => return Received::Dropped(Drop::Malformed),
        }
        Received::Accepted
    }

    /// Acknowledges all packets before `upto`, and completes the work requests they end.
    ///
    /// Stops before a work request that needs a response of its own. If `upto` lies beyond
    /// that work request, its response was lost, and a retry starts.
    pub(super) fn acknowledge(&mut self, cx: &mut Context, upto: Psn) {
        let mut left = u32::try_from(self.psn_distance(cx, upto, self.req.una)).unwrap_or(0);
        let (mut bytes, before) = (0u32, self.req.una);
        let mut response_lost = false;
        // One ACK may complete many work requests: lock the completion queue once.
        // It leaves its place meanwhile: to count a reference takes two locked instructions.
        let cq = self.send_cq.take();
        let mut open = cq.as_deref().map(Cq::open);
        while left > 0 {
            let Some(wqe) = self.sq.front() else {
                break;
            };
            if wqe.phase == Phase::Posted || wqe.packets == 0 && self.sq.fails(0) {
                break;
            }
            let here = wqe.packets - self.req.acked;
            if wqe.wants_response() && !cx.has_bug(Bug::AckCompletesRead) {
                response_lost = left > here;
                break;
            }
            let n = here.min(left);
            left -= n;
            bytes += wqe_cost(wqe, self.req.acked, n, self.mtu);
            self.req.advance(n);
            if (n == here || cx.has_bug(Bug::CompletePartlyAcked))
                && let Some(wc) = self.take_oldest(cx)
                && let (Some(open), Some(cq)) = (&mut open, &cq)
            {
                let pushed = open.push_acknowledged(wc);
                after_completion(cx, cq.id(), &mut self.cq_overflow, pushed);
            }
        }
        drop(open);
        self.send_cq = cq;
        if self.req.una != before {
            self.note_progress(cx, bytes);
        }
        self.complete_finished(cx);
        if response_lost {
            self.retry(cx, RetryCause::Gap);
        }
    }

    /// True if the oldest work request still waits for a response of its own. When the peer
    /// has responded to something later, that response was lost.
    pub(super) fn response_is_lost(&self) -> bool {
        self.sq.front().is_some_and(Wqe::wants_response)
    }

    /// Notes an acknowledgement of packets that cost `bytes`: restores the retry counters,
    /// grows the window, and restarts the timers.
    pub(super) fn note_progress(&mut self, cx: &mut Context, bytes: u32) {
        let req = &mut self.req;
        if !cx.has_bug(Bug::NeverRestoreRetries) {
            req.retries_left = self.attr.retry_cnt;
        }
        req.rnr_retries_left = self.attr.rnr_retry;
        req.retrying = false;
        req.probe = PsnMark::NONE;
        req.rnr_until = Deadline::NONE;
        if req.psn.is_before(req.una) {
            // A late response to packets sent before the rewind: skip what it acknowledged.
            req.rewind();
        }
        req.window.acknowledged(Acknowledged {
            bytes,
            una: req.una,
            next: req.psn,
            round_trip: req.round_trip.acknowledged(req.una, cx.now),
        });
        match req.una.is_before(req.psn) {
            true => req.start_timers(cx, &self.attr),
            false => req.stop_timers(),
        }
        match self.sq.len() > req.index() {
            true => self.wake(cx, Due::REQUESTS),
            false => req.window.set_limit(false),
        }
    }

    /// Completes the oldest work request with success.
    pub(super) fn finish_oldest(&mut self, cx: &mut Context) {
        if let Some(wc) = self.take_oldest(cx)
            && let Some(cq) = &self.send_cq
        {
            queue_completion(cx, cq, &mut self.cq_overflow, wc, false);
        }
    }

    /// Removes the oldest work request, which has succeeded; returns its completion if the
    /// program wants one.
    #[inline(always)]
    fn take_oldest(&mut self, cx: &Context) -> Option<Wc> {
        let send = self.sq.front()?.finished();
        let wc = self.send_completion(cx, send, WcStatus::Success);
        self.sq.remove_oldest();
        self.req.forget_oldest();
        wc
    }

    /// Completes the oldest work requests that are already done, or have failed.
    pub(super) fn complete_finished(&mut self, cx: &mut Context) {
        while let Some(wqe) = self.sq.front() {
            if self.sq.fails(0) {
                if let Some(failing) = self.sq.take_failure() {
                    self.fail_oldest_send(cx, failing.status, failing.reason);
                }
                return;
            }
            if wqe.phase != Phase::Done || !self.kind.is_reliable() && wqe.packets > 0 {
                return;
            }
            self.finish_oldest(cx);
        }
    }

    /// True if the send queue has a work request that was started.
    pub(super) fn has_begun_sends(&self) -> bool {
        self.sq
            .front()
            .is_some_and(|wqe| wqe.phase != Phase::Posted)
    }

    /// Handles an RNR NAK: waits for the time it names, then retransmits from `psn`.
    fn handle_rnr_nak(&mut self, cx: &mut Context, psn: Psn, timer: u8) {
        cx.count(Counter::RcvdRnrErr);
        self.retry_counts.rnr_received = self.retry_counts.rnr_received.wrapping_add(1);
        if cx.has_bug(Bug::IgnoreRnrNak) {
            return self.acknowledge(cx, psn.next());
        }
        self.acknowledge(cx, psn);
        if self.req.una != psn && self.response_is_lost() {
            return self.retry(cx, RetryCause::Gap);
        }
        let waiting = self.req.rnr_until.get().is_some_and(|until| until > cx.now);
        if self.req.una != psn || waiting || self.state == QpState::Err {
            return;
        }
        // An RNR NAK shows that the peer lives.
        self.req.retries_left = self.attr.retry_cnt;
        // IBTA 9.7.5.2.8: an rnr_retry of 7 means unlimited retries.
        if self.attr.rnr_retry != 7 {
            let Some(left) = self.req.rnr_retries_left.checked_sub(1) else {
                cx.count(Counter::RetryRnrExceededErr);
                let retries = self.attr.rnr_retry;
                let reason = Reason::ReceiverNotReady { retries };
                return self.fail_oldest_send(cx, WcStatus::RnrRetryExceeded, reason);
            };
            self.req.rnr_retries_left = left;
        }
        self.req.stop_timers();
        let wait_ns = rnr_delay_ns(timer);
        self.note_go_back(cx, Retransmission::ReceiverNotReady { wait_ns });
        self.req.rewind();
        self.req.rnr_until = Deadline::at(cx.now.after_nanos(wait_ns));
    }

    /// Handles a fatal NAK: fails the request with that PSN.
    fn handle_fatal_nak(&mut self, cx: &mut Context, psn: Psn, code: NakCode) {
        self.acknowledge(cx, psn);
        if self.req.una != psn || self.state == QpState::Err {
            return;
        }
        let nak = nak_name(code);
        let status = match code {
            NakCode::InvalidRequest => WcStatus::RemoteInvalidRequest,
            NakCode::RemoteAccess => WcStatus::RemoteAccess,
            _ => WcStatus::RemoteOperation,
        };
        let request = self.sq.front().map(describe).unwrap_or_default();
        self.fail_oldest_send(cx, status, Reason::Refused { nak, request });
    }

    /// Handles the deadlines of the requester that have passed.
    pub(super) fn requester_timer(&mut self, cx: &mut Context) {
        if self.req.rnr_until.is_due(cx.now) {
            self.req.rnr_until = Deadline::NONE;
            self.wake(cx, Due::REQUESTS);
        }
        if self.req.ack_deadline.is_due(cx.now) {
            self.req.stop_timers();
            self.retry(cx, RetryCause::Timeout);
        } else if self.req.probe_deadline.is_due(cx.now) {
            self.probe_timer_expired(cx);
        }
    }

    /// Uses up one retry and goes back to the oldest unacknowledged packet.
    pub(super) fn retry(&mut self, cx: &mut Context, cause: RetryCause) {
        let stopped = !matches!(self.state, QpState::Rts | QpState::Sqd);
        let waits = !self.req.rnr_until.is_none();
        if stopped || waits || (cause == RetryCause::Gap && self.req.retrying) {
            return;
        }
        if !cx.has_bug(Bug::RetryForever) {
            let Some(left) = self.req.retries_left.checked_sub(1) else {
                return self.fail_retries_exceeded(cx, cause);
            };
            self.req.retries_left = left;
        }
        cx.count(Counter::CompleterRetryErr);
        self.retry_counts.retries = self.retry_counts.retries.wrapping_add(1);
        match cause {
            RetryCause::Gap => self.req.window.lost(self.req.sent_up_to),
            RetryCause::Timeout => {
                self.req.window.timed_out();
                self.try_other_flush_icrc();
            }
        }
        let left = self.req.retries_left;
        self.note_go_back(
            cx,
            match cause {
                RetryCause::Gap => Retransmission::Gap,
                RetryCause::Timeout => Retransmission::Timeout {
                    waited_ns: ack_timeout_ns(cx, &self.attr).unwrap_or(0),
                    left,
                },
            },
        );
        self.req.retrying = true;
        self.req.rewind();
        self.req.start_timers(cx, &self.attr);
        self.wake(cx, Due::REQUESTS);
    }

    /// Records for observers that packets will be sent again.
    pub(super) fn note_go_back(&self, cx: &mut Context, cause: Retransmission) {
        let (from, until) = (self.req.una, self.req.sent_up_to);
        let decided = || Decision::GoBack { from, until, cause };
        cx.decisions.add(self.qpn, decided);
    }

    /// Switches the kind of ICRC if the oldest work request is a FLUSH. rxe computes the ICRC
    /// of FLUSH differently from the specification, and drops packets with the correct one.
    pub(super) fn try_other_flush_icrc(&mut self) {
        if matches!(self.sq.front(), Some(wqe) if matches!(wqe.op, SendOp::Flush { .. })) {
            self.req.flush_quirk = !self.req.flush_quirk;
        }
    }

    /// Fails the oldest work request: no retry is left.
    fn fail_retries_exceeded(&mut self, cx: &mut Context, cause: RetryCause) {
        cx.count(Counter::RetryExceededErr);
        let psn = self.req.una.value();
        let retries = self.attr.retry_cnt;
        let reason = match cause {
            RetryCause::Gap => Reason::NoProgress { psn, retries },
            RetryCause::Timeout => Reason::NoAnswer {
                psn,
                retries,
                timeout_us: ack_timeout_ns(cx, &self.attr).unwrap_or(0) / 1000,
            },
        };
        self.fail_oldest_send(cx, WcStatus::RetryExceeded, reason);
    }

    /// Returns how far `a` is ahead of `b`, negative if it is behind.
    pub(super) fn psn_distance(&self, cx: &Context, a: Psn, b: Psn) -> i32 {
        if cx.has_bug(Bug::PsnCompareWithoutWrap) {
            return a.value() as i32 - b.value() as i32;
        }
        a.distance(b)
    }
}

/// Returns the window cost of `packets` packets of a message, from packet `from` on.
#[inline]
pub(super) fn wqe_cost(wqe: &Wqe, from: u32, packets: u32, mtu: u32) -> u32 {
    let bytes = match wqe.op.info().class {
        OpClass::Single => 8,
        _ if packets == wqe.packets => wqe.length,
        OpClass::Message | OpClass::Read | OpClass::Local => {
            (wqe.bytes_before(from + packets, mtu) - wqe.bytes_before(from, mtu)) as u32
        }
    };
    bytes + packets * PACKET_OVERHEAD
}

/// Describes a work request for an error message.
fn describe(wqe: &Wqe) -> String {
    let (name, length) = (wqe.op.info().name, wqe.length);
    if let Some((addr, rkey)) = wqe.op.remote() {
        return format!("a {name} of {length} bytes at {addr:#x} with rkey {rkey:#x}");
    }
    if let SendOp::SendInvalidate { rkey } = wqe.op {
        return format!("a SEND of {length} bytes that invalidates rkey {rkey:#x}");
    }
    format!("a {name} of {length} bytes")
}
