//! READ responses and atomic acknowledges: checks them, and writes their data to local memory.

use ferroce_wire::Packet;

use super::Qp;
use super::completer::{RetryCause, wqe_cost};
use crate::attr::QpState;
use crate::bugs::Bug;
use crate::engine::Context;
use crate::error::Reason;
use crate::memory::Memory;
use crate::operation::LocalMemory;
use crate::psn_mark::PsnMark;
use crate::send_queue::{Phase, Wqe, spans};
use crate::verbs::{Access, SendOp, WcStatus};

impl Qp {
    /// Handles a READ response or an atomic acknowledge.
    pub(super) fn data_response(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) {
        self.acknowledge(cx, packet.psn());
        let gap = self.req.una != packet.psn();
        if gap && !cx.has_bug(Bug::AcceptReadResponseAhead) {
            // The response before this one was lost. If `acknowledge` has started the
            // retry already, this call changes nothing.
            if self.response_is_lost() {
                self.retry(cx, RetryCause::Gap);
            }
            return;
        }
        if self.state == QpState::Err {
            return;
        }
        let Some(wqe) = self.sq.front() else {
            return;
        };
        let outcome = if wqe.wants_response() && wqe.phase == Phase::Started {
            self.place_response(cx, memory, packet, wqe)
                .and_then(|()| self.complete_response(memory, wqe))
        } else {
            let why = format!("{} to a {:?}", packet.opcode(), wqe.op);
            Err((WcStatus::Fatal, Reason::BadResponse(why)))
        };
        let (packets, chunk) = (wqe.packets, u32::from(wqe.chunk));
        // A probe requests a single packet, so only its response is LAST or ONLY before the
        // chunk ends.
        let is_probe_response = self.req.probe == PsnMark::at(packet.psn())
            && !self.req.retrying
            && (packets == 1 || packet.opcode().ends_message() && !self.ends_read_request(wqe));
        let cost = wqe_cost(wqe, self.req.acked, 1, self.mtu);
        if let Err((status, reason)) = outcome {
            return self.fail_oldest_send(cx, status, reason);
        }
        self.req.advance(1);
        let acked = self.req.acked;
        if acked == packets || acked.is_multiple_of(chunk) {
            self.req.rd_atomic_outstanding = self.req.rd_atomic_outstanding.saturating_sub(1);
        }
        if acked == packets {
            self.finish_oldest(cx);
        }
        self.note_progress(cx, cost);
        self.complete_finished(cx);
        match is_probe_response {
            // The response to the original looks the same.
            true if packets == 1 => self.probe_acknowledged(cx, packet.psn()),
            true => self.confirm_loss(cx),
            false => {}
        }
    }

    /// Acknowledges `packets` response packets of the oldest work request, a READ, whose
    /// payload has been written to memory. The READ is not complete with them.
    pub(super) fn note_read_progress(&mut self, cx: &mut Context, packets: u32) {
        if let Some(wqe) = self.sq.front() {
            let cost = wqe_cost(wqe, self.req.acked, packets, self.mtu);
            self.req.advance(packets);
            self.note_progress(cx, cost);
            self.settle(cx);
        }
    }

    /// True if the next response packet is the last one of its READ request.
    fn ends_read_request(&self, wqe: &Wqe) -> bool {
        let packets = self.req.acked + 1;
        packets == wqe.packets || packets.is_multiple_of(wqe.chunk.into())
    }

    /// Checks a response, and writes its data to the local memory of the work request.
    fn place_response(
        &self,
        cx: &Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
        wqe: &Wqe,
    ) -> Result<(), (WcStatus, Reason)> {
        let bad = |why: String| Err((WcStatus::BadResponse, Reason::BadResponse(why)));
        let payload = packet.payload();
        match wqe.op {
            SendOp::Read { .. } => {
                let at = self.req.acked;
                let offset = wqe.bytes_before(at, self.mtu);
                let want = wqe.bytes_before(at + 1, self.mtu) - offset;
                let opcode = packet.opcode();
                // A loss probe requests one packet, which is ONLY in any position.
                let probed = self.req.probe == PsnMark::at(packet.psn());
                let fits = opcode.ends_message() == self.ends_read_request(wqe) || probed;
                if !opcode.is_read_response() || !fits {
                    return bad(format!("{opcode} for packet {at} of {}", wqe.packets));
                }
                if payload.len() as u64 != want {
                    return bad(format!("{} bytes where {want} were due", payload.len()));
                }
                self.scatter(cx, memory, offset, payload)
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => match packet.atomic_ack() {
                Some(ack) => self.scatter(cx, memory, 0, &ack.original.to_ne_bytes()),
                None => bad(format!("{} to an atomic", packet.opcode())),
            },
            SendOp::AtomicWrite { .. } | SendOp::Flush { .. }
                if packet.opcode().is_read_response() && payload.is_empty() =>
            {
                Ok(())
            }
            SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. }
            | SendOp::Send { .. }
            | SendOp::SendInvalidate { .. }
            | SendOp::Write { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::BindMw(_) => bad(format!("{} with {} bytes", packet.opcode(), payload.len())),
        }
    }

    /// Waits until the data of a work request is in local memory, if this response ends it:
    /// the completion may not precede the data.
    fn complete_response(&self, memory: &dyn Memory, wqe: &Wqe) -> Result<(), (WcStatus, Reason)> {
        if self.req.acked + 1 < wqe.packets {
            return Ok(());
        }
        let completed = memory.complete_writes();
        completed.map_err(|fault| (WcStatus::LocalProtection, Reason::Fault(fault)))
    }

    /// Writes `data` into the scatter list of the oldest work request, from `offset` on.
    fn scatter(
        &self,
        cx: &Context,
        memory: &dyn Memory,
        offset: u64,
        data: &[u8],
    ) -> Result<(), (WcStatus, Reason)> {
        let Some(pd) = &self.pd else {
            return Ok(());
        };
        let Some(wqe) = self.sq.front().filter(|wqe| wqe.num_sge > 0) else {
            return Ok(());
        };
        debug_assert_eq!(wqe.op.info().local_memory, LocalMemory::Written);
        let sges = core::iter::once(&wqe.sge).chain(self.sq.more_sges(0));
        let mut rest = data;
        for (sge, at, bytes) in spans(sges, offset, data.len() as u64) {
            let (now, later) = rest.split_at(bytes as usize);
            rest = later;
            let addr = sge.addr.wrapping_add(at);
            cx.local(sge.lkey, pd, Access::LOCAL_WRITE, addr, bytes)
                .map_err(Reason::from)
                .and_then(|address| Ok(memory.write(address, now)?))
                .map_err(|reason| (WcStatus::LocalProtection, reason))?;
        }
        Ok(())
    }
}
