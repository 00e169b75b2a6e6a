//! READs, atomics, atomic writes and flushes of the peer.
//!
//! Each is executed once. Its response is saved, so that duplicates of the request can be
//! answered without executing it again.

use std::sync::Arc;

use ferroce_wire::{Packet, Psn};

use super::Qp;
use super::admission::flush_access;
use super::post::MAX_MESSAGE;
use super::request_kind::RequestKind;
use super::responder::{Refusal, Saved, SavedResult};
use super::responses::Response;
use crate::engine::Context;
use crate::memory::{MemRef, Memory};
use crate::region::Pd;
use crate::verbs::Access;

impl Qp {
    /// Checks a READ request and queues its response.
    pub(super) fn accept_read(
        &mut self,
        cx: &mut Context,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let Some(reth) = packet.reth() else {
            return Err(Refusal::invalid("READ without RETH"));
        };
        if u64::from(reth.length) > MAX_MESSAGE || !packet.payload().is_empty() {
            return Err(Refusal::invalid(format!(
                "READ of {} bytes with {} bytes of payload",
                reth.length,
                packet.payload().len()
            )));
        }
        if reth.length > 0 {
            let length = u64::from(reth.length);
            self.resolve(cx, reth.rkey, Access::REMOTE_READ, reth.va, length)?;
        }
        let result = SavedResult::Read {
            va: reth.va,
            rkey: reth.rkey,
            length: reth.length,
        };
        self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
        let packets = reth.length.div_ceil(self.mtu).max(1);
        self.respond(cx, packet.psn(), packets, result);
        Ok(())
    }

    /// Executes an atomic and queues its response.
    pub(super) fn do_atomic(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let original = self.execute_atomic(cx, memory, packet)?;
        self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
        self.resp.ack_psn = packet.psn().next();
        self.respond(cx, packet.psn(), 1, SavedResult::Atomic { original });
        Ok(())
    }

    /// Executes an atomic in memory; returns the original value.
    pub(super) fn execute_atomic(
        &self,
        cx: &Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Result<u64, Refusal> {
        let Some(eth) = packet.atomic_eth() else {
            return Err(Refusal::invalid("atomic without AtomicETH"));
        };
        check_alignment(eth.va, packet.payload().len(), 0)?;
        let address = self.resolve(cx, eth.rkey, Access::REMOTE_ATOMIC, eth.va, 8)?;
        let opcode = packet.opcode();
        Ok(match RequestKind::of(opcode) {
            RequestKind::CompareSwap => {
                memory.compare_swap(address, eth.compare, eth.swap_or_add)?
            }
            RequestKind::FetchAdd => memory.fetch_add(address, eth.swap_or_add)?,
            RequestKind::Send
            | RequestKind::Write
            | RequestKind::Read
            | RequestKind::AtomicWrite
            | RequestKind::Flush
            | RequestKind::NotExecuted => {
                return Err(Refusal::invalid(format!("{opcode} is not an atomic")));
            }
        })
    }

    /// Executes an atomic write and queues its response.
    pub(super) fn do_atomic_write(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let (Some(reth), data) = (packet.reth(), packet.payload()) else {
            return Err(Refusal::invalid("atomic write without RETH"));
        };
        check_alignment(reth.va, data.len(), 8)?;
        let Ok(bytes) = <[u8; 8]>::try_from(data) else {
            return Err(Refusal::invalid("atomic write of other than 8 bytes"));
        };
        let address = self.resolve(cx, reth.rkey, Access::REMOTE_WRITE, reth.va, 8)?;
        memory.store_release(address, bytes)?;
        self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
        self.resp.ack_psn = packet.psn().next();
        self.respond(cx, packet.psn(), 1, SavedResult::Empty);
        Ok(())
    }

    /// Executes a flush and queues its response.
    pub(super) fn do_flush(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let (Some(feth), Some(reth)) = (packet.feth(), packet.reth()) else {
            return Err(Refusal::invalid("flush without FETH and RETH"));
        };
        if feth.selectivity > 1 || feth.placement == 0 || !packet.payload().is_empty() {
            return Err(Refusal::invalid(format!(
                "flush with placement {} and selectivity {}",
                feth.placement, feth.selectivity
            )));
        }
        let need = flush_access(packet);
        let (address, length) = if feth.selectivity == 1 {
            self.with_pd(|qp, pd| cx.regions.remote_whole(reth.rkey, pd, qp.qpn, need))?
        } else {
            let length = u64::from(reth.length);
            match length {
                0 => (MemRef::host(0), 0),
                _ => (self.resolve(cx, reth.rkey, need, reth.va, length)?, length),
            }
        };
        if length > 0 {
            memory.flush(address, length, need.contains(Access::FLUSH_PERSISTENT))?;
        }
        self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
        self.resp.ack_psn = packet.psn().next();
        self.respond(cx, packet.psn(), 1, SavedResult::Empty);
        Ok(())
    }

    /// Returns the protection domain of the keys in XRC requests; `None` for RC.
    fn request_pd(&self) -> Option<Arc<Pd>> {
        self.resp.xrc_srq.as_ref().map(|srq| srq.pd().clone())
    }

    /// Saves a response for duplicates, and queues it.
    fn respond(&mut self, cx: &mut Context, psn: Psn, packets: u32, result: SavedResult) {
        let saved = Saved {
            psn,
            packets,
            result,
            pd: self.request_pd(),
        };
        self.resp.psn = psn.add(packets);
        if self.resp.saved.len() >= usize::from(self.attr.max_dest_rd_atomic) {
            self.resp.saved.pop_front();
        }
        self.push_response(cx, Response::data(&saved));
        self.resp.saved.push_back(saved);
    }
}

/// Checks that an atomic is aligned to 8 bytes, and has `want` bytes of payload.
fn check_alignment(va: u64, payload: usize, want: usize) -> Result<(), Refusal> {
    if !va.is_multiple_of(8) || payload != want {
        return Err(Refusal::invalid(format!(
            "atomic at {va:#x} with {payload} bytes of payload"
        )));
    }
    Ok(())
}
