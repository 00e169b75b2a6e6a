//! The requester: turns work requests into request packets.
//!
//! The requester walks the send queue with a cursor: a work request and the number of its
//! packets that have been sent. The next packet depends on the cursor alone. Going back N
//! moves the cursor to the oldest unacknowledged packet, in the middle of a message if
//! necessary.
//!
//! A long READ is split into several READ requests, called chunks. The peer sends the
//! responses to a READ request without flow control, so a chunk must fit the window. No
//! boundary of a requested chunk ever moves: a retransmitted request then lies inside one
//! request that the peer has saved, and the peer drops all other duplicate READs.

use ferroce_wire::{Bth, ICRC_LEN, Psn, XrcEth};

use super::cursor::MessageEnd;
use super::read_atomic::most_packets_in_chunk;
use super::request_header::message_header;
use super::{Due, Qp};
use crate::attr::{QpState, QpType};
use crate::bugs::Bug;
use crate::congestion::PACKET_OVERHEAD;
use crate::engine::Context;
use crate::error::Reason;
use crate::memory::Fault;
use crate::operation::{LocalMemory, OpClass};
use crate::psn_mark::PsnMark;
use crate::send_queue::{Phase, Wqe, spans};
use crate::transmit::{Batch, NewPacket, Origin};
use crate::verbs::{Access, SendFlags, SendOp, Sge, WcStatus};

/// Reason why the next packet cannot be sent now.
pub(super) enum Blocked {
    /// An event that will wake the queue pair: an ACK, a response or a timer.
    UntilEvent,
    /// The batch, or this queue pair's quantum of it, is full.
    BatchFull,
}

impl Qp {
    /// Adds request packets to the batch; returns true if more could be sent at once.
    pub(super) fn transmit_requests(
        &mut self,
        cx: &mut Context,
        batch: &mut Batch,
        limit: usize,
    ) -> bool {
        let before = batch.len();
        let fresh_from = self.req.sent_up_to;
        let mut more = false;
        while matches!(self.state, QpState::Rts | QpState::Sqd) && self.req.rnr_until.is_none() {
            match self.next_request(cx, batch, limit) {
                Ok(()) => {}
                Err(blocked) => {
                    more = matches!(blocked, Blocked::BatchFull);
                    break;
                }
            }
        }
        // Messages that are sent together need one ACK: the last packet requests it.
        if batch.len() > before && self.kind.is_reliable() && self.req.lacks_ack_req() {
            batch.request_ack_on_last();
            let last = self.req.psn.prev();
            self.req.note_ack_req(last, 1, fresh_from, cx.now);
        }
        more
    }

    /// Starts the work request under the cursor, or sends some of its packets.
    fn next_request(
        &mut self,
        cx: &mut Context,
        batch: &mut Batch,
        limit: usize,
    ) -> Result<(), Blocked> {
        let index = self.req.index();
        let Some(wqe) = self.sq.get(index) else {
            self.req.window.set_limit(false);
            return Err(Blocked::UntilEvent);
        };
        if self.sq.fails(index) {
            return Err(Blocked::UntilEvent);
        }
        let class = wqe.op.info().class;
        match wqe.phase {
            Phase::Posted => {
                self.start(cx)?;
                if class == OpClass::Local {
                    return Ok(());
                }
            }
            Phase::Started if self.req.sent < wqe.packets => {}
            Phase::Started | Phase::Done => {
                self.req.step();
                return Ok(());
            }
        }
        match class {
            OpClass::Message => self.send_message(cx, batch, limit),
            OpClass::Read | OpClass::Single if batch.room(limit, 1) == 0 => Err(Blocked::BatchFull),
            OpClass::Read => self.send_read(cx, batch),
            OpClass::Single => self.send_single(cx, batch),
            OpClass::Local => Err(Blocked::UntilEvent), // done when it was started
        }
    }

    /// Assigns PSNs to the work request under the cursor, or executes a local operation.
    fn start(&mut self, cx: &mut Context) -> Result<(), Blocked> {
        let index = self.req.index();
        let Some(wqe) = self.sq.get_mut(index) else {
            return Err(Blocked::UntilEvent);
        };
        if self.state == QpState::Sqd {
            return Err(Blocked::UntilEvent);
        }
        let info = wqe.op.info();
        let fenced = info.honors_fence
            && wqe.flags.contains(SendFlags::FENCE)
            && !cx.has_bug(Bug::IgnoreFence);
        if fenced && self.req.rd_atomic_outstanding > 0 {
            return Err(Blocked::UntilEvent);
        }
        if info.waits_for_earlier && index > 0 {
            return Err(Blocked::UntilEvent); // LOCAL_INV waits for all earlier work requests
        }
        if info.class == OpClass::Local {
            self.execute_locally(cx, index);
            return Ok(());
        }
        if wqe.wants_response() && self.attr.max_rd_atomic == 0 {
            let why = "max_rd_atomic is 0: no READ or atomic may be outstanding".to_string();
            self.fail_later(
                cx,
                index,
                WcStatus::LocalQpOperation,
                Reason::InvalidRequest(why),
            );
            return Err(Blocked::UntilEvent);
        }
        let (mtu, psn) = (self.mtu, self.req.psn);
        wqe.phase = Phase::Started;
        wqe.first_psn = psn;
        wqe.packets = match wqe.length <= mtu {
            true => 1,
            false => wqe.length.div_ceil(mtu),
        };
        wqe.chunk = match info.class {
            OpClass::Read => most_packets_in_chunk(self.req.window.size(), mtu),
            OpClass::Message | OpClass::Single | OpClass::Local => 1,
        };
        self.req.sent = 0;
        Ok(())
    }

    /// Executes a work request that sends no packets: a bind or a local invalidate.
    fn execute_locally(&mut self, cx: &mut Context, index: usize) {
        let (Some(wqe), Some(pd)) = (self.sq.get_mut(index), &self.pd) else {
            return;
        };
        let result = match &wqe.op {
            SendOp::BindMw(bind) => cx
                .regions
                .bind(pd, self.qpn, bind)
                .map(drop)
                .map_err(|e| (WcStatus::MwBind, Reason::Bind(e))),
            SendOp::LocalInvalidate { key } => cx
                .regions
                .invalidate(*key, pd, self.qpn, false)
                .map_err(|e| (WcStatus::LocalQpOperation, Reason::Access(e))),
            SendOp::Send { .. }
            | SendOp::SendInvalidate { .. }
            | SendOp::Write { .. }
            | SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. } => {
                let why = format!("{} is not a local operation", wqe.op.info().name);
                Err((WcStatus::LocalQpOperation, Reason::InvalidRequest(why)))
            }
        };
        match result {
            Ok(()) => {
                wqe.phase = Phase::Done;
                self.req.step();
                self.complete_finished(cx);
            }
            Err((status, reason)) => self.fail_later(cx, index, status, reason),
        }
    }

    /// Marks a work request as failed. It completes after all work requests before it.
    pub(super) fn fail_later(
        &mut self,
        cx: &mut Context,
        index: usize,
        status: WcStatus,
        reason: Reason,
    ) {
        self.sq.fail(index, status, reason);
        self.complete_finished(cx);
    }

    /// Adds packets of a SEND or WRITE to the batch.
    fn send_message(
        &mut self,
        cx: &mut Context,
        batch: &mut Batch,
        limit: usize,
    ) -> Result<(), Blocked> {
        let index = self.req.index();
        let acknowledged = self.kind.is_reliable();
        loop {
            let Some(wqe) = self.sq.get(index) else {
                return Err(Blocked::UntilEvent);
            };
            let packet = self.req.sent;
            if batch.room(limit, 1) == 0 && (packet == 0 || self.room_in_run(batch) == 0) {
                return Err(Blocked::BatchFull);
            }
            let offset = wqe.bytes_before(packet, self.mtu);
            let payload = (wqe.bytes_before(packet + 1, self.mtu) - offset) as u32;
            let cost = payload + PACKET_OVERHEAD;
            let others = wqe.packets - packet - 1;
            if acknowledged && !self.req.admits_group(cost, others, self.mtu) {
                return Err(Blocked::UntilEvent);
            }
            let mark = batch.mark();
            if let Err(reason) = self.gather_packet(cx, batch, index, wqe, packet, payload) {
                let covered = packet == 0 || self.req.expects_response_for(wqe.first_psn.prev());
                self.fail_later(cx, index, WcStatus::LocalProtection, reason);
                if !covered {
                    self.request_ack_before(cx, index);
                }
                return Err(Blocked::UntilEvent);
            }
            let psn = self.req.psn;
            let last = packet + 1 == wqe.packets;
            let mut ack_req = false;
            if acknowledged {
                let end = match last {
                    false => MessageEnd::NotLast,
                    true if index + 1 < self.sq.len() => MessageEnd::LastWithMore,
                    true => MessageEnd::LastInQueue,
                };
                self.req.window.sent(cost);
                ack_req = self.req.needs_ack_req(end, self.mtu + PACKET_OVERHEAD);
            }
            if ack_req {
                self.req.note_ack_req(psn, 1, self.req.sent_up_to, cx.now);
            }
            message_header(self, batch, wqe, packet, payload, ack_req);
            batch.push(
                &self.path,
                mark,
                NewPacket {
                    qpn: self.qpn,
                    origin: Origin::Request(psn),
                    payload_len: payload,
                    flush_quirk: false,
                },
            );
            self.req.sent += 1;
            self.req.psn = psn.next();
            if acknowledged {
                self.req.note_sent(cx, &self.attr);
            }
            if last {
                break;
            }
            self.push_middle_packets(cx, batch, index, limit);
        }
        if !acknowledged {
            self.hand_over(batch, index);
        }
        self.req.step();
        Ok(())
    }

    /// Adds the `payload` bytes of packet number `packet` of a SEND or WRITE to the batch.
    /// `index` is that of work request `wqe`.
    #[inline(always)]
    pub(super) fn gather_packet(
        &self,
        cx: &Context,
        batch: &mut Batch,
        index: usize,
        wqe: &Wqe,
        packet: u32,
        payload: u32,
    ) -> Result<(), Reason> {
        let from = self.offset_of(cx, wqe, packet);
        if wqe.is_inline() {
            batch.push_inline(&self.sq.inline(index)[from as usize..][..payload as usize]);
            return Ok(());
        }
        let mark = batch.mark();
        gather(cx, self, index, wqe, from, payload, batch).inspect_err(|_| batch.rollback(mark))
    }

    /// Returns the place of a packet in its message, in bytes.
    #[inline(always)]
    pub(super) fn offset_of(&self, cx: &Context, wqe: &Wqe, packet: u32) -> u64 {
        let resumed = packet > 0 && self.req.psn == self.req.una;
        let again = self.req.retrying || self.req.probe == PsnMark::at(self.req.psn);
        match resumed && again && cx.has_bug(Bug::LoseOffsetOnResume) {
            true => 0,
            false => wqe.bytes_before(packet, self.mtu),
        }
    }

    /// Returns how many more middle packets the last run of the batch has room for.
    pub(super) fn room_in_run(&self, batch: &Batch) -> usize {
        let extension = match self.kind {
            QpType::XrcInitiator => XrcEth::LEN,
            _ => 0,
        };
        let len = Bth::LEN + extension + self.mtu as usize + ICRC_LEN;
        batch.room_in_run(self.qpn, len)
    }

    /// Marks a UC or UD message as done. It completes when the whole batch has been sent.
    pub(super) fn hand_over(&mut self, batch: &mut Batch, index: usize) {
        if let Some(wqe) = self.sq.get_mut(index) {
            wqe.phase = Phase::Done;
        }
        match batch.handed_over.last_mut() {
            Some((qpn, count)) if *qpn == self.qpn => *count += 1,
            _ => batch.handed_over.push((self.qpn, 1)),
        }
    }

    /// Completes the `count` UC or UD messages of a batch that has been sent.
    pub(crate) fn handed_over(&mut self, cx: &mut Context, count: u32) {
        for _ in 0..count {
            self.complete_finished(cx);
            match self.sq.front() {
                Some(wqe) if wqe.phase == Phase::Done && !self.sq.fails(0) => {
                    self.finish_oldest(cx)
                }
                _ => break,
            }
        }
        self.complete_finished(cx);
        if self.sq.len() > self.req.index() {
            // A local invalidate that waited for the work requests before it may run now.
            self.wake(cx, Due::REQUESTS);
        }
        self.settle(cx);
    }

    /// Fails the work request whose packet `psn` could not be read from memory.
    pub(crate) fn request_fault(&mut self, cx: &mut Context, psn: Psn, fault: Fault) {
        let found = (0..self.sq.len()).find(|&index| {
            self.sq.get(index).is_some_and(|wqe| {
                let distance = psn.distance(wqe.first_psn);
                wqe.phase != Phase::Posted
                    && wqe.packets > 0
                    && distance >= 0
                    && (distance as u32) < wqe.packets
            })
        });
        if let Some(index) = found {
            self.fail_later(cx, index, WcStatus::LocalProtection, Reason::Fault(fault));
            self.request_ack_before(cx, index);
            self.settle(cx);
        }
    }

    /// Retransmits the last packet before work request `index`, which has failed, with
    /// AckReq. The messages before it may have left AckReq to the failed message.
    fn request_ack_before(&mut self, cx: &mut Context, index: usize) {
        let goes_on = matches!(self.state, QpState::Rts | QpState::Sqd);
        // Nothing behind the oldest failed work request is sent.
        if !goes_on || !self.kind.is_reliable() || !self.sq.fails(index) {
            return;
        }
        let mut before = (0..index).rev().map(|index| (index, self.sq.get(index)));
        let sent =
            before.find_map(|(index, wqe)| Some((index, wqe.filter(|wqe| wqe.packets > 0)?)));
        // A READ or atomic causes a response anyway, which acknowledges all before it.
        if let Some((index, wqe)) = sent
            && wqe.phase == Phase::Started
            && !wqe.wants_response()
        {
            let packets = wqe.packets;
            let last = wqe.first_psn.add(packets - 1);
            self.req.rewind_to_last_packet(index, last, packets);
            self.wake(cx, Due::REQUESTS);
        }
    }
}

/// Adds references to the memory of a part of a message to the batch.
#[inline(always)]
pub(super) fn gather(
    cx: &Context,
    qp: &Qp,
    index: usize,
    wqe: &Wqe,
    offset: u64,
    length: u32,
    batch: &mut Batch,
) -> Result<(), Reason> {
    debug_assert_eq!(wqe.op.info().local_memory, LocalMemory::Read);
    let Some(pd) = &qp.pd else {
        return Ok(());
    };
    let mut add = |sge: &Sge, at: u64, bytes: u32| -> Result<(), Reason> {
        let addr = sge.addr.wrapping_add(at);
        let address = cx.local(sge.lkey, pd, Access::empty(), addr, bytes)?;
        batch.push_memory(address, bytes);
        Ok(())
    };
    if wqe.num_sge == 1 && length > 0 {
        return add(&wqe.sge, offset, length);
    }
    if wqe.num_sge == 0 {
        return Ok(());
    }
    let sges = core::iter::once(&wqe.sge).chain(qp.sq.more_sges(index));
    for (sge, at, bytes) in spans(sges, offset, u64::from(length)) {
        add(sge, at, bytes)?;
    }
    Ok(())
}
