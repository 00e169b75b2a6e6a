//! Posting of work requests: checks and queues them.

use super::{Due, Qp};
use crate::attr::{QpState, QpType};
use crate::engine::Context;
use crate::error::VerbsError;
use crate::operation::{OpLength, QpTypes};
use crate::send_queue::Finished;
use crate::verbs::{RecvWr, SendData, SendFlags, SendWr, WcStatus};

/// Maximum message length: 2 GiB, as in rxe since Linux 6.12.
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

/// Work requests that may wait to be sent together. Sixteen packets cost little more than
/// one to send: the system call takes most of the time.
const MAX_WAITING: usize = 16;
/// Bytes of the longest message that may wait. Longer ones fill a run soon by themselves, and
/// are left to the progress thread.
const MAX_WAITING_LENGTH: u32 = 12 << 10;
/// Bytes of the work requests that may wait: a run.
const MAX_WAITING_BYTES: usize = 64 << 10;

impl Qp {
    /// Posts a send. In ERR and SQE it is flushed at once.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, cx: &mut Context, wr: SendWr<'_>) -> Result<(), VerbsError> {
        // Touch the cache lines that sending will need. A program that posts to many queue
        // pairs then has these cache misses overlap, instead of one after the other later.
        core::hint::black_box((self.path.traffic_class, self.req.una, self.req.window()));
        let length = self.check_send(&wr, 0)?;
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            let finished = Finished::of(wr.wr_id, &wr.op, wr.flags, length);
            self.complete_send(cx, finished, WcStatus::WrFlush);
            self.settle(cx);
            return Ok(());
        }
        self.sq.push(wr, length);
        self.wake(cx, Due::REQUESTS);
        Ok(())
    }

    /// Returns true if the unsent work requests may wait for more of them: they are few and
    /// short, and a packet in flight will cause a response.
    #[inline]
    pub(crate) fn posts_may_wait(&self) -> bool {
        self.kind.is_reliable()
            && self.has_few_unsent()
            && self.req.rnr_until.is_none()
            && self.req.expects_response_for(self.req.una)
    }

    /// Returns true if the unsent datagrams may wait for more of them: they are few and short.
    /// No response will let the caller send them.
    #[inline]
    pub(crate) fn datagrams_may_wait(&self) -> bool {
        self.kind == QpType::Ud && self.has_few_unsent()
    }

    #[inline]
    fn has_few_unsent(&self) -> bool {
        let queued = self.sq.len();
        let last = queued.checked_sub(1).and_then(|last| self.sq.get(last));
        let unsent = queued.saturating_sub(self.req.index());
        // Most programs post messages of one length.
        self.state == QpState::Rts
            && unsent < MAX_WAITING
            && last.is_some_and(|wqe| {
                wqe.length <= MAX_WAITING_LENGTH
                    && unsent * (wqe.length as usize) < MAX_WAITING_BYTES
            })
    }

    /// Posts a receive. In ERR it is flushed at once.
    pub(crate) fn post_recv(
        &mut self,
        cx: &mut Context,
        wr: &RecvWr<'_>,
    ) -> Result<(), VerbsError> {
        // As in `post_send`: touch the cache lines that an incoming message will need.
        let responses = self.resp.responses.len();
        core::hint::black_box((self.path.traffic_class, self.resp.psn, responses));
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
        self.rq.post(wr)?;
        if self.state == QpState::Err {
            // The checks above come first: ERR refuses the same receives as other states.
            while let Some(wr_id) = self.rq.discard() {
                let cq = self.recv_cq.clone();
                self.complete_receive_error(cx, cq, wr_id, WcStatus::WrFlush);
            }
            self.settle(cx);
        }
        Ok(())
    }

    /// Checks a send in a list, with `ahead` sends before it that are not queued yet; returns
    /// the message length. The common cases pass with few comparisons.
    #[inline(always)]
    pub(crate) fn check_send(&self, wr: &SendWr<'_>, ahead: usize) -> Result<u32, VerbsError> {
        let info = wr.op.info();
        let length = match wr.data {
            SendData::Sges([sge]) => {
                let is_valid = !wr.flags.contains(SendFlags::INLINE) && self.sq.takes_sges();
                is_valid.then_some(sge.length)
            }
            SendData::Inline(data) => {
                let is_valid = info.allows_inline && data.len() <= self.sq.max_inline();
                is_valid.then_some(data.len() as u32)
            }
            SendData::Sges(_) => None,
        };
        if let Some(length) = length
            && info.length == OpLength::Any
            && self.kind == QpType::Rc
            && self.state == QpState::Rts
            && u64::from(length) <= MAX_MESSAGE
            && self.sq.has_room(ahead)
        {
            return Ok(length);
        }
        self.check_send_fully(wr, ahead)
    }

    /// Makes all checks that are possible when a send is posted.
    fn check_send_fully(&self, wr: &SendWr<'_>, ahead: usize) -> Result<u32, VerbsError> {
        let refuse = |why: String| Err(VerbsError::Invalid(why));
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return refuse(format!(
                "queue pair {:#x} is in {:?}, sends may be posted from RTS on",
                self.qpn, self.state
            ));
        }
        let info = wr.op.info();
        if !info.qp_types.contains(QpTypes::only(self.kind)) {
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
                if !info.allows_inline {
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
        if let Some((remote_addr, _)) = wr.op.remote()
            && info.remote_aligned
            && remote_addr % 8 != 0
        {
            return refuse(format!(
                "remote address {remote_addr:#x} is not a multiple of 8"
            ));
        }
        match info.length {
            OpLength::Any => {}
            OpLength::AtLeast8 | OpLength::Exactly8 => {
                let exact = info.length == OpLength::Exactly8;
                if length < 8 || (exact && length != 8) {
                    return refuse(format!("{length} bytes of local memory, 8 are needed"));
                }
                length = 8;
            }
            OpLength::None => length = 0,
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
