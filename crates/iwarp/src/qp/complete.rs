//! Completions of work requests, and the flush of both queues.

use ferroce_objects::cq::{Cq, Pushed};
use ferroce_objects::send_queue::{Finished, Phase as WrPhase};
use ferroce_objects::{
    Event, Failure, NetworkHeader, QpEvent, QpState, Reason, SendOp, Wc, WcFlags, WcOpcode,
    WcStatus,
};

use super::Qp;
use crate::bugs::Bug;
use crate::engine::Context;
use crate::event::CloseCause;

impl Qp {
    /// Completes the oldest work requests, as far as they are done.
    ///
    /// A SEND or Write is done when the socket has accepted its last byte: TCP delivers it. A
    /// Read is done when its response has been placed. Work requests complete in order.
    pub(super) fn complete_sent(&mut self, cx: &mut Context, accepted: u64) {
        while let Some(wqe) = self.sq.front()
            && self
                .stream
                .as_ref()
                .is_some_and(|stream| stream.started > 0)
        {
            let done = match wqe.op {
                SendOp::Read { .. } => {
                    wqe.phase == WrPhase::Done
                        || cx.has_bug(Bug::CompleteOutOfOrder) && self.later_is_sent(accepted)
                }
                _ => wqe.progress.end <= accepted,
            };
            if !done {
                break;
            }
            if let Some(send) = self.pop_send() {
                self.complete_send(cx, send, WcStatus::Success);
            }
        }
    }

    /// True if the second work request is a SEND or Write that has been sent.
    fn later_is_sent(&self, accepted: u64) -> bool {
        let started = self.stream.as_ref().map_or(0, |stream| stream.started);
        let later = self.sq.get(1).filter(|_| started > 1);
        later.is_some_and(|wqe| {
            !matches!(wqe.op, SendOp::Read { .. }) && wqe.progress.end <= accepted
        })
    }

    /// Removes the oldest work request from the send queue.
    pub(super) fn pop_send(&mut self) -> Option<Finished> {
        let send = self.sq.pop()?;
        self.popped = self.popped.wrapping_add(1);
        if let Some(stream) = &mut self.stream {
            stream.started = stream.started.saturating_sub(1);
        }
        Some(send)
    }

    /// Moves to ERR and flushes both queues, each in order. One work request, or the receive
    /// in use, may have a status of its own.
    pub(super) fn enter_error(
        &mut self,
        cx: &mut Context,
        request: Option<(u64, WcStatus)>,
        receive: Option<WcStatus>,
    ) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.flush_sends(cx, request);
        if !cx.has_bug(Bug::ForgetToFlushReceives) {
            self.flush_receives(cx, receive);
        }
        if self.srq.is_some() {
            self.event(cx, QpEvent::LastWqeReached);
        }
    }

    /// Flushes the send queue, oldest first.
    pub(super) fn flush_sends(&mut self, cx: &mut Context, failing: Option<(u64, WcStatus)>) {
        loop {
            let number = self.popped;
            let Some(send) = self.pop_send() else {
                return;
            };
            let status = match failing {
                Some((failing, status)) if failing == number => status,
                _ => WcStatus::WrFlush,
            };
            self.complete_send(cx, send, status);
        }
    }

    /// Flushes the receive in use and the receive queue, oldest first.
    pub(super) fn flush_receives(&mut self, cx: &mut Context, in_use: Option<WcStatus>) {
        if let Some(stream) = &mut self.stream
            && stream.inbound_send.take().is_some()
        {
            let wr_id = stream.held.wr_id;
            let status = in_use.unwrap_or(WcStatus::WrFlush);
            self.complete_receive_error(cx, wr_id, status);
        }
        self.flush_posted_receives(cx);
    }

    /// Flushes the receive queue.
    pub(super) fn flush_posted_receives(&mut self, cx: &mut Context) {
        while let Some(wr_id) = self.rq.discard() {
            self.complete_receive_error(cx, wr_id, WcStatus::WrFlush);
        }
    }

    fn complete_receive_error(&mut self, cx: &mut Context, wr_id: u64, status: WcStatus) {
        let wc = self.wc(cx, wr_id, status, WcOpcode::Recv);
        queue_completion(cx, &self.recv_cq, &mut self.cq_overflow, wc, true);
    }

    /// Completes a receive with a message.
    pub(super) fn complete_receive(
        &mut self,
        cx: &mut Context,
        wr_id: u64,
        length: u32,
        invalidated: Option<u32>,
        solicited: bool,
    ) {
        let mut wc = self.wc(cx, wr_id, WcStatus::Success, WcOpcode::Recv);
        wc.byte_len = length;
        if let Some(stag) = invalidated {
            wc.flags |= WcFlags::WITH_INV;
            wc.imm = stag;
        }
        queue_completion(cx, &self.recv_cq, &mut self.cq_overflow, wc, solicited);
    }

    /// Completes a send, with a completion if it is signaled or has failed.
    pub(super) fn complete_send(&mut self, cx: &mut Context, send: Finished, status: WcStatus) {
        let success = status == WcStatus::Success;
        if success && !self.sig_all && !send.signaled {
            return;
        }
        let mut wc = self.wc(cx, send.wr_id, status, send.opcode);
        if success {
            wc.byte_len = send.length;
        }
        queue_completion(cx, &self.send_cq, &mut self.cq_overflow, wc, false);
    }

    fn wc(&self, cx: &Context, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Wc {
        Wc {
            wr_id,
            timestamp: cx.now,
            status,
            opcode,
            flags: WcFlags::empty(),
            byte_len: 0,
            imm: 0,
            qpn: self.qpn,
            src_qp: 0,
            network: NetworkHeader::None,
        }
    }

    /// Ends every entry point that completes work requests: handles a CQ overflow.
    pub(super) fn settle(&mut self, cx: &mut Context) {
        if !core::mem::take(&mut self.cq_overflow) {
            return;
        }
        if !matches!(self.state, QpState::Err | QpState::Reset) {
            self.report(cx, None, WcStatus::General, Reason::CqOverflow);
            self.event(cx, QpEvent::Fatal);
            self.enter_error(cx, None, None);
            self.end_stream(cx, None, CloseCause::Failed);
        }
        self.cq_overflow = false;
    }

    /// Queues an asynchronous event.
    pub(super) fn event(&self, cx: &mut Context, kind: QpEvent) {
        let qpn = self.qpn;
        cx.events.push_back(Event::Qp { qpn, kind });
    }

    /// Queues the reason of a failure, for logs.
    pub(super) fn report(
        &self,
        cx: &mut Context,
        wr_id: Option<u64>,
        status: WcStatus,
        reason: Reason,
    ) {
        cx.events.push_back(Event::Failure(Failure {
            qpn: self.qpn,
            wr_id,
            status,
            reason,
        }));
    }
}

/// Adds a completion to `cq`; sets `overflow` if the CQ is full.
fn queue_completion(cx: &mut Context, cq: &Cq, overflow: &mut bool, wc: Wc, solicited: bool) {
    let id = cq.id();
    match cq.push(wc, solicited) {
        Pushed::Quiet => {}
        Pushed::Notify => cx.events.push_back(Event::CqNotify { cq: id }),
        Pushed::Overflow => {
            *overflow = true;
            cx.events.push_back(Event::CqError { cq: id });
        }
    }
}
