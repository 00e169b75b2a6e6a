//! Work requests that must fail, at the responder or at the requester.

use ferroce_roce::{QpType, SendFlags, SendOp, Sge, WcStatus};

use crate::model::AllowedOutcome;
use crate::payload::payload;
use crate::post::{Draft, DraftData};
use crate::program::Choice;
use crate::slot::Rule;
use crate::world::{Check, World};
use crate::zone::{Purpose, Zone};

/// The mistake in a request.
#[derive(Copy, Clone, Debug)]
enum Fault {
    UnknownKey,
    OutOfRange,
    NotPermitted,
    OtherDomain,
    MemoryGone,
    TooLong,
    BadInvalidate,
    Forbidden,
    LocalUnknownKey,
    LocalOutOfRange,
    LocalMemoryGone,
    LocalInvalidate,
}

impl World {
    /// Posts a request that must fail.
    pub(crate) fn post_bad(&mut self, qp: usize) -> Check {
        use Fault::*;
        let kind = self.qps[qp].kind;
        let remote = [
            UnknownKey,
            OutOfRange,
            OutOfRange,
            NotPermitted,
            OtherDomain,
            MemoryGone,
            TooLong,
            BadInvalidate,
            Forbidden,
        ];
        let local = [LocalUnknownKey, LocalOutOfRange, LocalMemoryGone];
        let features = &self.scenario.features;
        let fault = match (features.bad_requests, features.bad_locals) {
            (true, _) if kind == QpType::Rc => self.rng.pick(&remote),
            (true, _) if kind.is_reliable() => self.rng.pick(&remote[..8]), // no FLUSH on XRC
            (_, true) if kind == QpType::Rc && self.rng.chance(0.1) => LocalInvalidate,
            (_, true) => self.rng.pick(&local),
            _ => return self.post_choice(qp, Choice::Send),
        };
        let draft = match fault {
            TooLong => self.draft_too_long(qp),
            BadInvalidate => self.draft_bad_invalidate(qp),
            Forbidden => self.draft_flush(qp).map(|mut draft| {
                draft.allowed = AllowedOutcome::refused(&[WcStatus::RemoteInvalidRequest]);
                draft
            }),
            LocalInvalidate => Some(self.draft_bad_local_invalidate()),
            LocalUnknownKey | LocalOutOfRange | LocalMemoryGone => self.draft_bad_local(qp, fault),
            _ => self.draft_refused(qp, fault),
        };
        match draft {
            Some(mut draft) => {
                draft.flags = self.draw_flags(qp);
                draft.xrc_srq = self.draw_xrc_srq(qp);
                self.submit(qp, draft)
            }
            None => Ok(()),
        }
    }

    /// Drafts a WRITE or READ of remote memory that it may not access.
    fn draft_refused(&mut self, qp: usize, fault: Fault) -> Option<Draft> {
        let host = self.qps[self.peer_of(qp)?].host;
        let zone = |purpose| {
            let mut zones = self.hosts[host].zones.iter();
            zones.find(|zone: &&Zone| zone.purpose == purpose)
        };
        let len = self.rng.range(1..=self.scenario.longest.min(3000));
        let (zone, status) = match fault {
            Fault::NotPermitted => (zone(Purpose::ReadOnly)?, WcStatus::RemoteAccess),
            Fault::OtherDomain => (zone(Purpose::OtherDomain)?, WcStatus::RemoteAccess),
            Fault::MemoryGone => (zone(Purpose::GoneRemote)?, WcStatus::RemoteOperation),
            _ => (zone(Purpose::Remote)?, WcStatus::RemoteAccess),
        };
        let start = zone.key_address(zone.start);
        let remote_addr = match fault {
            // Starts inside the region or right after its end.
            Fault::OutOfRange => start + zone.len - self.rng.below(len),
            _ => start + self.rng.below(zone.len - len),
        };
        let rkey = match fault {
            Fault::UnknownKey => zone.mr.rkey() ^ (1 << self.rng.below(32)),
            _ => zone.mr.rkey(),
        };
        let writes = matches!(fault, Fault::NotPermitted) || self.rng.chance(0.5);
        let imm = self.rng.chance(0.3).then(|| self.rng.u32());
        let mut draft = match writes {
            true => {
                let op = SendOp::Write {
                    remote_addr,
                    rkey,
                    imm,
                };
                self.draft_with_source(qp, op, len)?
            }
            false => self.draft_with_landing(qp, SendOp::Read { remote_addr, rkey }, len)?,
        };
        draft.allowed = AllowedOutcome::refused(&[status]);
        Some(draft)
    }

    fn draft_with_source(&mut self, qp: usize, op: SendOp, len: u64) -> Option<Draft> {
        let mut draft = Draft::new(op);
        draft.payload = payload(self.seed, self.next_wr_id(), len as usize);
        draft.data = DraftData::Places(self.alloc_source(qp, &draft.payload)?);
        Some(draft)
    }

    fn draft_with_landing(&mut self, qp: usize, op: SendOp, len: u64) -> Option<Draft> {
        let most = self.qps[qp].cap.max_send_sge;
        let places = self.alloc_local(qp, Purpose::Local, len, most, |_| Rule::Buffer)?;
        let mut draft = Draft::new(op);
        draft.payload = vec![0; len as usize].into();
        draft.data = DraftData::Places(places);
        Some(draft)
    }

    /// Drafts a SEND that is longer than the peer's receives.
    fn draft_too_long(&mut self, qp: usize) -> Option<Draft> {
        let peer = self.peer_of(qp)?;
        let mtu = self.qps[qp].setup.mtu.bytes() as u64;
        let len = self.qps[peer].recv_size + self.rng.range(1..=2 * mtu);
        let op = SendOp::Send { imm: None };
        let mut draft = self.draft_with_source(qp, op, len)?;
        draft.allowed = AllowedOutcome::refused(&[WcStatus::RemoteInvalidRequest]);
        Some(draft)
    }

    /// Drafts a SEND that invalidates a key which cannot be invalidated.
    fn draft_bad_invalidate(&mut self, qp: usize) -> Option<Draft> {
        let peer = self.peer_of(qp)?;
        let zone = &self.hosts[self.qps[peer].host].zones[0];
        let rkey = match self.rng.chance(0.5) {
            true => zone.mr.rkey(),
            false => self.rng.u32(),
        };
        let len = self.draw_len(qp, self.qps[peer].recv_size);
        let op = SendOp::SendInvalidate { rkey };
        let mut draft = self.draft_with_source(qp, op, len)?;
        let either = [WcStatus::RemoteAccess, WcStatus::RemoteInvalidRequest];
        draft.allowed = AllowedOutcome::refused(&either);
        Some(draft)
    }

    fn draft_bad_local_invalidate(&mut self) -> Draft {
        let op = SendOp::LocalInvalidate {
            key: self.rng.u32(),
        };
        let mut draft = Draft::new(op);
        draft.allowed = AllowedOutcome::fails(WcStatus::LocalQpOperation);
        draft
    }

    /// Drafts a request with local memory that it may not access, or that is not mapped.
    fn draft_bad_local(&mut self, qp: usize, fault: Fault) -> Option<Draft> {
        let peer = self.peer_of(qp)?;
        let host = self.qps[qp].host;
        let most = self.qps[peer].recv_size.min(self.scenario.longest);
        let len = self.rng.range(1..=most.max(1));
        if len > most {
            return None; // the peer's receives have no room
        }
        let purpose = match fault {
            Fault::LocalMemoryGone => Purpose::GoneLocal,
            _ => Purpose::Local,
        };
        let mut zones = self.hosts[host].zones.iter();
        let zone = zones.find(|zone| zone.purpose == purpose)?;
        let start = zone.key_address(zone.start);
        let mtu = self.qps[qp].setup.mtu.bytes() as u64;
        let addr = match fault {
            // The first packet exceeds the region.
            Fault::LocalOutOfRange => start + zone.len - self.rng.below(len.min(mtu)),
            _ => start + self.rng.below(zone.len - len),
        };
        let lkey = match fault {
            Fault::LocalUnknownKey => self.rng.u32(),
            _ => zone.mr.lkey(),
        };
        let sge = Sge {
            addr,
            length: len as u32,
            lkey,
        };
        let mut draft = match self.rng.chance(0.3) && self.qps[qp].kind.is_reliable() {
            true => {
                let data = payload(self.seed, self.next_wr_id(), len as usize);
                let remote = self.alloc_remote(qp, Purpose::Remote, len, 1)?;
                let (remote_host, place) = remote;
                let arena = &self.hosts[remote_host].arena;
                arena.poke(place.va, &data);
                arena.add(place.va, place.len, self.next_wr_id(), Rule::Shown);
                let (remote_addr, rkey) = self.hosts[remote_host].remote(place);
                let mut draft = Draft::new(SendOp::Read { remote_addr, rkey });
                draft.payload = data;
                draft.remote = Some(remote);
                draft
            }
            false => {
                let mut draft = Draft::new(SendOp::Send { imm: None });
                draft.payload = payload(self.seed, self.next_wr_id(), len as usize);
                draft
            }
        };
        draft.data = DraftData::Bad(vec![sge]);
        draft.allowed = AllowedOutcome::fails(WcStatus::LocalProtection);
        Some(draft)
    }

    /// Changes a datagram into one that cannot be sent.
    pub(crate) fn spoil_datagram(&mut self, qp: usize, draft: &mut Draft) {
        if let DraftData::Places(places) = &draft.data {
            let host = self.qps[qp].host;
            for place in places {
                self.hosts[host].arena.remove(place.va);
                self.hosts[host].release(*place);
            }
        }
        let too_long = self.rng.chance(0.5);
        let mtu = self.scenario.port_mtu.bytes() as u64;
        let len = match too_long {
            true => mtu + self.rng.range(1..=64),
            false => self.rng.range(1..=mtu),
        };
        draft.allowed = AllowedOutcome::fails(match too_long {
            true => WcStatus::LocalLength,
            false => WcStatus::LocalProtection,
        });
        draft.payload = payload(self.seed, self.next_wr_id(), len as usize);
        draft.flags.remove(SendFlags::INLINE);
        draft.data = DraftData::Bad(vec![Sge {
            addr: 0,
            length: len as u32,
            lkey: self.rng.u32(),
        }]);
    }
}
