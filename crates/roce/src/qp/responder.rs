//! The responder: checks and executes the peer's requests.
//!
//! RC and XRC requests are executed strictly in the order of their PSNs. A request ahead of
//! the expected PSN is dropped, and the first such request causes one sequence NAK. A request
//! behind the expected PSN is a duplicate: it is not executed again, only answered again. A
//! UC message with a lost packet is dropped whole.

use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_wire::{NakCode, Packet, Psn, Syndrome, rnr_delay_ns};

use super::Qp;
use super::request_kind::RequestKind;
use super::responses::Response;
use crate::attr::{QpState, QpType};
use crate::bugs::Bug;
use crate::counters::Counter;
use crate::cq::Cq;
use crate::decision::Decision;
use crate::engine::Context;
use crate::error::Reason;
use crate::event::QpEvent;
use crate::memory::{Fault, Memory};
use crate::receive::{Drop, Received};
use crate::recv_queue::HeldRecv;
use crate::region::{AccessError, Pd};
use crate::srq::Srq;
use crate::verbs::WcStatus;

/// State of the responder.
///
/// Fields are in the order of use, so that a single-packet SEND or WRITE touches two cache
/// lines.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Responder {
    /// Expected PSN: the PSN of the next request.
    pub(super) psn: Psn,
    /// One past the PSN of the last executed SEND, WRITE or atomic. A READ does not move it:
    /// the ACK of a duplicate must not acknowledge a READ whose responses may be lost.
    pub(super) ack_psn: Psn,
    /// MSN: number of completed messages, modulo 2^24.
    pub(super) msn: u32,
    /// True if a NAK was sent; further NAKs are suppressed until the expected PSN arrives.
    pub(super) nak_sent: bool,
    /// True if a UC message lost a packet: packets are dropped until a message starts.
    dropping: bool,
    /// True once a request has arrived; the first one in RTR raises COMM_EST.
    established: bool,
    /// True if `held` is a receive in use.
    pub(super) holding: bool,
    /// PSN of an ACK that follows all queued responses. The usual ACK needs no queue entry.
    pub(super) pending_ack: Option<Psn>,
    /// XRC: the shared receive queue that the message in progress, or a request, names.
    pub(super) xrc_srq: Option<Arc<Srq>>,
    /// The SEND or WRITE in progress.
    pub(super) message: Option<Message>,
    /// The receive in use, if `holding`.
    pub(super) held: HeldRecv,
    /// Responses to send, in PSN order.
    pub(super) responses: VecDeque<Response>,
    /// The last `max_dest_rd_atomic` READs and atomics, for duplicates.
    pub(super) saved: VecDeque<Saved>,
}

/// A SEND or WRITE whose last packet has not arrived.
#[derive(Copy, Clone, Debug)]
pub(super) struct Message {
    /// Destination of a WRITE; `None` for a SEND.
    pub(super) write: Option<WriteTarget>,
    /// Number of bytes written to memory.
    pub(super) placed: u64,
}

/// Remote memory that the rest of a WRITE goes to.
#[derive(Copy, Clone, Debug)]
pub(super) struct WriteTarget {
    /// Address of the next packet's payload.
    pub(super) va: u64,
    pub(super) rkey: u32,
    /// Number of bytes still to arrive.
    pub(super) left: u64,
}

/// An executed READ, atomic, atomic write or flush, saved for duplicates of its request.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    pub(super) psn: Psn,
    pub(super) packets: u32,
    pub(super) result: SavedResult,
    pub(super) pd: Option<Arc<Pd>>,
}

/// Response to a saved request.
#[derive(Clone, Debug)]
pub(super) enum SavedResult {
    /// Data that is read from memory again.
    Read { va: u64, rkey: u32, length: u32 },
    /// Original value that the atomic found.
    Atomic { original: u64 },
    /// Empty response of an atomic write or a flush.
    Empty,
}

/// Reason why the responder does not execute a request.
pub(super) enum Refusal {
    /// No receive is posted: RNR NAK.
    NotReady,
    /// The request is invalid or cannot be executed: fatal NAK, and the queue pair fails.
    Fatal {
        nak: NakCode,
        /// Completion status of the receive in use, if there is one.
        status: WcStatus,
        reason: Reason,
    },
}

impl Refusal {
    /// Returns a refusal with NAK code Invalid Request.
    pub(super) fn invalid(why: impl Into<String>) -> Refusal {
        Refusal::Fatal {
            nak: NakCode::InvalidRequest,
            status: WcStatus::RemoteInvalidRequest,
            reason: Reason::InvalidRequest(why.into()),
        }
    }

    /// Returns a refusal because the memory of a receive cannot be written.
    pub(super) fn local(reason: Reason) -> Refusal {
        Refusal::Fatal {
            nak: NakCode::RemoteOperational,
            status: WcStatus::LocalProtection,
            reason,
        }
    }
}

impl From<AccessError> for Refusal {
    fn from(error: AccessError) -> Refusal {
        Refusal::Fatal {
            nak: NakCode::RemoteAccess,
            status: WcStatus::RemoteAccess,
            reason: Reason::Access(error),
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal::Fatal {
            nak: NakCode::RemoteOperational,
            status: WcStatus::LocalQpOperation,
            reason: Reason::Fault(fault),
        }
    }
}

/// Returns the name of a fatal NAK.
pub(super) fn nak_name(code: NakCode) -> &'static str {
    match code {
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccess => "remote access error",
        _ => "remote operational error",
    }
}

impl Responder {
    /// Starts with the expected PSN of a queue pair that enters RTR.
    pub(super) fn ready(&mut self, psn: Psn) {
        self.psn = psn;
        self.ack_psn = psn;
    }

    /// Returns the expected PSN.
    pub(super) fn expected_psn(&self) -> Psn {
        self.psn
    }

    /// Drops all queued responses.
    pub(super) fn drop_responses(&mut self) {
        self.responses.clear();
        self.pending_ack = None;
    }

    /// Ends the message in progress. Returns the work request id of the receive in use, which
    /// the caller completes, and the completion queue of its XRC shared receive queue.
    pub(super) fn release_held(&mut self) -> Option<(u64, Option<Arc<Cq>>)> {
        self.message = None;
        if !std::mem::take(&mut self.holding) {
            return None;
        }
        let cq = self.xrc_srq.as_ref().and_then(|srq| srq.xrc_cq().cloned());
        Some((self.held.wr_id, cq))
    }
}

impl Qp {
    /// Handles a request of the peer (RC, UC, XRC).
    pub(crate) fn request(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Received {
        if !self.resp.established {
            self.resp.established = true;
            if self.state == QpState::Rtr {
                self.event(cx, QpEvent::CommunicationEstablished);
            }
        }
        let received = if self.kind == QpType::Uc {
            self.unreliable_request(cx, memory, packet)
        } else {
            self.reliable_request(cx, memory, packet)
        };
        self.settle_consequences(cx);
        received
    }

    /// Handles a request of an RC or XRC peer.
    fn reliable_request(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Received {
        let ahead = self.psn_distance(cx, packet.psn(), self.resp.psn);
        if ahead > 0 && !cx.has_bug(Bug::AcceptPsnAhead) {
            let reported = !self.resp.nak_sent || cx.has_bug(Bug::ForgetNakOnce);
            let expected = self.resp.psn;
            cx.decisions
                .add(self.qpn, || Decision::Gap { expected, reported });
            if reported {
                self.resp.nak_sent = true;
                cx.count(Counter::OutOfSeqRequest);
                self.push_nak(cx, self.resp.psn, Syndrome::Nak(NakCode::PsnSequence));
            }
            return Received::Accepted;
        }
        if ahead < 0 {
            cx.count(Counter::DuplicateRequest);
            self.handle_duplicate(cx, memory, packet);
            return Received::Accepted;
        }
        self.resp.nak_sent = false;
        match self.execute(cx, memory, packet) {
            Ok(()) => {}
            Err(Refusal::NotReady) => {
                self.resp.nak_sent = true;
                cx.count(Counter::SendRnrErr);
                self.retry_counts.rnr_sent = self.retry_counts.rnr_sent.wrapping_add(1);
                // rxe accepts any value too, and sends its low five bits.
                let timer = self.attr.min_rnr_timer & 0x1f;
                let wait_ns = rnr_delay_ns(timer);
                cx.decisions
                    .add(self.qpn, || Decision::NotReady { wait_ns });
                self.push_nak(cx, packet.psn(), Syndrome::RnrNak { timer });
            }
            Err(Refusal::Fatal {
                nak,
                status,
                reason,
            }) => self.refuse(cx, packet.psn(), nak, status, reason),
        }
        Received::Accepted
    }

    /// Refuses a request with a fatal NAK and moves to ERR. The receive that the request
    /// uses, if any, completes with `status`.
    fn refuse(
        &mut self,
        cx: &mut Context,
        psn: Psn,
        nak: NakCode,
        status: WcStatus,
        reason: Reason,
    ) {
        let Some((wr_id, cq)) = self.resp.release_held() else {
            return self.refuse_without_receive(cx, psn, nak, status, reason);
        };
        self.push_fatal_nak(cx, psn, nak);
        self.report(cx, Some(wr_id), status, reason);
        let cq = cq.or_else(|| self.recv_cq.clone());
        self.complete_receive_error(cx, cq, wr_id, status);
        self.enter_error(cx);
    }

    /// Does the same as [`Qp::refuse`] for a request that uses no receive: a receive in use
    /// belongs to a later message. An asynchronous event reports the error.
    pub(super) fn refuse_without_receive(
        &mut self,
        cx: &mut Context,
        psn: Psn,
        nak: NakCode,
        status: WcStatus,
        reason: Reason,
    ) {
        self.push_fatal_nak(cx, psn, nak);
        self.report(cx, None, status, reason);
        let event = match nak {
            NakCode::RemoteAccess => QpEvent::AccessError,
            NakCode::InvalidRequest => QpEvent::RequestError,
            _ => QpEvent::Fatal,
        };
        self.event(cx, event);
        self.enter_error(cx);
    }

    fn push_fatal_nak(&mut self, cx: &mut Context, psn: Psn, nak: NakCode) {
        let name = nak_name(nak);
        cx.decisions
            .add(self.qpn, || Decision::Refused { nak: name });
        self.push_nak(cx, psn, Syndrome::Nak(nak));
    }

    /// Handles a request of a UC peer. Invalid and out-of-sequence packets are dropped.
    fn unreliable_request(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Received {
        let opcode = packet.opcode();
        let gap = packet.psn() != self.resp.psn && !cx.has_bug(Bug::UcIgnoreGap);
        if gap || self.resp.dropping {
            self.resp.message = None;
            self.resp.dropping = !opcode.starts_message();
            self.resp.psn = packet.psn();
            if self.resp.dropping {
                self.resp.psn = packet.psn().next();
                return Received::Dropped(Drop::OutOfSequence);
            }
        }
        if opcode.starts_message() {
            self.resp.message = None; // the rest of the last message was lost
        }
        self.resp.psn = packet.psn();
        match self.execute(cx, memory, packet) {
            Ok(()) => Received::Accepted,
            Err(Refusal::Fatal { status, reason, .. })
                if self.resp.holding
                    && matches!(status, WcStatus::LocalLength | WcStatus::LocalProtection) =>
            {
                let held = self.resp.release_held();
                self.report(cx, held.as_ref().map(|(wr_id, _)| *wr_id), status, reason);
                if let Some((wr_id, _)) = held {
                    let cq = self.recv_cq.clone();
                    self.complete_receive_error(cx, cq, wr_id, status);
                }
                self.enter_error(cx);
                Received::Accepted
            }
            Err(refusal) => {
                self.resp.message = None;
                self.resp.dropping = true;
                self.resp.psn = packet.psn().next();
                match refusal {
                    Refusal::NotReady => Received::Dropped(Drop::NoReceive),
                    Refusal::Fatal { .. } => Received::Dropped(Drop::OutOfSequence),
                }
            }
        }
    }

    /// Executes the request with the expected PSN. A refused request changes nothing but bytes
    /// of the message in progress.
    pub(super) fn execute(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let opcode = packet.opcode();
        self.check_sequence(packet)?;
        self.check_permission(packet)?;
        if let Some(xrceth) = packet.xrceth() {
            let srq = self.xrcd.as_ref().and_then(|x| x.srq(xrceth.srq_number));
            if srq.is_none() {
                let number = xrceth.srq_number;
                return Err(Refusal::invalid(format!(
                    "no shared receive queue {number:#x} in the XRC domain"
                )));
            }
            if self.resp.message.is_none() && !self.resp.holding {
                self.resp.xrc_srq = srq;
            }
        }
        let data = packet.payload();
        if opcode.is_send() || opcode.is_write() {
            self.check_size(packet)?;
            self.take_packet(cx, memory, packet, data)?;
            self.resp.psn = packet.psn().next();
            self.resp.ack_psn = self.resp.psn;
            if packet.ack_req() && self.kind.is_reliable() {
                self.push_ack(cx, packet.psn());
            }
            return Ok(());
        }
        match RequestKind::of(opcode) {
            RequestKind::Read => self.accept_read(cx, packet),
            RequestKind::CompareSwap | RequestKind::FetchAdd => self.do_atomic(cx, memory, packet),
            RequestKind::AtomicWrite => self.do_atomic_write(cx, memory, packet),
            RequestKind::Flush => self.do_flush(cx, memory, packet),
            // SENDs and WRITEs have been executed above.
            RequestKind::Send | RequestKind::Write | RequestKind::NotExecuted => {
                Err(Refusal::invalid(format!("{opcode} is not a request")))
            }
        }
    }
}
