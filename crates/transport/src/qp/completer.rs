//! From answers to completions.
//!
//! An answer names a PSN and speaks for everything before it. Work requests
//! complete in order; a READ, an atomic or a flush only with its own answer.
//! An answer from beyond such a one says that its answer was lost: it is asked
//! for again at once, without waiting for a timer.

use ferroce_wire::{NakCode, Packet, Psn, Syndrome, rnr_delay_ns};

use super::cursor::ack_timeout_ns;
use super::{Due, Qp, after_completion, queue_completion};
use crate::attr::QpState;
use crate::bugs::Bug;
use crate::congestion::PACKET_OVERHEAD;
use crate::counters::Counter;
use crate::cq::Cq;
use crate::engine::Context;
use crate::error::Reason;
use crate::memory::Memory;
use crate::psn_mark::PsnMark;
use crate::receive::{Drop, Received};
use crate::send_queue::{Phase, Wqe, spans};
use crate::time::Deadline;
use crate::verbs::{Access, SendOp, Wc, WcStatus};

/// Why a retry starts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum RetryCause {
    /// The peer, or a gap in its answers, says that something was lost.
    Gap,
    /// Nothing was heard.
    Timeout,
}

impl Qp {
    /// Takes in an answer to one of our requests.
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
                // After a retry the ACK may answer either, and everything is on its way again.
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

    /// Everything before `upto` has arrived at the peer.
    ///
    /// Stops before a work request that wants an answer of its own; if `upto`
    /// lies behind it, its answer was lost.
    fn acknowledge(&mut self, cx: &mut Context, upto: Psn) {
        let mut left = u32::try_from(self.psn_distance(cx, upto, self.req.una)).unwrap_or(0);
        let (mut bytes, before) = (0u32, self.req.una);
        let mut response_lost = false;
        // One answer may complete many: the queue is locked once for all of them.
        let cq = self.send_cq.clone();
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
            bytes += self.advance(wqe_cost(wqe, self.req.acked, n, self.mtu), n);
            if (n == here || cx.has_bug(Bug::CompletePartlyAcked))
                && let Some(wc) = self.take_oldest(cx)
                && let (Some(open), Some(cq)) = (&mut open, &cq)
            {
                let pushed = open.push(wc, false);
                after_completion(cx, cq.id(), &mut self.cq_overflow, pushed);
            }
        }
        drop(open);
        if self.req.una != before {
            self.note_progress(cx, bytes);
        }
        self.complete_finished(cx);
        if response_lost {
            self.retry(cx, RetryCause::Gap);
        }
    }

    /// Whether, now that the peer has answered something later, the oldest work
    /// request still wants an answer of its own.
    fn response_is_lost(&self) -> bool {
        self.sq.front().is_some_and(Wqe::wants_response)
    }

    /// Moves the oldest unanswered PSN on by `packets` of the oldest work request.
    fn advance(&mut self, cost: u32, packets: u32) -> u32 {
        self.req.acked += packets;
        self.req.una = self.req.una.add(packets);
        self.req.in_flight = self.req.in_flight.saturating_sub(cost);
        cost
    }

    /// The peer has answered something: budgets are full again.
    fn note_progress(&mut self, cx: &mut Context, bytes: u32) {
        let req = &mut self.req;
        if !cx.has_bug(Bug::NeverRestoreRetries) {
            req.retries_left = self.attr.retry_cnt;
        }
        req.rnr_retries_left = self.attr.rnr_retry;
        req.retrying = false;
        req.probe = PsnMark::NONE;
        req.rnr_until = Deadline::NONE;
        if req.psn.is_before(req.una) {
            // A late answer to packets from before we went back.
            req.rewind();
        }
        req.window
            .acked(req.una, req.psn, bytes, req.window_limited, cx.now);
        match req.una.is_before(req.psn) {
            true => req.start_timers(cx, &self.attr),
            false => req.stop_timers(),
        }
        match self.sq.len() > req.index() {
            true => self.wake(cx, Due::REQUESTS),
            false => req.window_limited = false,
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

    /// Removes the oldest work request, which has succeeded; returns what the
    /// program is to be told.
    #[inline]
    fn take_oldest(&mut self, cx: &Context) -> Option<Wc> {
        let send = self.sq.pop()?;
        self.req.forget_oldest();
        self.send_completion(cx, send, WcStatus::Success)
    }

    /// Completes what is done or failed already and has become the oldest.
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

    /// Whether a started work request is in the queue.
    pub(super) fn has_begun_sends(&self) -> bool {
        self.sq
            .front()
            .is_some_and(|wqe| wqe.phase != Phase::Posted)
    }

    /// Data of a READ, the original value of an atomic, or the end of a flush.
    fn data_response(&mut self, cx: &mut Context, memory: &dyn Memory, packet: &Packet<'_>) {
        self.acknowledge(cx, packet.psn());
        let gap = self.req.una != packet.psn();
        if gap && !cx.has_bug(Bug::AcceptReadResponseAhead) {
            // The answer before this one was lost, or acknowledging has already
            // noticed so.
            if self.response_is_lost() {
                self.retry(cx, RetryCause::Gap);
            }
            return;
        }
        if self.state == QpState::Err {
            return;
        }
        let Some(wqe) = self.sq.front() else {
            return;
        };
        let outcome = if wqe.wants_response() && wqe.phase == Phase::Started {
            self.place_response(cx, memory, packet, wqe)
        } else {
            let why = format!("{} to a {:?}", packet.opcode(), wqe.op);
            Err((WcStatus::Fatal, Reason::BadResponse(why)))
        };
        let (packets, chunk) = (wqe.packets, u32::from(wqe.chunk));
        // A probe asks for one packet, so only its answer ends before its request does.
        let is_probe_response = self.req.probe == PsnMark::at(packet.psn())
            && !self.req.retrying
            && (packets == 1 || packet.opcode().ends_message() && !self.ends_read_request(wqe));
        let cost = wqe_cost(wqe, self.req.acked, 1, self.mtu);
        if let Err((status, reason)) = outcome {
            return self.fail_oldest_send(cx, status, reason);
        }
        let bytes = self.advance(cost, 1);
        let acked = self.req.acked;
        if acked == packets || acked.is_multiple_of(chunk) {
            self.req.rd_atomic_outstanding = self.req.rd_atomic_outstanding.saturating_sub(1);
        }
        if acked == packets {
            self.finish_oldest(cx);
        }
        self.note_progress(cx, bytes);
        self.complete_finished(cx);
        if is_probe_response {
            self.confirm_loss(cx);
        }
    }

    /// So many packets of the answer to the READ that is the oldest work request have come
    /// and are in their place; more will follow.
    pub(super) fn note_read_progress(&mut self, cx: &mut Context, packets: u32) {
        if let Some(wqe) = self.sq.front() {
            let cost = wqe_cost(wqe, self.req.acked, packets, self.mtu);
            let bytes = self.advance(cost, packets);
            self.note_progress(cx, bytes);
            self.settle(cx);
        }
    }

    /// True if the next response packet is the last one that its READ request asked for.
    fn ends_read_request(&self, wqe: &Wqe) -> bool {
        let packets = self.req.acked + 1;
        packets == wqe.packets || packets.is_multiple_of(wqe.chunk.into())
    }

    /// Puts the data of a response where the work request wants it.
    fn place_response(
        &self,
        cx: &Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
        wqe: &Wqe,
    ) -> Result<(), (WcStatus, Reason)> {
        let bad = |why: String| Err((WcStatus::BadResponse, Reason::BadResponse(why)));
        let payload = packet.payload();
        match wqe.op {
            SendOp::Read { .. } => {
                let at = self.req.acked;
                let offset = wqe.bytes_before(at, self.mtu);
                let want = wqe.bytes_before(at + 1, self.mtu) - offset;
                let opcode = packet.opcode();
                // The request of a loss probe ends with its first packet.
                let probed = self.req.probe == PsnMark::at(packet.psn());
                let fits = opcode.ends_message() == self.ends_read_request(wqe) || probed;
                if !opcode.is_read_response() || !fits {
                    return bad(format!("{opcode} for packet {at} of {}", wqe.packets));
                }
                if payload.len() as u64 != want {
                    return bad(format!("{} bytes where {want} were due", payload.len()));
                }
                self.scatter(cx, memory, offset, payload)
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => match packet.atomic_ack() {
                Some(ack) => self.scatter(cx, memory, 0, &ack.original.to_ne_bytes()),
                None => bad(format!("{} to an atomic", packet.opcode())),
            },
            _ if packet.opcode().is_read_response() && payload.is_empty() => Ok(()),
            _ => bad(format!("{} with {} bytes", packet.opcode(), payload.len())),
        }
    }

    /// Writes to the local memory of the oldest work request.
    fn scatter(
        &self,
        cx: &Context,
        memory: &dyn Memory,
        offset: u64,
        data: &[u8],
    ) -> Result<(), (WcStatus, Reason)> {
        let Some(pd) = &self.pd else {
            return Ok(());
        };
        let Some(wqe) = self.sq.front().filter(|wqe| wqe.num_sge > 0) else {
            return Ok(());
        };
        let sges = core::iter::once(&wqe.sge).chain(self.sq.more_sges(0));
        let mut rest = data;
        for (sge, at, bytes) in spans(sges, offset, data.len() as u64) {
            let (now, later) = rest.split_at(bytes as usize);
            rest = later;
            let addr = sge.addr.wrapping_add(at);
            cx.local(sge.lkey, pd, Access::LOCAL_WRITE, addr, bytes)
                .map_err(Reason::from)
                .and_then(|address| Ok(memory.write(address, now)?))
                .map_err(|reason| (WcStatus::LocalProtection, reason))?;
        }
        Ok(())
    }

    fn handle_rnr_nak(&mut self, cx: &mut Context, psn: Psn, timer: u8) {
        cx.count(Counter::RcvdRnrErr);
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
        self.req.retries_left = self.attr.retry_cnt; // it was heard
        // IBTA 9.7.5.2.8: of the RNR budget only 7 means without end.
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
        self.req.rewind();
        self.req.rnr_until = Deadline::at(cx.now.after_nanos(rnr_delay_ns(timer)));
    }

    /// The peer will not do what we asked for.
    fn handle_fatal_nak(&mut self, cx: &mut Context, psn: Psn, code: NakCode) {
        self.acknowledge(cx, psn);
        if self.req.una != psn || self.state == QpState::Err {
            return;
        }
        let (status, nak) = match code {
            NakCode::InvalidRequest => (WcStatus::RemoteInvalidRequest, "invalid request"),
            NakCode::RemoteAccess => (WcStatus::RemoteAccess, "remote access error"),
            _ => (WcStatus::RemoteOperation, "remote operational error"),
        };
        let request = self.sq.front().map(describe).unwrap_or_default();
        self.fail_oldest_send(cx, status, Reason::Refused { nak, request });
    }

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

    /// Goes back to the oldest packet without an answer.
    fn retry(&mut self, cx: &mut Context, cause: RetryCause) {
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
        match cause {
            RetryCause::Gap => self.req.window.lost(self.req.sent_up_to),
            RetryCause::Timeout => {
                self.req.window.timed_out();
                self.try_other_flush_icrc();
            }
        }
        self.req.retrying = true;
        self.req.rewind();
        self.req.start_timers(cx, &self.attr);
        self.wake(cx, Due::REQUESTS);
    }

    /// Changes the kind of ICRC if the oldest work request is a FLUSH: rxe computes it in
    /// its own way, and drops ours.
    pub(super) fn try_other_flush_icrc(&mut self) {
        if matches!(self.sq.front(), Some(wqe) if matches!(wqe.op, SendOp::Flush { .. })) {
            self.req.flush_quirk = !self.req.flush_quirk;
        }
    }

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

    /// How far `a` is ahead of `b`.
    pub(super) fn psn_distance(&self, cx: &Context, a: Psn, b: Psn) -> i32 {
        if cx.has_bug(Bug::PsnCompareWithoutWrap) {
            return a.value() as i32 - b.value() as i32;
        }
        a.distance(b)
    }
}

/// What `packets` packets of a message, from number `from` on, count in the window.
fn wqe_cost(wqe: &Wqe, from: u32, packets: u32, mtu: u32) -> u32 {
    let bytes = wqe.bytes_before(from + packets, mtu) - wqe.bytes_before(from, mtu);
    let bytes = match wqe.op {
        SendOp::Flush { .. } => 8,
        _ => bytes as u32,
    };
    bytes + packets * PACKET_OVERHEAD
}

/// A work request, in words.
fn describe(wqe: &Wqe) -> String {
    let length = wqe.length;
    let remote = |what: &str, addr: u64, rkey: u32| {
        format!("a {what} of {length} bytes at {addr:#x} with rkey {rkey:#x}")
    };
    match wqe.op {
        SendOp::Write {
            remote_addr, rkey, ..
        } => remote("WRITE", remote_addr, rkey),
        SendOp::Read { remote_addr, rkey } => remote("READ", remote_addr, rkey),
        SendOp::CompareSwap {
            remote_addr, rkey, ..
        } => remote("compare and swap", remote_addr, rkey),
        SendOp::FetchAdd {
            remote_addr, rkey, ..
        } => remote("fetch and add", remote_addr, rkey),
        SendOp::AtomicWrite { remote_addr, rkey } => remote("atomic write", remote_addr, rkey),
        SendOp::Flush {
            remote_addr, rkey, ..
        } => remote("flush", remote_addr, rkey),
        SendOp::SendInvalidate { rkey } => {
            format!("a SEND of {length} bytes that invalidates rkey {rkey:#x}")
        }
        _ => format!("a SEND of {length} bytes"),
    }
}
