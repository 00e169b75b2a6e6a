//! Invalid calls: the engine must refuse them and keep its state unchanged.

use ferroce_roce::{
    AttrMask, QpAttr, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, VerbsError,
};

use crate::world::{Check, World};

/// The mistake in a call.
#[derive(Copy, Clone, Debug)]
enum InvalidCall {
    TooManyElements,
    TooMuchInline,
    Misaligned,
    NotForTheType,
    ReceiveTooManyElements,
    NoSuchTransition,
}

impl World {
    /// Checks that a full send queue refuses another work request.
    pub(crate) fn try_full_queue(&mut self, qp: usize) -> Check {
        let model = &self.qps[qp];
        let flushes = model.is(QpState::Err) || model.is(QpState::Sqe);
        if flushes || model.is_datagram() {
            return Ok(());
        }
        match self.try_send(qp, SendOp::Send { imm: None }, SendData::Sges(&[])) {
            Err(VerbsError::NoMemory(_)) => Ok(()),
            other => Err(format!("a full queue returned {other:?}")),
        }
    }

    /// Makes one invalid call and checks that the engine refuses it.
    pub(crate) fn try_invalid_call(&mut self, qp: usize) -> Check {
        use InvalidCall::*;
        let all = [
            TooManyElements,
            TooMuchInline,
            Misaligned,
            NotForTheType,
            ReceiveTooManyElements,
            NoSuchTransition,
        ];
        let what = self.rng.pick(&all);
        let (host, qpn) = (self.qps[qp].host, self.qps[qp].qpn);
        if self.qps[qp].is_datagram() || self.qps[qp].state.is_none() {
            return Ok(());
        }
        let sges = [Sge::default(); 32];
        let elements = self.qps[qp].cap.max_send_sge as usize + 1;
        let send = SendOp::Send { imm: None };
        let before = self.queue_lengths(qp)?;
        let result = match what {
            TooManyElements if elements > sges.len() => return Ok(()),
            TooManyElements => self.try_send(qp, send, SendData::Sges(&sges[..elements])),
            TooMuchInline => self.try_send(qp, send, SendData::Inline(&[0; 1024])),
            Misaligned => {
                let op = SendOp::FetchAdd {
                    remote_addr: 4,
                    rkey: 0,
                    add: 1,
                };
                let sge = Sge {
                    length: 8,
                    ..Sge::default()
                };
                self.try_send(qp, op, SendData::Sges(&[sge]))
            }
            NotForTheType if self.qps[qp].kind != QpType::Uc => return Ok(()),
            NotForTheType => {
                let op = SendOp::Read {
                    remote_addr: 0,
                    rkey: 0,
                };
                self.try_send(qp, op, SendData::Sges(&[]))
            }
            ReceiveTooManyElements => {
                let elements = self.qps[qp].cap.max_recv_sge as usize + 1;
                let wr = RecvWr {
                    wr_id: 0,
                    sges: &sges[..elements],
                };
                let flushed = self.qps[qp].is(QpState::Err) && self.qps[qp].has_own_rq();
                if flushed {
                    return Ok(()); // in ERR any receive is accepted and flushed
                }
                self.hosts[host].engine_mut().post_recv(self.now, qpn, &wr)
            }
            NoSuchTransition => {
                let attr = QpAttr {
                    state: QpState::Rtr,
                    ..QpAttr::default()
                };
                let engine = self.hosts[host].engine_mut();
                engine.modify_qp(self.now, qpn, &attr, AttrMask::STATE)
            }
        };
        if result.is_ok() {
            return Err(format!("{what:?} was accepted by {}", self.qp_name(qp)));
        }
        match self.queue_lengths(qp)? == before {
            true => Ok(()),
            false => Err(format!(
                "{what:?} was refused, but changed {}",
                self.qp_name(qp)
            )),
        }
    }

    fn queue_lengths(&self, qp: usize) -> Result<(usize, usize, QpState), String> {
        let model = &self.qps[qp];
        let query = self.hosts[model.host].engine().query_qp(model.qpn);
        let query = query.map_err(|e| e.to_string())?;
        Ok((query.sends, query.receives, query.attr.state))
    }

    fn try_send(&mut self, qp: usize, op: SendOp, data: SendData<'_>) -> Result<(), VerbsError> {
        let (host, qpn) = (self.qps[qp].host, self.qps[qp].qpn);
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::INLINE, matches!(data, SendData::Inline(_)));
        let wr = SendWr {
            wr_id: 0,
            op,
            flags,
            data,
            ud: None,
            xrc_srq: 0,
        };
        self.hosts[host].engine_mut().post_send(self.now, qpn, wr)
    }
}
