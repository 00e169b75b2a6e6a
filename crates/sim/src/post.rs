//! Posting of work requests: allocate memory, call the engine, and record the
//! request for the oracle.

use std::rc::Rc;
use std::sync::Arc;

use ferroce_roce::{
    AddressHandle, QpState, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdTarget,
};

use crate::model::{
    AllowedOutcome, AtomicTarget, DatagramTarget, FlushRange, Kind, RecvOwner, RecvRecord,
    SendRecord,
};
use crate::slot::{Rule, recv_wr_id, send_wr_id, wr_name};
use crate::wire_check::GRH;
use crate::world::{Check, World};
use crate::zone::{Place, Purpose};

/// Bytes of memory for the receives of one queue.
const RECEIVE_MEMORY: u64 = 128 << 10;
/// Initial content of receive buffers.
pub(crate) const UNTOUCHED: u8 = 0xa5;

/// A work request that is not posted yet.
pub(crate) struct Draft {
    pub(crate) kind: Kind,
    pub(crate) op: SendOp,
    pub(crate) payload: Rc<[u8]>,
    pub(crate) flags: SendFlags,
    pub(crate) data: DraftData,
    pub(crate) remote: Option<(usize, Place)>,
    pub(crate) frees_remote: bool,
    pub(crate) atomic: Option<AtomicTarget>,
    pub(crate) flush: Option<FlushRange>,
    pub(crate) window: Option<usize>,
    pub(crate) xrc_srq: Option<usize>,
    pub(crate) datagram: Option<DatagramTarget>,
    pub(crate) allowed: AllowedOutcome,
}

/// The local data of a draft.
pub(crate) enum DraftData {
    /// Allocated slots.
    Places(Vec<Place>),
    /// Invalid scatter/gather elements.
    Bad(Vec<Sge>),
    /// Inline data, copied from the payload.
    Inline,
}

impl Draft {
    pub(crate) fn new(op: SendOp) -> Draft {
        Draft {
            kind: Kind::of(&op),
            op,
            payload: Rc::new([]),
            flags: SendFlags::empty(),
            data: DraftData::Places(Vec::new()),
            remote: None,
            frees_remote: true,
            atomic: None,
            flush: None,
            window: None,
            xrc_srq: None,
            datagram: None,
            allowed: AllowedOutcome::good(),
        }
    }
}

impl World {
    /// Returns the `wr_id` of the next send.
    pub(crate) fn next_wr_id(&self) -> u64 {
        send_wr_id(self.sends.len())
    }

    /// Posts a draft and checks that the engine accepts it.
    pub(crate) fn submit(&mut self, qp: usize, draft: Draft) -> Check {
        let wr_id = self.next_wr_id();
        let (host, qpn) = (self.qps[qp].host, self.qps[qp].qpn);
        let places = match &draft.data {
            DraftData::Places(places) => places.clone(),
            _ => Vec::new(),
        };
        let side = &self.hosts[host];
        let sges: Vec<Sge> = match &draft.data {
            DraftData::Places(places) => {
                places.iter().map(|&p| side.zones[p.zone].sge(p)).collect()
            }
            DraftData::Bad(sges) => sges.clone(),
            DraftData::Inline => Vec::new(),
        };
        let imm = draft.op.imm();
        let invalidates = invalidated_key(&draft.op);
        let ud = draft
            .datagram
            .as_ref()
            .map(|target| self.ud_target(qp, target));
        self.trace.host(self.now, host, || {
            let name = wr_name(wr_id);
            let (op, flags, len) = (&draft.op, draft.flags, draft.payload.len());
            let doomed = if draft.allowed.success {
                ""
            } else {
                ", to fail"
            };
            format!("post {name} on qp {qpn:#x}: {op:x?} of {len} bytes, {flags:?}{doomed}")
        });
        if let Some(target) = &ud
            && self.hosts[host].engine().lacks_datagram_route(target)
        {
            self.seek_route(host, target.remote_qpn);
        }
        let wr = SendWr {
            wr_id,
            op: draft.op,
            flags: draft.flags,
            data: match draft.data {
                DraftData::Inline => SendData::Inline(&draft.payload),
                _ => SendData::Sges(&sges),
            },
            ud,
            xrc_srq: draft.xrc_srq.map_or(0, |srq| self.srqs[srq].srq.number()),
        };
        let posted = self.hosts[host].engine_mut().post_send(self.now, qpn, wr);
        posted.map_err(|e| format!("{} on qp {qpn:#x} refused: {e}", wr_name(wr_id)))?;
        let can_receive = self
            .peer_of(qp)
            .is_some_and(|peer| self.qps[peer].can_receive());
        let model = &mut self.qps[qp];
        if model.pending() == 0 {
            model.peer_unreachable = !can_receive;
            model.sent.clear();
        }
        let record = SendRecord {
            qp,
            index: model.sends.len(),
            kind: draft.kind,
            payload: draft.payload,
            imm,
            invalidates,
            signaled: draft.flags.contains(SendFlags::SIGNALED) || model.signals_all,
            solicited: draft.flags.contains(SendFlags::SOLICITED),
            local: places,
            remote: draft.remote,
            frees_remote: draft.frees_remote,
            atomic: draft.atomic,
            flush: draft.flush,
            window: draft.window,
            xrc_srq: draft.xrc_srq,
            datagram: draft.datagram,
            allowed: draft.allowed,
            end: None,
        };
        let index = self.sends.len();
        model.sends.push(index);
        if record.consumes() {
            model.messages.push(index);
        }
        self.sends.push(record);
        Ok(())
    }

    fn ud_target(&self, qp: usize, target: &DatagramTarget) -> UdTarget {
        let host = self.qps[qp].host;
        let av = self.address_vector(host, target.address);
        let is_local = self.scenario.local.is_some() && av.source == av.destination;
        // With the top bit set, the engine sends the queue pair's own Q_Key.
        let own = target.qkey == self.qps[qp].setup.qkey && self.sends.len().is_multiple_of(2);
        UdTarget {
            ah: AddressHandle::with_locality(Arc::clone(&self.hosts[host].pd), av, is_local),
            remote_qpn: target.qpn,
            remote_qkey: if own { 1 << 31 } else { target.qkey },
        }
    }

    /// Allocates local memory for a message, in one piece or several.
    pub(crate) fn alloc_local(
        &mut self,
        qp: usize,
        purpose: Purpose,
        len: u64,
        most: u32,
        mut rule: impl FnMut(usize) -> Rule,
    ) -> Option<Vec<Place>> {
        let host = self.qps[qp].host;
        let wr_id = self.next_wr_id();
        let places = self.alloc_pieces(host, purpose, len, most)?;
        let mut at = 0;
        for place in &places {
            self.hosts[host]
                .arena
                .add(place.va, place.len, wr_id, rule(at));
            at += place.len as usize;
        }
        Some(places)
    }

    fn alloc_pieces(
        &mut self,
        host: usize,
        purpose: Purpose,
        len: u64,
        most: u32,
    ) -> Option<Vec<Place>> {
        let mut places: Vec<Place> = Vec::new();
        let mut left = len;
        while left > 0 {
            let last = places.len() + 1 >= most as usize || self.rng.chance(0.5);
            let piece = if last { left } else { self.rng.range(1..=left) };
            let Some(place) = self.hosts[host].alloc(&mut self.rng, purpose, piece, 1) else {
                places.into_iter().for_each(|p| self.hosts[host].release(p));
                return None;
            };
            places.push(place);
            left -= piece;
        }
        Some(places)
    }

    /// Allocates local memory and copies the payload into it.
    pub(crate) fn alloc_source(&mut self, qp: usize, payload: &Rc<[u8]>) -> Option<Vec<Place>> {
        let most = self.qps[qp].cap.max_send_sge;
        let purpose = self.local_purpose();
        let len = payload.len() as u64;
        let places = self.alloc_local(qp, purpose, len, most, |_| Rule::Source)?;
        let host = self.qps[qp].host;
        let mut at = 0;
        for place in &places {
            let end = at + place.len as usize;
            self.hosts[host].arena.poke(place.va, &payload[at..end]);
            at = end;
        }
        Some(places)
    }

    /// Draws the zone for local memory. In some scenarios it may be one that the
    /// program deregisters while it is in use.
    pub(crate) fn local_purpose(&mut self) -> Purpose {
        match self.scenario.features.deregister && self.rng.chance(0.3) {
            true => Purpose::DoomedLocal,
            false => Purpose::Local,
        }
    }

    /// Posts receives to a queue pair's own receive queue, or to its shared ones.
    pub(crate) fn post_receives(&mut self, qp: usize) -> Check {
        let model = &self.qps[qp];
        if model.has_own_rq() {
            if !matches!(
                model.state,
                Some(QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
            ) {
                return Ok(());
            }
            let most = (model.cap.max_recv_wr as usize).min(fitting(model.recv_size));
            while self.qps[qp].recvs.len() - self.qps[qp].recvs_ended < most {
                if !self.post_receive(RecvOwner::Qp(qp))? || self.is_late() {
                    break;
                }
            }
            return Ok(());
        }
        let own = |srq: &usize| self.uses_srq(qp, *srq);
        let shared: Vec<usize> = (0..self.srqs.len()).filter(own).collect();
        for srq in shared {
            let most = fitting(self.srqs[srq].recv_size).min(48);
            while self.srqs[srq].outstanding.len() < most {
                if !self.post_receive(RecvOwner::Srq(srq))? || self.is_late() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns true if the program stops posting receives early, to provoke RNR NAKs.
    fn is_late(&mut self) -> bool {
        self.scenario.features.late_receives && !self.healed && self.rng.chance(0.7)
    }

    /// Posts one receive; returns false if there is no memory for it.
    fn post_receive(&mut self, owner: RecvOwner) -> Result<bool, String> {
        let (host, size, most, datagram) = match owner {
            RecvOwner::Qp(qp) => {
                let model = &self.qps[qp];
                (
                    model.host,
                    model.recv_size,
                    model.cap.max_recv_sge,
                    model.is_datagram(),
                )
            }
            RecvOwner::Srq(srq) => {
                let model = &self.srqs[srq];
                let users = |qp: &crate::model::QpModel| qp.srq == Some(srq) && qp.is_datagram();
                (model.host, model.recv_size, 4, self.qps.iter().any(users))
            }
        };
        let mut size = size + if datagram { GRH } else { 0 };
        if datagram && matches!(owner, RecvOwner::Qp(_)) && self.rng.chance(0.1) {
            size = self.rng.range(0..=size); // too short for some datagrams
        }
        let purpose = match datagram {
            true => Purpose::Local,
            false => self.local_purpose(),
        };
        let Some(places) = self.alloc_pieces(host, purpose, size, most) else {
            return Ok(false);
        };
        let index = self.recvs.len();
        let wr_id = recv_wr_id(index);
        let side = &mut self.hosts[host];
        for place in &places {
            side.arena
                .poke(place.va, &vec![UNTOUCHED; place.len as usize]);
            side.arena.add(place.va, place.len, wr_id, Rule::Buffer);
        }
        let sges: Vec<Sge> = places.iter().map(|&p| side.zones[p.zone].sge(p)).collect();
        let wr = RecvWr { wr_id, sges: &sges };
        let (number, posted) = match owner {
            RecvOwner::Qp(qp) => {
                let qpn = self.qps[qp].qpn;
                let posted = side.engine_mut().post_recv(self.now, qpn, &wr);
                self.qps[qp].recvs.push(index);
                (self.qps[qp].recvs.len() - 1, posted)
            }
            RecvOwner::Srq(srq) => {
                let posted = self.srqs[srq].srq.post(&wr);
                self.srqs[srq].outstanding.insert(index);
                self.srqs[srq].posted += 1;
                (self.srqs[srq].posted - 1, posted)
            }
        };
        posted.map_err(|e| format!("{} refused: {e}", wr_name(wr_id)))?;
        self.trace.host(self.now, host, || {
            format!(
                "post {} to {owner:?}: {size} bytes in {} pieces",
                wr_name(wr_id),
                places.len()
            )
        });
        self.recvs.push(RecvRecord {
            owner,
            index: number,
            places,
            errors: Vec::new(),
            end: None,
        });
        Ok(true)
    }
}

/// Returns the number of receives of a size to keep posted.
fn fitting(size: u64) -> usize {
    (RECEIVE_MEMORY / size.max(1)).clamp(2, 64) as usize
}

/// Returns the key that an operation invalidates at the peer.
fn invalidated_key(op: &SendOp) -> Option<u32> {
    match op {
        SendOp::SendInvalidate { rkey } => Some(*rkey),
        SendOp::Send { .. }
        | SendOp::Write { .. }
        | SendOp::Read { .. }
        | SendOp::CompareSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush { .. }
        | SendOp::LocalInvalidate { .. }
        | SendOp::BindMw(_) => None,
    }
}
