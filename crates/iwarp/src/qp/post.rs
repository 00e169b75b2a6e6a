//! Posting of work requests: checks and queues them.

use ferroce_objects::send_queue::Finished;
use ferroce_objects::{QpState, RecvWr, SendData, SendFlags, SendOp, SendWr, VerbsError, WcStatus};

use super::Qp;
use crate::engine::Context;

impl Qp {
    /// Posts a send. In ERR it is flushed at once.
    pub(crate) fn post_send(&mut self, cx: &mut Context, wr: SendWr<'_>) -> Result<(), VerbsError> {
        let length = self.check_send(&wr, 0)?;
        if self.state == QpState::Err {
            let finished = Finished::of(wr.wr_id, &wr.op, wr.flags, length);
            self.complete_send(cx, finished, WcStatus::WrFlush);
            self.settle(cx);
            return Ok(());
        }
        self.sq.push(wr, length);
        self.wake(cx);
        Ok(())
    }

    /// Posts a receive. In ERR it is flushed at once.
    pub(crate) fn post_recv(
        &mut self,
        cx: &mut Context,
        wr: &RecvWr<'_>,
    ) -> Result<(), VerbsError> {
        if self.srq.is_some() {
            return Err(VerbsError::invalid(format!(
                "queue pair {:#x} has no receive queue of its own",
                self.qpn
            )));
        }
        if self.state == QpState::Sqd {
            return Err(self.not_connected("closing its connection"));
        }
        self.rq.post(wr)?;
        if self.state == QpState::Err {
            self.flush_posted_receives(cx);
            self.settle(cx);
        }
        Ok(())
    }

    /// Makes all checks that are possible when a send is posted, with `ahead` sends before it
    /// that are not queued yet. Returns the length of the message.
    pub(crate) fn check_send(&self, wr: &SendWr<'_>, ahead: usize) -> Result<u32, VerbsError> {
        let refuse = |why: String| Err(VerbsError::Invalid(why));
        if !matches!(self.state, QpState::Rts | QpState::Err) {
            return Err(self.not_connected("not connected"));
        }
        check_operation(&wr.op)?;
        let length = match wr.data {
            SendData::Inline(data) => {
                if matches!(wr.op, SendOp::Read { .. }) {
                    return refuse("a READ cannot have inline data".into());
                }
                if data.len() > self.cap.max_inline_data as usize {
                    return refuse(format!(
                        "{} bytes of inline data, at most {} are possible",
                        data.len(),
                        self.cap.max_inline_data
                    ));
                }
                data.len() as u64
            }
            SendData::Sges(sges) => {
                if wr.flags.contains(SendFlags::INLINE) {
                    return refuse("inline data must be given as bytes".into());
                }
                if sges.len() > self.cap.max_send_sge as usize {
                    return refuse(format!(
                        "{} gather elements, the queue was created for {}",
                        sges.len(),
                        self.cap.max_send_sge
                    ));
                }
                // A Read Request names one sink: `max_sge_rd` is 1.
                if matches!(wr.op, SendOp::Read { .. }) && sges.len() > 1 {
                    return refuse(format!("{} elements of a READ, iWARP takes 1", sges.len()));
                }
                sges.iter().map(|sge| u64::from(sge.length)).sum()
            }
        };
        let Ok(length) = u32::try_from(length) else {
            return refuse(format!(
                "message of {length} bytes, less than 4 GiB are possible"
            ));
        };
        if !self.sq.has_room(ahead) {
            return Err(VerbsError::NoMemory(format!(
                "{} sends are posted, the queue holds no more",
                self.sq.len()
            )));
        }
        Ok(length)
    }

    fn not_connected(&self, what: &str) -> VerbsError {
        VerbsError::NotConnected(format!(
            "queue pair {:#x} is {what} (state {:?})",
            self.qpn, self.state
        ))
    }
}

/// Refuses the operations that iWARP, or siw, does not have.
fn check_operation(op: &SendOp) -> Result<(), VerbsError> {
    match op {
        SendOp::Send { imm: None }
        | SendOp::SendInvalidate { .. }
        | SendOp::Write { imm: None, .. }
        | SendOp::Read { .. } => Ok(()),
        SendOp::Send { imm: Some(_) } | SendOp::Write { imm: Some(_), .. } => Err(
            VerbsError::invalid("iWARP has no immediate data; send a message instead"),
        ),
        SendOp::CompareSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush { .. }
        | SendOp::LocalInvalidate { .. }
        | SendOp::BindMw(_) => Err(VerbsError::invalid(format!(
            "iWARP has no {}",
            op.info().name
        ))),
    }
}
