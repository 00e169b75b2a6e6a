//! Work requests come in.

use ferroce_wire::Psn;

use super::Qp;
use crate::attr::{QpState, QpType};
use crate::engine::Context;
use crate::error::VerbsError;
use crate::send_queue::{Finished, Phase, Wqe};
use crate::verbs::{RecvWr, SendData, SendFlags, SendOp, SendWr, WcStatus};

/// The longest message.
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

impl Qp {
    #[inline]
    pub(crate) fn post_send(&mut self, cx: &mut Context, wr: SendWr<'_>) -> Result<(), VerbsError> {
        let length = self.check_send(&wr, 0)?;
        let (sges, inline) = match wr.data {
            SendData::Sges(sges) => (sges, &[][..]),
            SendData::Inline(data) => (&[][..], data),
        };
        let wqe = Wqe {
            wr_id: wr.wr_id,
            op: wr.op,
            sge: sges.first().copied().unwrap_or_default(),
            flags: wr.flags,
            phase: Phase::Posted,
            inline: matches!(wr.data, SendData::Inline(_)),
            num_sge: sges.len() as u8,
            length,
            first_psn: Psn::new(0),
            packets: 0,
            chunk: 0,
            xrc_srq: wr.xrc_srq,
        };
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            self.complete_send(cx, Finished::of(&wqe), WcStatus::WrFlush);
            self.settle(cx);
            return Ok(());
        }
        let ud = wr.ud.filter(|_| self.kind.is_datagram());
        self.sq.push(wqe, sges, inline, ud);
        self.wake(cx);
        Ok(())
    }

    pub(crate) fn post_recv(
        &mut self,
        cx: &mut Context,
        wr: &RecvWr<'_>,
    ) -> Result<(), VerbsError> {
        if self.state == QpState::Reset {
            return Err(VerbsError::invalid(format!(
                "queue pair {:#x} is in RESET, receives may be posted from INIT on",
                self.qpn
            )));
        }
        if self.srq.is_some() || matches!(self.kind, QpType::XrcInitiator | QpType::XrcTarget) {
            return Err(VerbsError::invalid(format!(
                "queue pair {:#x} has no receive queue of its own",
                self.qpn
            )));
        }
        if self.state == QpState::Err {
            let cq = self.recv_cq.clone();
            self.complete_receive_error(cx, cq, wr.wr_id, WcStatus::WrFlush);
            self.settle(cx);
            return Ok(());
        }
        self.rq.post(wr)
    }

    /// Everything that can be said about a request before its turn comes, when
    /// `ahead` others are posted before it; returns the length of its message.
    pub(crate) fn check_send(&self, wr: &SendWr<'_>, ahead: usize) -> Result<u32, VerbsError> {
        let refuse = |why: String| Err(VerbsError::Invalid(why));
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return refuse(format!(
                "queue pair {:#x} is in {:?}, sends may be posted from RTS on",
                self.qpn, self.state
            ));
        }
        if !allowed(self.kind, &wr.op) {
            return refuse(format!(
                "{:?} is not for a {:?} queue pair",
                wr.op, self.kind
            ));
        }
        if self.kind.is_datagram() && wr.ud.is_none() {
            return refuse("a datagram needs an address handle".into());
        }
        let mut length = match wr.data {
            SendData::Inline(data) => {
                if !may_be_inline(&wr.op) {
                    return refuse(format!("{:?} cannot have inline data", wr.op));
                }
                if data.len() > self.cap.max_inline_data as usize {
                    return refuse(format!(
                        "{} bytes of inline data, the queue was created for {}",
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
                sges.iter().map(|sge| u64::from(sge.length)).sum()
            }
        };
        if length > MAX_MESSAGE {
            return refuse(format!(
                "message of {length} bytes, at most 2 GiB are possible"
            ));
        }
        match wr.op {
            SendOp::CompareSwap { remote_addr, .. }
            | SendOp::FetchAdd { remote_addr, .. }
            | SendOp::AtomicWrite { remote_addr, .. } => {
                if remote_addr % 8 != 0 {
                    return refuse(format!(
                        "remote address {remote_addr:#x} is not a multiple of 8"
                    ));
                }
                let exact = matches!(wr.op, SendOp::AtomicWrite { .. });
                if length < 8 || (exact && length != 8) {
                    return refuse(format!("{length} bytes of local memory, 8 are needed"));
                }
                length = 8;
            }
            SendOp::Flush { .. } | SendOp::LocalInvalidate { .. } | SendOp::BindMw(_) => length = 0,
            _ => {}
        }
        if !self.sq.has_room(ahead) {
            return Err(VerbsError::NoMemory(format!(
                "{} sends are posted, the queue holds no more",
                self.sq.len()
            )));
        }
        Ok(length as u32)
    }
}

#[inline]
fn allowed(kind: QpType, op: &SendOp) -> bool {
    match kind {
        QpType::Rc => true,
        QpType::XrcInitiator => !matches!(op, SendOp::Flush { .. } | SendOp::AtomicWrite { .. }),
        QpType::XrcTarget => false,
        QpType::Uc => matches!(
            op,
            SendOp::Send { .. }
                | SendOp::Write { .. }
                | SendOp::BindMw(_)
                | SendOp::LocalInvalidate { .. }
        ),
        QpType::Ud | QpType::Gsi => matches!(op, SendOp::Send { .. }),
    }
}

fn may_be_inline(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send { .. }
            | SendOp::SendInvalidate { .. }
            | SendOp::Write { .. }
            | SendOp::AtomicWrite { .. }
    )
}
