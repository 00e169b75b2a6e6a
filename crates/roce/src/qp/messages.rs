//! SENDs and WRITEs of the peer: writes their payload to memory and completes receives.

use ferroce_wire::{NakCode, Opcode, Packet};

use super::responder::{Message, Refusal, WriteTarget};
use super::{Qp, queue_completion};
use crate::attr::QpType;
use crate::bugs::Bug;
use crate::counters::Counter;
use crate::engine::Context;
use crate::error::Reason;
use crate::event::Event;
use crate::memory::{MemRef, Memory};
use crate::region::{AccessError, Pd};
use crate::send_queue::spans;
use crate::srq::Taken;
use crate::verbs::{Access, Sge, Wc, WcFlags, WcOpcode, WcStatus};

/// True if this packet of a SEND or WRITE takes a receive from the queue.
fn needs_receive(opcode: Opcode) -> bool {
    match opcode.is_send() {
        true => opcode.starts_message(),
        false => opcode.has_immediate(),
    }
}

impl Qp {
    /// Executes one packet of a SEND or WRITE.
    pub(super) fn take_packet(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
        data: &[u8],
    ) -> Result<(), Refusal> {
        let opcode = packet.opcode();
        if needs_receive(opcode) && !self.resp.holding && !self.take_receive(cx) {
            return Err(Refusal::NotReady);
        }
        let mut message = match self.resp.message.take() {
            Some(message) => message,
            None => Message {
                write: self.begin_write(cx, packet)?,
                placed: 0,
            },
        };
        match &mut message.write {
            Some(target) => {
                self.write_remote(cx, memory, target, data)?;
            }
            None => self.place_received(cx, memory, message.placed, data)?,
        }
        message.placed += data.len() as u64;
        if !opcode.ends_message() {
            self.resp.message = Some(message);
            return Ok(());
        }
        // Neither the completion nor the ACK may precede the data.
        if let Err(fault) = memory.complete_writes() {
            return Err(match message.write {
                Some(_) => fault.into(),
                None => Refusal::local(Reason::Fault(fault)),
            });
        }
        if let Some(ieth) = packet.ieth()
            && !cx.has_bug(Bug::SkipRemoteInvalidate)
        {
            self.with_pd(|qp, pd| cx.regions.invalidate(ieth.rkey, pd, qp.qpn, true))?;
        }
        self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
        if opcode.is_send() || opcode.has_immediate() {
            self.complete_receive(cx, packet, &message);
        } else {
            cx.received.writes = cx.received.writes.wrapping_add(1);
        }
        Ok(())
    }

    /// Runs a key check with the protection domain of the request: that of the XRC shared
    /// receive queue, or that of the queue pair.
    pub(super) fn with_pd<T>(
        &self,
        check: impl FnOnce(&Qp, &Pd) -> Result<T, AccessError>,
    ) -> Result<T, Refusal> {
        let pd = match &self.resp.xrc_srq {
            Some(srq) => srq.pd(),
            None => match &self.pd {
                Some(pd) => pd,
                None => return Err(Refusal::invalid("no protection domain")),
            },
        };
        Ok(check(self, pd)?)
    }

    /// Returns the target of a WRITE that starts with this packet; `None` for a SEND. Checks
    /// the whole range of a WRITE of several packets; `write_remote` checks that of a single
    /// packet.
    fn begin_write(
        &self,
        cx: &Context,
        packet: &Packet<'_>,
    ) -> Result<Option<WriteTarget>, Refusal> {
        let Some(reth) = packet.reth() else {
            return Ok(None);
        };
        let length = u64::from(reth.length);
        if !packet.opcode().ends_message() {
            self.resolve(cx, reth.rkey, Access::REMOTE_WRITE, reth.va, length)?;
        }
        Ok(Some(WriteTarget {
            va: reth.va,
            rkey: reth.rkey,
            left: length,
        }))
    }

    /// Returns the memory address of a remote range, if the key allows the access.
    pub(super) fn resolve(
        &self,
        cx: &Context,
        rkey: u32,
        need: Access,
        va: u64,
        length: u64,
    ) -> Result<MemRef, Refusal> {
        let length = match cx.has_bug(Bug::SkipRangeCheck) {
            true => 1,
            false => length,
        };
        self.with_pd(|qp, pd| cx.remote(rkey, pd, qp.qpn, need, va, length))
    }

    /// Writes the payload of a WRITE packet to memory.
    fn write_remote(
        &self,
        cx: &Context,
        memory: &dyn Memory,
        target: &mut WriteTarget,
        data: &[u8],
    ) -> Result<(), Refusal> {
        if data.is_empty() {
            return Ok(());
        }
        let length = data.len() as u64;
        let address = self.resolve(cx, target.rkey, Access::REMOTE_WRITE, target.va, length)?;
        memory.write(address, data)?;
        target.va = target.va.wrapping_add(length);
        target.left = target.left.saturating_sub(length);
        Ok(())
    }

    /// True if a UC or UD message with this opcode would be dropped now because no receive is
    /// posted.
    pub(crate) fn lacks_receive(&self, opcode: Opcode) -> bool {
        let posted = match &self.srq {
            Some(srq) => srq.posted(),
            None => self.rq.len(),
        };
        matches!(self.kind, QpType::Uc | QpType::Ud)
            && self.state.receives()
            && needs_receive(opcode)
            && !self.resp.holding
            && posted == 0
    }

    /// Takes a receive from the queue; false if none is posted.
    pub(super) fn take_receive(&mut self, cx: &mut Context) -> bool {
        let srq = self.srq.as_ref().or(self.resp.xrc_srq.as_ref());
        let taken = match srq {
            None => match self.rq.take(&mut self.resp.held) {
                true => Taken::One,
                false => Taken::Nothing,
            },
            Some(srq) => srq.take(&mut self.resp.held),
        };
        if taken == Taken::OneBelowLimit
            && let Some(srq) = srq
        {
            let srq = srq.number();
            cx.events.push_back(Event::SrqLimitReached { srq });
        }
        self.resp.holding = taken != Taken::Nothing;
        self.resp.holding
    }

    /// Returns the work request id of the receive in use.
    pub(super) fn held_wr_id(&self) -> Option<u64> {
        self.resp.holding.then_some(self.resp.held.wr_id)
    }

    /// Returns the capacity of the receive in use, in bytes.
    pub(super) fn held_capacity(&self) -> Option<u64> {
        self.resp.holding.then_some(self.resp.held.capacity)
    }

    /// Writes received bytes to the scatter list of the receive in use, from `offset` on.
    pub(super) fn place_received(
        &self,
        cx: &Context,
        memory: &dyn Memory,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Refusal> {
        let held = &self.resp.held;
        let end = offset + data.len() as u64;
        if end > held.capacity {
            return Err(Refusal::Fatal {
                nak: NakCode::InvalidRequest,
                status: WcStatus::LocalLength,
                reason: Reason::ReceiveTooShort {
                    message: end,
                    buffer: held.capacity,
                },
            });
        }
        let Some(pd) = self.receive_pd() else {
            return Err(Refusal::invalid("no protection domain"));
        };
        let write = |sge: &Sge, at: u64, data: &[u8]| {
            let addr = sge.addr.wrapping_add(at);
            let length = data.len() as u32;
            let address = cx
                .local(sge.lkey, pd, Access::LOCAL_WRITE, addr, length)
                .map_err(|e| Refusal::local(Reason::Access(e)))?;
            memory
                .write(address, data)
                .map_err(|e| Refusal::local(Reason::Fault(e)))
        };
        if let Some(sge) = held.only_sge()
            && !data.is_empty()
        {
            return write(sge, offset, data);
        }
        let mut rest = data;
        for (sge, at, bytes) in spans(held.sges(), offset, data.len() as u64) {
            let (now, later) = rest.split_at(bytes as usize);
            rest = later;
            write(sge, at, now)?;
        }
        Ok(())
    }

    /// Returns the protection domain of the receive in use.
    #[inline]
    fn receive_pd(&self) -> Option<&Pd> {
        match (&self.srq, &self.resp.xrc_srq, &self.pd) {
            (Some(srq), _, _) | (None, Some(srq), _) => Some(srq.pd()),
            (None, None, pd) => pd.as_deref(),
        }
    }

    /// Returns the memory of the receive in use from `offset` on, if up to `most` packets of
    /// `mtu` bytes fit its only element; and how many do.
    pub(super) fn receive_run(
        &self,
        cx: &Context,
        offset: u64,
        mtu: u64,
        most: u64,
    ) -> Option<(MemRef, u32)> {
        let (held, pd) = (&self.resp.held, self.receive_pd()?);
        let sge = held.only_sge()?;
        let packets = most.min(held.capacity.saturating_sub(offset) / mtu);
        let (addr, length) = (sge.addr.wrapping_add(offset), (packets * mtu) as u32);
        let memory = cx.local(sge.lkey, pd, Access::LOCAL_WRITE, addr, length);
        Some((memory.ok()?, packets as u32))
    }

    /// Completes the receive in use with success.
    fn complete_receive(&mut self, cx: &mut Context, packet: &Packet<'_>, message: &Message) {
        let opcode = match message.write {
            None => WcOpcode::Recv,
            Some(_) => WcOpcode::RecvRdmaWithImm,
        };
        let mut wc = self.wc(cx, self.resp.held.wr_id, WcStatus::Success, opcode);
        wc.byte_len = message.placed as u32;
        wc.src_qp = self.attr.dest_qpn;
        // As rxe does, for every queue pair: packets of RoCEv2 have an IP header in place of the GRH.
        wc.flags |= WcFlags::GRH;
        if let Some(imm) = packet.immediate()
            && !cx.has_bug(Bug::LoseImmediate)
        {
            wc.flags |= WcFlags::WITH_IMM;
            wc.imm = imm.0;
        }
        if let Some(ieth) = packet.ieth() {
            wc.flags |= WcFlags::WITH_INV;
            wc.imm = ieth.rkey;
        }
        self.finish_receive(cx, wc, packet.solicited());
    }

    /// Adds the completion of the receive in use to its completion queue.
    pub(super) fn finish_receive(&mut self, cx: &mut Context, wc: Wc, solicited: bool) {
        self.resp.holding = false;
        cx.received.receives = cx.received.receives.wrapping_add(1);
        cx.count(Counter::RdmaRecvs);
        let xrc_cq = self.resp.xrc_srq.as_ref().and_then(|srq| srq.xrc_cq());
        if let Some(cq) = xrc_cq.or(self.recv_cq.as_ref()) {
            queue_completion(cx, cq, &mut self.cq_overflow, wc, solicited);
        }
    }
}
