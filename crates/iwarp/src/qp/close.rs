//! The end of a stream: in order, by TERMINATE, or by a reset.
//!
//! A stream that ends from this side sends its last bytes, shuts down, and then waits for the
//! end of the peer's stream, so that a TERMINATE is not lost: a socket that is closed with
//! unread bytes resets the connection. A peer that does not close is reset after
//! [`CLOSE_TIMEOUT`].
//!
//! An orderly end first sends the SENDs and Writes that were posted before. siw hands them to
//! TCP when they are posted, so a program may disconnect without waiting for completions.
//! The queue is flushed from the first work request on that needs bytes of the peer: a Read,
//! or a fence behind one.

use core::time::Duration;

use ferroce_objects::time::Deadline;
use ferroce_objects::{
    Memory, QpEvent, QpState, Reason, SendFlags, SendOp, Time, VerbsError, WcStatus,
};

use super::start::Start;
use super::{OutstandingRead, Phase, Qp};
use crate::bugs::Bug;
use crate::engine::Context;
use crate::event::{CloseCause, StreamEvent};
use crate::header::Header;
use crate::terminate::{Code, Terminate};

/// Time in which the socket must accept more of the last bytes, and in which the peer must
/// close its stream after them.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A refusal, as functions return it.
pub(super) type Refused = Box<Refusal>;

/// The reason to end a stream.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Error code of the TERMINATE, if one is sent.
    code: Option<Code>,
    reason: Reason,
    /// Headers of the segment that caused the error.
    header: Option<Header>,
    /// Status of the receive in use.
    receive: Option<WcStatus>,
    /// Number and status of the work request that fails.
    request: Option<(u64, WcStatus)>,
    cause: CloseCause,
}

impl Refusal {
    /// Returns the refusal that a TERMINATE with this code reports.
    pub(super) fn new(code: Code, reason: Reason) -> Refused {
        Box::new(Refusal {
            code: Some(code),
            reason,
            header: None,
            receive: None,
            request: None,
            cause: CloseCause::Failed,
        })
    }

    /// Returns the end of a stream that the peer has terminated.
    pub(super) fn terminated(text: String) -> Refused {
        let mut refusal = Refusal::new(Code::MPA_STREAM_LOST, Reason::Terminated(text));
        refusal.code = None;
        refusal.cause = CloseCause::Terminated;
        refusal
    }

    /// Adds the headers of the segment that caused the error.
    pub(super) fn because_of(mut self: Box<Self>, header: &Header) -> Refused {
        self.header = Some(*header);
        self
    }

    /// Sets the status of the receive in use.
    pub(super) fn failing_receive(mut self: Box<Self>, status: WcStatus) -> Refused {
        self.receive = Some(status);
        self
    }

    /// Sets the work request of a Read as the one that fails.
    pub(super) fn failing_read(mut self: Box<Self>, read: &OutstandingRead) -> Refused {
        let status = match self.reason {
            Reason::InvalidRequest(_) => WcStatus::BadResponse,
            _ => WcStatus::LocalProtection,
        };
        self.request = read.request.map(|number| (number, status));
        self
    }
}

impl Qp {
    /// Ends the stream because of a segment of the peer.
    pub(super) fn refuse(&mut self, cx: &mut Context, refusal: Refusal) {
        let status = match (refusal.receive, refusal.request) {
            (Some(status), _) | (None, Some((_, status))) => status,
            (None, None) => WcStatus::WrFlush,
        };
        self.report(cx, None, status, refusal.reason);
        if let Some(code) = refusal.code
            && refusal.receive.is_none()
            && refusal.request.is_none()
        {
            self.event(
                cx,
                match code.is_protection() {
                    true => QpEvent::AccessError,
                    false => QpEvent::RequestError,
                },
            );
        }
        self.enter_error(cx, refusal.request, refusal.receive);
        let header = refusal.header.as_ref();
        let terminate = refusal.code.map(|code| Terminate::new(code, header));
        self.end_stream(cx, terminate, refusal.cause);
    }

    /// Ends the stream because a work request cannot be executed.
    pub(super) fn fail_request(
        &mut self,
        cx: &mut Context,
        index: usize,
        status: WcStatus,
        reason: Reason,
    ) {
        let wr_id = self.sq.get(index).map(|wqe| wqe.wr_id);
        self.report(cx, wr_id, status, reason);
        let number = self.popped.wrapping_add(index as u64);
        self.enter_error(cx, Some((number, status)), None);
        let terminate = Terminate::new(Code::RDMAP_LOCAL_CATASTROPHIC, None);
        self.end_stream(cx, Some(terminate), CloseCause::Failed);
    }

    /// Ends the stream from this side, with a TERMINATE if it can be sent.
    ///
    /// Unsent bytes are dropped. If that cuts a message, no TERMINATE can follow, and the
    /// connection is reset.
    pub(super) fn end_stream(
        &mut self,
        cx: &mut Context,
        terminate: Option<Terminate>,
        cause: CloseCause,
    ) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        if stream.phase == Phase::ShutDown {
            return;
        }
        if !stream.output.is_between_messages() || cause == CloseCause::Terminated {
            let abort = cause != CloseCause::Terminated;
            self.close_stream(cx, abort, cause);
            return;
        }
        stream.output.clear();
        stream.current = None;
        if let Some(terminate) = terminate {
            let fpdu = terminate.to_fpdu(stream.params.crc);
            stream.output.write(|out| out.extend_from_slice(&fpdu));
            stream.output.end_fpdu(true);
        }
        self.begin_finishing(cx, cause);
    }

    fn begin_finishing(&mut self, cx: &mut Context, cause: CloseCause) {
        let stream = self.stream();
        stream.phase = Phase::Finishing;
        stream.cause = cause;
        stream.inbound_reads.clear();
        // Messages that are held back keep the deadline of the hold.
        if !(self.is_held() && self.drains()) {
            self.stream().start = Start::Done;
            self.set_deadline(cx, Some(cx.now + CLOSE_TIMEOUT));
        }
        self.wake(cx);
    }

    /// True if the next work request is sent before the stream of an orderly end shuts down.
    pub(super) fn drains(&self) -> bool {
        let Some(stream) = &self.stream else {
            return false;
        };
        if self.state != QpState::Sqd || stream.phase != Phase::Finishing {
            return false;
        }
        self.sq.get(stream.started).is_some_and(|wqe| {
            let is_fenced = wqe.flags.contains(SendFlags::FENCE) && !stream.outstanding.is_empty();
            !matches!(wqe.op, SendOp::Read { .. }) && !is_fenced
        })
    }

    /// Ends a connection in order.
    pub(crate) fn disconnect(&mut self, cx: &mut Context) -> Result<(), VerbsError> {
        let phase = self.stream.as_ref().map(|stream| stream.phase);
        let Some(Phase::Open | Phase::AwaitingRtr) = phase else {
            return Err(VerbsError::NotConnected(format!(
                "queue pair {:#x} has no connection to end (state {:?})",
                self.qpn, self.state
            )));
        };
        self.state = QpState::Sqd;
        // siw flushes receives at once: what the peer still sends is not received.
        self.flush_receives(cx, None);
        self.begin_finishing(cx, CloseCause::Program);
        self.finish_if_drained(cx);
        self.settle(cx);
        Ok(())
    }

    /// Shuts the stream down once the last bytes have been accepted.
    pub(super) fn finish_if_drained(&mut self, cx: &mut Context) {
        let Some(stream) = &self.stream else {
            return;
        };
        if stream.phase != Phase::Finishing || !stream.output.is_empty() || stream.current.is_some()
        {
            return;
        }
        if self.drains() && !cx.has_bug(Bug::FlushAtDisconnect) {
            return;
        }
        let stream = self.stream();
        stream.phase = Phase::ShutDown;
        let qpn = self.qpn;
        cx.stream_events.push_back(StreamEvent::Shutdown { qpn });
        self.flush_sends(cx, None);
    }

    /// Processes the end of the peer's stream.
    pub(crate) fn end_of_stream(&mut self, cx: &mut Context) {
        let Some(stream) = &self.stream else {
            return;
        };
        if cx.has_bug(Bug::IgnoreEndOfStream) {
            return;
        }
        match stream.phase {
            Phase::ShutDown => {
                let cause = stream.cause;
                self.enter_error(cx, None, None);
                self.close_stream(cx, false, cause);
            }
            Phase::Finishing => self.stream_lost(cx, "closed by the peer before the last byte"),
            Phase::Open | Phase::AwaitingRtr => {
                if !stream.is_between_messages() {
                    self.stream_lost(cx, "closed by the peer in the middle of a message");
                } else {
                    self.enter_error(cx, None, None);
                    self.close_stream(cx, false, CloseCause::Peer);
                }
            }
        }
        self.settle(cx);
    }

    /// Processes the loss of the connection.
    pub(crate) fn stream_lost(&mut self, cx: &mut Context, why: &'static str) {
        if self.stream.is_none() {
            return;
        }
        self.report(cx, None, WcStatus::WrFlush, Reason::StreamLost(why));
        self.enter_error(cx, None, None);
        self.close_stream(cx, true, CloseCause::Lost);
        self.settle(cx);
    }

    /// Processes the stream's deadline.
    pub(crate) fn timed_out(&mut self, cx: &mut Context) {
        if let Some(stream) = &mut self.stream {
            stream.deadline = Deadline::NONE;
            if self.start_timed_out(cx) {
                return;
            }
            let reason = Reason::StreamLost("the peer did not answer in time");
            self.report(cx, None, WcStatus::WrFlush, reason);
            self.enter_error(cx, None, None);
            self.close_stream(cx, true, CloseCause::TimedOut);
            self.settle(cx);
        }
    }

    /// Takes bytes that the socket has accepted out of the output.
    pub(crate) fn accepted(&mut self, cx: &mut Context, bytes: usize) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let all = stream.output.len();
        let bytes = match cx.has_bug(Bug::LosePartialWrite) {
            true => all,
            false => bytes.min(all),
        };
        stream.output.accept(bytes);
        let position = stream.output.accepted();
        let has_more = stream.current.is_some()
            || !stream.inbound_reads.is_empty()
            || self.sq.len() > stream.started;
        let drained = stream.output.is_empty();
        self.complete_sent(cx, position);
        if bytes > 0 {
            self.arm_nudge(cx);
            self.extend_close(cx);
        }
        if drained && has_more {
            self.wake(cx);
        }
        self.finish_if_drained(cx);
        self.settle(cx);
    }

    /// Starts the timeout of the end anew: the socket has accepted bytes.
    fn extend_close(&mut self, cx: &mut Context) {
        if let Some(stream) = &self.stream
            && stream.phase == Phase::Finishing
            && stream.start == Start::Done
        {
            self.set_deadline(cx, Some(cx.now + CLOSE_TIMEOUT));
        }
    }

    /// True if a message is partly sent, or bytes wait for the socket.
    pub(crate) fn has_unsent_bytes(&self) -> bool {
        let stream = self.stream.as_ref();
        stream.is_some_and(|stream| {
            stream.current.is_some()
                || !stream.output.is_empty()
                || !stream.output.is_between_messages()
        })
    }

    /// Returns the bytes until the ends of the FPDUs that are partly sent and partly received.
    pub(crate) fn left_of_fpdus(&self) -> Option<(usize, usize)> {
        let stream = self.stream.as_ref()?;
        Some((stream.output.left_of_fpdu(), stream.reader.left_of_fpdu()?))
    }

    /// Copies the unsent bytes that are references to memory.
    pub(crate) fn own_output(&mut self, cx: &mut Context, memory: &dyn Memory) {
        if let Some(stream) = &mut self.stream
            && stream.output.own_all(memory).is_err()
        {
            self.output_fault(cx);
        }
    }

    /// Processes memory of the output that cannot be read.
    pub(crate) fn output_fault(&mut self, cx: &mut Context) {
        let Some(stream) = &self.stream else {
            return;
        };
        let Some((fault, response)) = stream.output.first_memory() else {
            return;
        };
        if response {
            let code = Code::RDMAP_CATASTROPHIC_STREAM;
            self.refuse(cx, *Refusal::new(code, fault.into()));
        } else {
            let accepted = stream.output.accepted();
            let unsent = |index: &usize| {
                let end = self.sq.get(*index).map_or(u64::MAX, |wqe| wqe.progress.end);
                end > accepted
            };
            let started = stream.started;
            let index = (0..started).find(unsent).unwrap_or(started);
            self.fail_request(cx, index, WcStatus::LocalProtection, fault.into());
        }
        self.settle(cx);
    }

    /// Gives the stream up. The event is the last one of the stream.
    pub(crate) fn close_stream(&mut self, cx: &mut Context, abort: bool, cause: CloseCause) {
        if self.stream.is_none() {
            return;
        }
        self.set_deadline(cx, None);
        self.stream = None;
        let qpn = self.qpn;
        cx.stream_events
            .push_back(StreamEvent::Closed { qpn, abort, cause });
    }

    /// Sets or clears the stream's deadline.
    pub(super) fn set_deadline(&mut self, cx: &mut Context, deadline: Option<Time>) {
        let qpn = self.qpn;
        let stream = self.stream();
        if let Some(old) = stream.deadline.get() {
            cx.timers.remove(&(old, qpn));
        }
        stream.deadline = deadline.into();
        if let Some(time) = deadline {
            cx.timers.insert((time, qpn));
        }
    }
}
