//! The peer's requests: checked, executed, answered.
//!
//! Reliable requests are taken strictly in the order of their PSNs. One that is
//! ahead is refused, once; one that is behind has been executed and is only
//! answered again. Unreliable messages with a hole are dropped whole.

use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_wire::{NakCode, Operation, Packet, Psn, Syndrome};

use super::Qp;
use super::responses::Response;
use crate::attr::{QpState, QpType};
use crate::bugs::Bug;
use crate::counters::Counter;
use crate::cq::Cq;
use crate::engine::Context;
use crate::error::Reason;
use crate::event::QpEvent;
use crate::memory::{Fault, Memory};
use crate::receive::{Drop, Received};
use crate::recv_queue::HeldRecv;
use crate::region::{AccessError, Pd};
use crate::srq::Srq;
use crate::verbs::WcStatus;

/// Fields stand in the order of use: a SEND or WRITE that is one packet needs two cache
/// lines of them.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Responder {
    /// The PSN of the next request.
    pub(super) psn: Psn,
    /// One past the last SEND, WRITE or atomic executed. A READ does not move
    /// it: acknowledging a duplicate must not speak for data that may be lost.
    pub(super) ack_psn: Psn,
    /// Messages completed, modulo 2^24.
    pub(super) msn: u32,
    /// A NAK is out; until the expected PSN comes, there is nothing to add.
    pub(super) nak_sent: bool,
    /// An unreliable message had a hole: wait for the next first packet.
    dropping: bool,
    /// A packet has come since the queue pair became ready.
    established: bool,
    pub(super) holding: bool,
    /// An acknowledgement behind all other answers: the usual one, kept at hand.
    pub(super) pending_ack: Option<Psn>,
    /// For XRC: the queue that the message in progress, or a request, names.
    pub(super) xrc_srq: Option<Arc<Srq>>,
    pub(super) message: Option<Message>,
    pub(super) held: HeldRecv,
    pub(super) responses: VecDeque<Response>,
    pub(super) saved: VecDeque<Saved>,
}

/// A message of which more is to come.
#[derive(Copy, Clone, Debug)]
pub(super) struct Message {
    pub(super) write: Option<WriteTarget>,
    /// Bytes placed.
    pub(super) placed: u64,
}

#[derive(Copy, Clone, Debug)]
pub(super) struct WriteTarget {
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) left: u64,
}

/// A READ or atomic that the peer may ask for again.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    pub(super) psn: Psn,
    pub(super) packets: u32,
    pub(super) result: SavedResult,
    pub(super) pd: Option<Arc<Pd>>,
}

#[derive(Clone, Debug)]
pub(super) enum SavedResult {
    /// Read again from memory.
    Read { va: u64, rkey: u32, length: u32 },
    /// The value that was there.
    Atomic { original: u64 },
    /// Done, nothing to tell: atomic write, flush.
    Empty,
}

/// Why a request is not executed.
pub(super) enum Refusal {
    /// There is nowhere to receive into.
    NotReady,
    /// It breaks a rule, or cannot be done: the connection ends.
    Fatal {
        nak: NakCode,
        /// The status of the receive in use, if one is.
        status: WcStatus,
        reason: Reason,
    },
}

impl Refusal {
    pub(super) fn invalid(why: impl Into<String>) -> Refusal {
        Refusal::Fatal {
            nak: NakCode::InvalidRequest,
            status: WcStatus::RemoteInvalidRequest,
            reason: Reason::InvalidRequest(why.into()),
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

impl Responder {
    pub(super) fn ready(&mut self, psn: Psn) {
        self.psn = psn;
        self.ack_psn = psn;
    }

    pub(super) fn expected_psn(&self) -> Psn {
        self.psn
    }

    /// Sends no more answers.
    pub(super) fn drop_responses(&mut self) {
        self.responses.clear();
        self.pending_ack = None;
    }

    /// Gives back the receive in use, to be completed by the caller, and where
    /// it completes if not in the queue pair's own completion queue.
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
    /// Takes in a request of the peer (RC, UC, XRC).
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

    fn reliable_request(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Received {
        let ahead = self.psn_distance(cx, packet.psn(), self.resp.psn);
        if ahead > 0 && !cx.has_bug(Bug::AcceptPsnAhead) {
            if !self.resp.nak_sent || cx.has_bug(Bug::ForgetNakOnce) {
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
                // As rxe: any value is accepted and five bits of it go on the wire.
                let timer = self.attr.min_rnr_timer & 0x1f;
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

    /// Ends the connection because of a request, and tells the peer why. The
    /// receive that it uses, if any, completes with the reason.
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
        self.push_nak(cx, psn, Syndrome::Nak(nak));
        self.report(cx, Some(wr_id), status, reason);
        let cq = cq.or_else(|| self.recv_cq.clone());
        self.complete_receive_error(cx, cq, wr_id, status);
        self.enter_error(cx);
    }

    /// As [`Qp::refuse`], for a request that uses no receive: one that is held
    /// belongs to a later message. An event tells the program.
    pub(super) fn refuse_without_receive(
        &mut self,
        cx: &mut Context,
        psn: Psn,
        nak: NakCode,
        status: WcStatus,
        reason: Reason,
    ) {
        self.push_nak(cx, psn, Syndrome::Nak(nak));
        self.report(cx, None, status, reason);
        let event = match nak {
            NakCode::RemoteAccess => QpEvent::AccessError,
            NakCode::InvalidRequest => QpEvent::RequestError,
            _ => QpEvent::Fatal,
        };
        self.event(cx, event);
        self.enter_error(cx);
    }

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
            self.resp.message = None; // the rest of the last one never came
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

    /// Executes the request that is next in order. Nothing has changed if it is
    /// refused, but for bytes of the message in progress.
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
        match opcode.operation() {
            Operation::ReadRequest => self.accept_read(cx, packet),
            Operation::CompareSwap | Operation::FetchAdd => self.do_atomic(cx, memory, packet),
            Operation::AtomicWrite => self.do_atomic_write(cx, memory, packet),
            Operation::Flush => self.do_flush(cx, memory, packet),
            _ => Err(Refusal::invalid(format!("{opcode} is not a request"))),
        }
    }
}
