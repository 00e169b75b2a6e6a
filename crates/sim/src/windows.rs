//! Work requests that bind, use and invalidate memory windows. A window must be
//! unusable after its invalidation.

use std::rc::Rc;

use ferroce_roce::{Access, BindMw, MwKind, QpType, SendFlags, SendOp, WcStatus};

use crate::model::{AllowedOutcome, Kind, WindowModel, WindowState};
use crate::payload::payload;
use crate::post::{Draft, DraftData};
use crate::program::Choice;
use crate::slot::Rule;
use crate::world::{Check, World};
use crate::zone::{Place, Purpose};

/// Most bytes of a window.
const LARGEST: u64 = 8 << 10;

impl World {
    pub(crate) fn add_windows(&mut self) -> Check {
        for qp in 0..self.qps.len() {
            if self.qps[qp].kind != QpType::Rc {
                continue;
            }
            for _ in 0..self.rng.range(1..=2) {
                let kinds = [MwKind::Type1, MwKind::Type2A, MwKind::Type2B];
                let kind = self.rng.pick(&kinds);
                let host = &self.hosts[self.qps[qp].host];
                let mw = host.regions.alloc_mw(&host.pd, kind);
                self.windows.push(WindowModel {
                    qp,
                    mw: mw.map_err(|e| format!("alloc_mw: {e}"))?,
                    state: WindowState::Free,
                    rkey: 0,
                    place: None,
                    first: 0,
                    used: 0,
                    stale: None,
                });
            }
        }
        Ok(())
    }

    /// Posts a request about a memory window of a connection.
    pub(crate) fn post_window(&mut self, qp: usize) -> Check {
        let peer = self.peer_of(qp);
        let mut of = |owner: Option<usize>, state: WindowState| {
            let is =
                |w: &usize| Some(self.windows[*w].qp) == owner && self.windows[*w].state == state;
            let all: Vec<usize> = (0..self.windows.len()).filter(is).collect();
            (!all.is_empty()).then(|| self.rng.pick(&all))
        };
        let free = of(Some(qp), WindowState::Free);
        let own = of(Some(qp), WindowState::Bound);
        let theirs = of(peer, WindowState::Bound);
        let stale = (0..self.windows.len())
            .find(|&w| Some(self.windows[w].qp) == peer && self.windows[w].stale.is_some());
        let draft = match self.rng.below(10) {
            0 if self.rng.chance(0.05) => self.draft_bad_bind(qp),
            0..=2 if free.is_some() => free.and_then(|w| self.draft_bind(qp, w)),
            3 | 4 if own.is_some() => own.and_then(|w| self.draft_invalidate(qp, w)),
            5 if theirs.is_some() => theirs.and_then(|w| self.draft_send_invalidate(qp, w)),
            6 if self.rng.chance(0.3) => self.draft_foreign_window(qp),
            6 if stale.is_some() && self.rng.chance(0.5) => {
                stale.and_then(|w| self.draft_stale_key(qp, w))
            }
            _ => theirs.and_then(|w| self.draft_window_use(qp, w)),
        };
        match draft {
            Some(draft) => self.submit(qp, draft),
            None => self.post_choice(qp, Choice::Write),
        }
    }

    fn draft_bind(&mut self, qp: usize, w: usize) -> Option<Draft> {
        let host = self.qps[qp].host;
        let len = self.rng.range(64..=LARGEST);
        let place = self.hosts[host].alloc(&mut self.rng, Purpose::Windows, len, 8)?;
        let mw = &self.windows[w].mw;
        let type1 = mw.kind() == MwKind::Type1;
        let rkey = match type1 {
            true => self.hosts[host].regions.next_type1_rkey(mw),
            false => mw.rkey() & !0xff | u32::from((mw.rkey() as u8).wrapping_add(1)),
        };
        let zone = &self.hosts[host].zones[place.zone];
        let addr = zone.key_address(place.va);
        let zero_based = !type1 && self.rng.chance(0.3);
        let mut access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        access.set(Access::ZERO_BASED, zero_based);
        let bind = BindMw {
            mw: mw.clone(),
            rkey,
            mr: Some(zone.mr.clone()),
            addr,
            length: len,
            access,
        };
        let window = &mut self.windows[w];
        window.state = WindowState::Binding;
        window.rkey = rkey;
        window.place = Some(place);
        window.first = if zero_based { 0 } else { addr };
        window.used = 0;
        self.draft_window_request(qp, SendOp::BindMw(Box::new(bind)), w)
    }

    /// Drafts a bind to memory that does not permit windows.
    fn draft_bad_bind(&mut self, qp: usize) -> Option<Draft> {
        let window = self
            .windows
            .iter()
            .find(|w| w.qp == qp && w.state == WindowState::Free)?;
        let zone = &self.hosts[self.qps[qp].host].zones[0];
        let bind = BindMw {
            mw: window.mw.clone(),
            rkey: window.mw.rkey(),
            mr: Some(zone.mr.clone()),
            addr: zone.key_address(zone.start),
            length: 64,
            access: Access::REMOTE_READ,
        };
        let mut draft = Draft::new(SendOp::BindMw(Box::new(bind)));
        draft.flags = self.draw_flags(qp);
        draft.allowed = AllowedOutcome::fails(WcStatus::MwBind);
        Some(draft)
    }

    /// Drafts a request about the window `w`.
    fn draft_window_request(&mut self, qp: usize, op: SendOp, w: usize) -> Option<Draft> {
        let mut draft = Draft::new(op);
        draft.flags = self.draw_flags(qp);
        draft.window = Some(w);
        Some(draft)
    }

    /// Returns true if requests that use the window are outstanding.
    fn in_use(&self, w: usize) -> bool {
        let uses = |send: &&crate::model::SendRecord| send.window == Some(w) && send.end.is_none();
        self.sends.iter().find(uses).is_some()
    }

    /// Drafts the owner's invalidation of a window that no outstanding request uses.
    fn draft_invalidate(&mut self, qp: usize, w: usize) -> Option<Draft> {
        if self.in_use(w) {
            return None;
        }
        let window = &mut self.windows[w];
        window.state = WindowState::Ending;
        if window.mw.kind() != MwKind::Type1 {
            let op = SendOp::LocalInvalidate { key: window.rkey };
            return self.draft_window_request(qp, op, w);
        }
        let mw = window.mw.clone();
        let rkey = self.hosts[self.qps[qp].host].regions.next_type1_rkey(&mw);
        let bind = BindMw {
            mw,
            rkey,
            mr: None,
            addr: 0,
            length: 0,
            access: Access::empty(),
        };
        self.draft_window_request(qp, SendOp::BindMw(Box::new(bind)), w)
    }

    /// Drafts the peer's SEND with invalidate, fenced after its uses of the window.
    fn draft_send_invalidate(&mut self, qp: usize, w: usize) -> Option<Draft> {
        let peer = self.peer_of(qp)?;
        let window = &self.windows[w];
        if window.mw.kind() == MwKind::Type1 {
            return self.draft_window_use(qp, w);
        }
        let op = SendOp::SendInvalidate { rkey: window.rkey };
        let mut draft = self.draft_window_request(qp, op, w)?;
        draft.flags |= SendFlags::FENCE;
        let len = self.draw_len(qp, self.qps[peer].recv_size);
        self.draw_source(qp, &mut draft, len)?;
        self.windows[w].state = WindowState::Ending;
        Some(draft)
    }

    /// Drafts the peer's WRITE or READ through the window.
    fn draft_window_use(&mut self, qp: usize, w: usize) -> Option<Draft> {
        let window = &self.windows[w];
        let all = window.place?;
        let host = self.qps[window.qp].host;
        let room = all.len.checked_sub(window.used + 1)?;
        let len = self.rng.range(1..=room.max(1));
        if room == 0 {
            return None;
        }
        let at = all.len - room;
        let remote_addr = window.first + at;
        let rkey = window.rkey;
        let place = Place {
            va: all.va + at,
            len,
            ..all
        };
        let wr_id = self.next_wr_id();
        let writes = self.rng.chance(0.5);
        let mut draft = if writes {
            let op = SendOp::Write {
                remote_addr,
                rkey,
                imm: None,
            };
            let mut draft = self.draft_window_request(qp, op, w)?;
            self.draw_source(qp, &mut draft, len)?;
            let rule = Rule::Landing {
                data: Rc::clone(&draft.payload),
                at: 0,
                once: true,
            };
            self.hosts[host].arena.add(place.va, len, wr_id, rule);
            draft
        } else {
            let data = payload(self.seed, wr_id, len as usize);
            let most = self.qps[qp].cap.max_send_sge;
            let landing = |at| Rule::Landing {
                data: Rc::clone(&data),
                at,
                once: true,
            };
            let places = self.alloc_local(qp, Purpose::Local, len, most, landing)?;
            let op = SendOp::Read { remote_addr, rkey };
            let mut draft = self.draft_window_request(qp, op, w)?;
            let arena = &self.hosts[host].arena;
            arena.poke(place.va, &data);
            arena.add(place.va, len, wr_id, Rule::Shown);
            draft.payload = data;
            draft.data = DraftData::Places(places);
            draft
        };
        draft.remote = Some((host, place));
        draft.frees_remote = false;
        self.coverage.mark("window used");
        self.windows[w].used = at + len;
        Some(draft)
    }

    /// Drafts the peer's WRITE with an rkey that was invalidated.
    fn draft_stale_key(&mut self, qp: usize, w: usize) -> Option<Draft> {
        let window = &self.windows[w];
        let rkey = window.stale?;
        let op = SendOp::Write {
            remote_addr: window.first,
            rkey,
            imm: None,
        };
        let mut draft = self.draft_window_request(qp, op, w)?;
        draft.window = None;
        self.draw_source(qp, &mut draft, 8)?;
        draft.allowed = AllowedOutcome::refused(&[WcStatus::RemoteAccess]);
        self.coverage.mark("stale window key used");
        Some(draft)
    }

    /// Drafts a WRITE through a type 2 window that another queue pair bound. It must
    /// be refused.
    fn draft_foreign_window(&mut self, qp: usize) -> Option<Draft> {
        let peer = self.peer_of(qp)?;
        let foreign = |window: &&WindowModel| {
            window.qp != peer
                && self.qps[window.qp].host == self.qps[peer].host
                && window.state == WindowState::Bound
                && window.mw.kind() != MwKind::Type1
        };
        let window = self.windows.iter().find(foreign)?;
        let op = SendOp::Write {
            remote_addr: window.first,
            rkey: window.rkey,
            imm: None,
        };
        let mut draft = Draft::new(op);
        draft.flags = self.draw_flags(qp);
        self.draw_source(qp, &mut draft, 8)?;
        draft.allowed = AllowedOutcome::refused(&[WcStatus::RemoteAccess]);
        self.coverage.mark("foreign window used");
        Some(draft)
    }

    /// Records the end of a request about a window.
    pub(crate) fn window_ended(&mut self, w: usize, kind: Kind, success: bool) {
        let window = &mut self.windows[w];
        let next = match (window.state, kind) {
            (WindowState::Binding, Kind::Bind) => WindowState::Bound,
            (WindowState::Ending, Kind::Bind | Kind::LocalInvalidate | Kind::SendInvalidate) => {
                window.stale = success.then_some(window.rkey);
                WindowState::Free
            }
            _ => return,
        };
        // After a failure the window stays in `Ending` and is not used again.
        window.state = if success { next } else { WindowState::Ending };
    }
}
