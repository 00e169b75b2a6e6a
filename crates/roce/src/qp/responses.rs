//! The queue of responses: ACKs, NAKs, READ responses and atomic acknowledges.
//!
//! Responses are sent in the order of their PSNs. Consecutive ACKs merge into the latest one,
//! which acknowledges all packets before it. The data of a READ is read from memory when its
//! response packets are sent.
//!
//! A duplicate READ request repeats a part of a READ. If its response is still being sent,
//! that response goes back; otherwise a new one is inserted in PSN order. The peer has gone
//! back too, so it receives the responses in the order it expects.

use std::sync::Arc;

use ferroce_wire::{
    Aeth, AtomicAckEth, Bth, HeaderBuf, MAX_HEADER_LEN, NakCode, Opcode, Operation, Packet, Psn,
    Syndrome, padding,
};

use super::request_kind::RequestKind;
use super::responder::{Saved, SavedResult};
use super::run_arrival::AckPlace;
use super::{Due, Qp};
use crate::attr::QpState;
use crate::bugs::Bug;
use crate::counters::Counter;
use crate::decision::{Decision, Repeat};
use crate::engine::Context;
use crate::error::Reason;
use crate::memory::{Fault, MemRef, Memory};
use crate::region::{AccessError, Pd};
use crate::transmit::{Batch, NewPacket, Origin};
use crate::verbs::{Access, WcStatus};

/// A response to send.
#[derive(Clone, Debug)]
pub(super) struct Response {
    psn: Psn,
    kind: Kind,
    /// True for the response to a duplicate: the peer may have received it before.
    replay: bool,
}

/// Maximum number of queued responses beyond `max_dest_rd_atomic`. It bounds the memory that
/// a flood of duplicates can take.
const MAX_REPLAYS: usize = 64;

/// Kind of a response.
#[derive(Clone, Debug)]
enum Kind {
    Ack,
    Nak(Syndrome),
    /// Atomic acknowledge with the original value.
    Atomic {
        original: u64,
    },
    /// READ response without data, for an atomic write or a flush.
    Empty,
    Read(ReadResponse),
}

/// The part of a READ response that has not been sent.
#[derive(Clone, Debug)]
struct ReadResponse {
    /// PSN of the next packet, whose data starts at `va`.
    next: Psn,
    va: u64,
    rkey: u32,
    /// Number of bytes left to send.
    left: u32,
    /// True if the next packet is FIRST or ONLY.
    starts: bool,
    pd: Option<Arc<Pd>>,
}

impl Response {
    /// Returns the whole response to a saved request.
    pub(super) fn data(saved: &Saved) -> Response {
        let kind = match saved.result {
            SavedResult::Atomic { original } => Kind::Atomic { original },
            SavedResult::Empty => Kind::Empty,
            SavedResult::Read { va, rkey, length } => Kind::Read(ReadResponse {
                next: saved.psn,
                va,
                rkey,
                left: length,
                starts: true,
                pd: saved.pd.clone(),
            }),
        };
        Response {
            psn: saved.psn,
            kind,
            replay: false,
        }
    }

    /// Returns an ACK or NAK.
    fn plain(psn: Psn, kind: Kind) -> Response {
        Response {
            psn,
            kind,
            replay: false,
        }
    }

    /// True if the response is neither an ACK nor a NAK.
    fn is_data(&self) -> bool {
        !matches!(self.kind, Kind::Ack | Kind::Nak(_))
    }

    /// True if the request counts against `max_dest_rd_atomic`: the peer cannot have the
    /// whole response yet.
    pub(super) fn is_outstanding(&self) -> bool {
        self.is_data() && !self.replay
    }
}

impl Qp {
    /// Queues an ACK, which replaces a pending one.
    pub(super) fn push_ack(&mut self, cx: &mut Context, psn: Psn) {
        if self.resp.pending_ack.replace(psn).is_some() {
            cx.count(Counter::AckDeferred);
        }
        self.wake(cx, Due::ACK);
    }

    /// Queues a NAK.
    pub(super) fn push_nak(&mut self, cx: &mut Context, psn: Psn, syndrome: Syndrome) {
        self.push_response(cx, Response::plain(psn, Kind::Nak(syndrome)));
    }

    /// Inserts a response behind all responses with a lower or equal PSN.
    pub(super) fn push_response(&mut self, cx: &mut Context, response: Response) {
        let queue = &mut self.resp.responses;
        if let Some(psn) = self.resp.pending_ack.take() {
            queue.push_back(Response::plain(psn, Kind::Ack));
        }
        let mut at = queue.len();
        while at > 0 && response.psn.is_before(queue[at - 1].psn) {
            at -= 1;
        }
        queue.insert(at, response);
        self.wake(cx, Due::RESPONSES);
    }

    /// Answers a duplicate request: an ACK for SEND and WRITE, the saved response for the
    /// others. A duplicate without a saved response is dropped.
    pub(super) fn handle_duplicate(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) {
        let repeat = self.answer_duplicate(cx, memory, packet);
        let decided = || Decision::Duplicate(repeat);
        cx.decisions.add(self.qpn, decided);
    }

    fn answer_duplicate(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Repeat {
        if cx.has_bug(Bug::NeverReackDuplicates) {
            return Repeat::Ignored;
        }
        let opcode = packet.opcode();
        if opcode.is_send() || opcode.is_write() {
            if opcode.is_only() && opcode.is_send() && cx.has_bug(Bug::ReexecuteDuplicateSend) {
                self.execute_again(cx, memory, packet);
                return Repeat::Answered;
            }
            let psn = self.resp.ack_psn.prev();
            let queued = |r: &Response| matches!(r.kind, Kind::Ack) && r.psn == psn;
            match &mut self.resp.pending_ack {
                // Packets without AckReq may have been executed since.
                Some(due) if due.is_before(psn) => *due = psn,
                Some(_) => {}
                None if self.resp.responses.iter().any(queued) => {}
                None => self.push_response(cx, Response::plain(psn, Kind::Ack)),
            }
            return Repeat::Acknowledged;
        }
        let Some(mut response) = self.saved_response(packet) else {
            return Repeat::Ignored; // no longer saved, or never executed
        };
        if let Kind::Atomic { original } = &mut response.kind
            && cx.has_bug(Bug::ReexecuteDuplicateAtomic)
            && let Ok(value) = self.execute_atomic(cx, memory, packet)
        {
            *original = value;
        }
        let end = response.end(self.mtu);
        for queued in &mut self.resp.responses {
            if queued.is_data() && queued.end(self.mtu) == end {
                if let (Kind::Read(old), Kind::Read(new)) = (&mut queued.kind, response.kind)
                    && new.next.is_before(old.next)
                {
                    *old = new;
                    queued.replay = true;
                    self.wake(cx, Due::RESPONSES);
                }
                return Repeat::Answered;
            }
        }
        if self.resp.responses.len() >= MAX_REPLAYS + usize::from(self.attr.max_dest_rd_atomic) {
            return Repeat::Ignored;
        }
        response.replay = true;
        self.push_response(cx, response);
        Repeat::Answered
    }

    /// Returns the response to a duplicate request, if the request matches a saved one.
    fn saved_response(&self, packet: &Packet<'_>) -> Option<Response> {
        let psn = packet.psn();
        let saved = self.resp.saved.iter().find(|saved| {
            let at = psn.distance(saved.psn);
            at >= 0 && (at as u32) < saved.packets
        })?;
        let mut response = Response::data(saved);
        let fits = match RequestKind::of(packet.opcode()) {
            RequestKind::Read => matches!(response.kind, Kind::Read(_)),
            RequestKind::CompareSwap | RequestKind::FetchAdd => {
                matches!(response.kind, Kind::Atomic { .. })
            }
            RequestKind::AtomicWrite | RequestKind::Flush => matches!(response.kind, Kind::Empty),
            RequestKind::Send | RequestKind::Write | RequestKind::NotExecuted => false,
        };
        if !fits {
            return None;
        }
        if let Kind::Read(answer) = &mut response.kind {
            let reth = packet.reth()?;
            let skipped = (psn.distance(saved.psn) as u32).checked_mul(self.mtu)?;
            let inside = reth.va == answer.va.wrapping_add(u64::from(skipped))
                && u64::from(skipped) + u64::from(reth.length) <= u64::from(answer.left);
            if reth.rkey != answer.rkey || !inside {
                return None;
            }
            answer.va = reth.va;
            answer.left = reth.length;
            answer.next = psn;
            response.psn = psn;
        }
        Some(response)
    }

    /// Adds queued responses to the batch; returns true if more could be sent at once.
    pub(super) fn transmit_responses(
        &mut self,
        cx: &mut Context,
        batch: &mut Batch,
        limit: usize,
    ) -> bool {
        while !self.resp.responses.is_empty() {
            if batch.room(limit, 1) == 0 {
                return true;
            }
            let Some(front) = self.resp.responses.front() else {
                return false;
            };
            let (operation, syndrome) = match &front.kind {
                Kind::Ack => (Operation::Acknowledge, Syndrome::ACK_UNLIMITED),
                Kind::Nak(syndrome) => (Operation::Acknowledge, *syndrome),
                Kind::Atomic { .. } => (Operation::AtomicAcknowledge, Syndrome::ACK_UNLIMITED),
                Kind::Empty => (Operation::ReadResponseOnly, Syndrome::ACK_UNLIMITED),
                Kind::Read(_) => {
                    self.transmit_read(cx, batch, limit);
                    continue;
                }
            };
            let psn = front.psn;
            let header = self.response_header(batch, operation, psn, 0, Some(syndrome));
            if let Kind::Atomic { original } = front.kind {
                header.atomic_ack(&AtomicAckEth { original });
            }
            let mark = batch.mark();
            self.push_response_packet(batch, mark, Origin::Response(psn), 0);
            self.resp.responses.pop_front();
        }
        false
    }

    /// Adds the pending ACK to the batch. All responses before it have been sent.
    ///
    /// The ACK is the shortest packet, so behind requests to the same peer it ends their run
    /// and needs no syscall of its own. So it is added even if the batch is full.
    pub(super) fn transmit_ack(&mut self, batch: &mut Batch) {
        let Some(psn) = self.resp.pending_ack.take() else {
            return;
        };
        let syndrome = Some(Syndrome::ACK_UNLIMITED);
        self.response_header(batch, Operation::Acknowledge, psn, 0, syndrome);
        let mark = batch.mark();
        self.push_response_packet(batch, mark, Origin::Response(psn), 0);
    }

    /// Returns the place of the pending ACK beside the requests that are due.
    ///
    /// A request completes before the answer to it arrives: on adapters the ACK precedes the answer, and
    /// programs depend on that. A peer finds an ACK behind answers in the same run, and processes it first. So
    /// all answers must be packets of one size, not shorter than the ACK, that fit a run, and the run must
    /// arrive whole ([`run_arrival`](super::run_arrival)).
    pub(super) fn ack_place(&mut self, batch: &Batch) -> AckPlace {
        let index = self.req.index();
        let due = (index..self.sq.len()).filter_map(|index| self.sq.get(index));
        let mut messages = due.take(batch.packets_of_run());
        let Some(first) = messages.next() else {
            return AckPlace::BehindRequests;
        };
        let (mut count, mut uniform, mut answers) = (1, true, first.op.completes_receive());
        for wqe in messages {
            count += 1;
            uniform &= wqe.length == first.length && wqe.op.has_headers_of(&first.op);
            answers |= wqe.op.completes_receive();
        }
        let is_short = (1..=self.mtu).contains(&first.length);
        let packet = MAX_HEADER_LEN + first.length as usize;
        let is_one_run = uniform
            && is_short
            && index + count == self.sq.len()
            && batch.fits_run(count + 1, packet);
        match (answers, is_one_run) {
            (false, _) => AckPlace::BehindRequests,
            (true, false) => AckPlace::BeforeRequests,
            (true, true) if self.local_peer != 0 => AckPlace::BehindRequests,
            (true, true) => self.run_arrival.ack_place(),
        }
    }

    /// Adds packets of the READ response at the front of the queue to the batch.
    fn transmit_read(&mut self, cx: &mut Context, batch: &mut Batch, limit: usize) {
        let Some(Response {
            kind: Kind::Read(read),
            replay,
            ..
        }) = self.resp.responses.front()
        else {
            return;
        };
        let (mut read, replay) = (read.clone(), *replay);
        while batch.room(limit, 1) > 0 || !read.starts && self.room_in_run(batch) > 0 {
            let length = read.left.min(self.mtu);
            let last = length == read.left;
            let mark = batch.mark();
            if length > 0 {
                match self.resolve_read(cx, &read, length) {
                    Ok(address) => batch.push_memory(address, length),
                    // The key of a duplicate READ has become invalid. The peer may have
                    // received the first response, so this is no error: drop it.
                    Err(_) if replay => {
                        self.resp.responses.pop_front();
                        return;
                    }
                    Err(error) => return self.read_refused(cx, read.next, error),
                }
            }
            let (operation, syndrome) = match (read.starts, last) {
                (true, true) => (Operation::ReadResponseOnly, Some(Syndrome::ACK_UNLIMITED)),
                (true, false) => (Operation::ReadResponseFirst, Some(Syndrome::ACK_UNLIMITED)),
                (false, true) => (Operation::ReadResponseLast, Some(Syndrome::ACK_UNLIMITED)),
                (false, false) => (Operation::ReadResponseMiddle, None),
            };
            self.response_header(batch, operation, read.next, length, syndrome);
            self.push_response_packet(batch, mark, read.origin(replay), length);
            if last {
                self.resp.responses.pop_front();
                return;
            }
            read.starts = false;
            read.next = read.next.next();
            read.va = read.va.wrapping_add(u64::from(length));
            read.left -= length;
            self.transmit_middle_responses(cx, batch, &mut read, replay, limit);
        }
        if let Some(front) = self.resp.responses.front_mut() {
            front.kind = Kind::Read(read);
        }
    }

    /// Adds the middle packets of a READ response that there is room for, as one entry of the
    /// batch. It may add none. The packets differ only in PSN and payload address.
    fn transmit_middle_responses(
        &self,
        cx: &Context,
        batch: &mut Batch,
        read: &mut ReadResponse,
        replay: bool,
        limit: usize,
    ) {
        let middle_packets = read.left.saturating_sub(1) / self.mtu;
        let room = batch
            .room(limit, self.mtu as usize)
            .max(self.room_in_run(batch));
        let count = middle_packets.min(room as u32);
        if count < 2 {
            return;
        }
        let length = count * self.mtu;
        let Ok(address) = self.resolve_read(cx, read, length) else {
            return;
        };
        let (operation, payload_len) = (Operation::ReadResponseMiddle, self.mtu);
        self.response_header(batch, operation, read.next, payload_len, None);
        let new = NewPacket {
            qpn: self.qpn,
            origin: read.origin(replay),
            payload_len,
            flush_quirk: false,
        };
        batch.push_uniform(&self.path, new, address, count);
        read.next = read.next.add(count);
        read.va = read.va.wrapping_add(u64::from(length));
        read.left -= length;
    }

    /// Returns the memory address of the next `length` bytes of a READ response.
    fn resolve_read(
        &self,
        cx: &Context,
        read: &ReadResponse,
        length: u32,
    ) -> Result<MemRef, AccessError> {
        let pd = read.pd.as_ref().or(self.pd.as_ref());
        let pd = pd.ok_or(AccessError::NotBound { key: read.rkey })?;
        let length = match cx.has_bug(Bug::SkipRangeCheck) {
            true => 1,
            false => u64::from(length),
        };
        cx.remote(
            read.rkey,
            pd,
            self.qpn,
            Access::REMOTE_READ,
            read.va,
            length,
        )
    }

    /// Refuses a READ whose key became invalid while its response was being sent.
    fn read_refused(&mut self, cx: &mut Context, psn: Psn, error: AccessError) {
        self.resp.drop_responses();
        let (nak, reason) = (NakCode::RemoteAccess, Reason::Access(error));
        self.refuse_without_receive(cx, psn, nak, WcStatus::RemoteAccess, reason);
    }

    /// Refuses the READ whose packet `psn` could not be read from memory.
    pub(crate) fn response_fault(&mut self, cx: &mut Context, psn: Psn, fault: Fault) {
        if matches!(self.state(), QpState::Err | QpState::Reset) {
            return;
        }
        self.resp.drop_responses();
        let status = WcStatus::LocalQpOperation;
        let nak = NakCode::RemoteOperational;
        self.refuse_without_receive(cx, psn, nak, status, Reason::Fault(fault));
        self.settle(cx);
    }

    /// Starts the next packet of the batch with a BTH and, if `syndrome` is given, an AETH.
    #[inline(always)]
    fn response_header<'b>(
        &self,
        batch: &'b mut Batch,
        operation: Operation,
        psn: Psn,
        payload: u32,
        syndrome: Option<Syndrome>,
    ) -> &'b mut HeaderBuf {
        let opcode =
            Opcode::new(self.transport(), operation).expect("RC and XRC have all response opcodes");
        let mut bth = Bth::new(opcode, self.attr.dest_qpn, psn);
        bth.pad = padding(payload as usize) as u8;
        let header = batch.header(&bth);
        match syndrome {
            Some(syndrome) => header.aeth(&Aeth {
                syndrome,
                msn: self.resp.msn,
            }),
            None => header,
        }
    }

    /// Adds the packet whose header has been written to the batch.
    #[inline(always)]
    fn push_response_packet(
        &self,
        batch: &mut Batch,
        mark: usize,
        origin: Origin,
        payload_len: u32,
    ) {
        let new = NewPacket {
            qpn: self.qpn,
            origin,
            payload_len,
            flush_quirk: false,
        };
        batch.push(&self.path, mark, new);
    }

    /// Executes a duplicate again, for an injected bug.
    fn execute_again(&mut self, cx: &mut Context, memory: &dyn Memory, packet: &Packet<'_>) {
        let expected = self.resp.psn;
        let _refused = self.execute(cx, memory, packet).is_err();
        self.resp.psn = expected;
    }
}

impl ReadResponse {
    /// Returns the origin of the next response packet. Faults in a replay are ignored.
    fn origin(&self, replay: bool) -> Origin {
        match replay {
            true => Origin::Replay,
            false => Origin::Response(self.next),
        }
    }
}

impl Response {
    /// Returns one past the last PSN of the response.
    fn end(&self, mtu: u32) -> Psn {
        match &self.kind {
            Kind::Read(read) => read.next.add(read.left.div_ceil(mtu).max(1)),
            _ => self.psn.next(),
        }
    }
}
