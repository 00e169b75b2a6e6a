//! Failures of a queue pair that a test provokes.

use super::*;

impl Qp {
    /// Fails the queue pair, as after an internal error of an adapter, or as if its completion
    /// queue had overflowed.
    pub(crate) fn provoke(&mut self, cx: &mut Context, overrun: bool) {
        if matches!(self.state, QpState::Err | QpState::Reset) {
            return;
        }
        if overrun {
            let cqs = self.recv_cq.as_ref().or(self.send_cq.as_ref());
            if let Some(cq) = cqs.map(|cq| cq.id()) {
                cx.events.push_back(Event::CqError { cq });
            }
            self.cq_overflow = true;
        } else {
            self.report(cx, None, WcStatus::General, Reason::Provoked);
            self.event(cx, QpEvent::Fatal);
            self.resp.drop_responses();
            self.enter_error(cx);
        }
        self.settle(cx);
    }
}
