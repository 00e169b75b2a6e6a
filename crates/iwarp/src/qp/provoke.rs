//! Failures of a queue pair that a test provokes.

use ferroce_objects::{QpEvent, QpState, Reason, WcStatus};

use super::Qp;
use crate::engine::Context;
use crate::event::CloseCause;

impl Qp {
    /// Fails the queue pair, as after an internal error of an adapter. The peer's connection is
    /// reset.
    pub(crate) fn provoke(&mut self, cx: &mut Context) {
        if matches!(self.state, QpState::Err | QpState::Reset) {
            return;
        }
        self.report(cx, None, WcStatus::General, Reason::Provoked);
        self.event(cx, QpEvent::Fatal);
        self.enter_error(cx, None, None);
        self.close_stream(cx, true, CloseCause::Lost);
        self.settle(cx);
    }
}
