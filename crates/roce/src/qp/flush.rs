//! Completions of sends, failures, and the flush of both queues in ERR.

use std::sync::Arc;

use super::{Qp, queue_completion};
use crate::attr::QpState;
use crate::bugs::Bug;
use crate::counters::Counter;
use crate::cq::Cq;
use crate::engine::Context;
use crate::error::Reason;
use crate::event::QpEvent;
use crate::send_queue::Finished;
use crate::vendor_code::FLUSHED;
use crate::verbs::{NetworkHeader, Wc, WcFlags, WcOpcode, WcStatus};

impl Qp {
    /// Completes the oldest send with an error. RC and XRC move to ERR; UC and UD move to SQE,
    /// in which they still receive.
    pub(super) fn fail_oldest_send(&mut self, cx: &mut Context, status: WcStatus, reason: Reason) {
        let Some(send) = self.sq.pop() else {
            return;
        };
        self.report(cx, Some(send.wr_id), status, reason);
        self.complete_send(cx, send, status);
        if self.kind.is_reliable() {
            self.resp.drop_responses();
            self.enter_error(cx);
        } else {
            self.state = QpState::Sqe;
            self.flush_sends(cx);
        }
    }

    /// Moves to ERR and flushes both queues, each in order.
    pub(super) fn enter_error(&mut self, cx: &mut Context) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.attr.sq_draining = false;
        self.flush_sends(cx);
        if !cx.has_bug(Bug::ForgetToFlushReceives) {
            self.flush_receives(cx);
        }
        if self.srq.is_some() {
            self.event(cx, QpEvent::LastWqeReached);
        }
    }

    /// Flushes the send queue, oldest first.
    fn flush_sends(&mut self, cx: &mut Context) {
        self.req.stop();
        if cx.has_bug(Bug::FlushNewestFirst) {
            while let Some(send) = self.sq.pop_newest() {
                self.complete_send(cx, send, WcStatus::WrFlush);
            }
        }
        while let Some(send) = self.sq.pop() {
            self.complete_send(cx, send, WcStatus::WrFlush);
        }
    }

    /// Flushes the receive in use and the receive queue, oldest first.
    fn flush_receives(&mut self, cx: &mut Context) {
        if let Some((wr_id, cq)) = self.resp.release_held() {
            let cq = cq.or_else(|| self.recv_cq.clone());
            self.complete_receive_error(cx, cq, wr_id, WcStatus::WrFlush);
        }
        while let Some(wr_id) = self.rq.discard() {
            let cq = self.recv_cq.clone();
            self.complete_receive_error(cx, cq, wr_id, WcStatus::WrFlush);
        }
    }

    /// Completes a receive with an error.
    pub(super) fn complete_receive_error(
        &mut self,
        cx: &mut Context,
        cq: Option<Arc<Cq>>,
        wr_id: u64,
        status: WcStatus,
    ) {
        if let Some(cq) = cq {
            let mut wc = self.wc(cx, wr_id, status, WcOpcode::Recv);
            wc.imm = vendor_err(cx, status);
            queue_completion(cx, &cq, &mut self.cq_overflow, wc, true);
        }
    }

    /// Completes a send, with a completion if it is signaled or has failed.
    pub(super) fn complete_send(&mut self, cx: &mut Context, send: Finished, status: WcStatus) {
        if let Some(wc) = self.send_completion(cx, send, status)
            && let Some(cq) = &self.send_cq
        {
            queue_completion(cx, cq, &mut self.cq_overflow, wc, false);
        }
    }

    /// Returns the completion of a send; `None` if it succeeded unsignaled.
    #[inline]
    pub(super) fn send_completion(
        &self,
        cx: &Context,
        send: Finished,
        status: WcStatus,
    ) -> Option<Wc> {
        let ok = status == WcStatus::Success;
        if ok && send.opcode == WcOpcode::Send {
            cx.count(Counter::RdmaSends);
        }
        if ok && !self.sig_all && !send.signaled {
            return None;
        }
        let mut wc = self.wc(cx, send.wr_id, status, send.opcode);
        match ok {
            true => {
                wc.byte_len = send.length;
                wc.flags.set(WcFlags::WITH_IMM, send.immediate);
            }
            false => wc.imm = vendor_err(cx, status),
        }
        Some(wc)
    }

    /// Returns a completion with only the mandatory fields set.
    pub(super) fn wc(&self, cx: &Context, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Wc {
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
}

/// Returns the code of a failed completion. The failure was reported just before, unless the
/// completion is that of a flushed work request.
fn vendor_err(cx: &Context, status: WcStatus) -> u32 {
    match status {
        WcStatus::WrFlush => FLUSHED,
        _ => cx.failure_code,
    }
}
