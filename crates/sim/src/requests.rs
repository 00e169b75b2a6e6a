//! Valid work requests of each kind.

use std::rc::Rc;

use ferroce_roce::{SendFlags, SendOp};

use crate::host::group_address;
use crate::model::{AtomicTarget, DatagramTarget};
use crate::payload::{payload, unique};
use crate::post::{Draft, DraftData};
use crate::program::Choice;
use crate::slot::{Atomic, Rule};
use crate::wire_check::MULTICAST;
use crate::world::{Check, World};
use crate::zone::{Place, Purpose};

impl World {
    /// Posts the chosen requests, unless there is no memory for them.
    pub(crate) fn post_choice(&mut self, qp: usize, choice: Choice) -> Check {
        let draft = match choice {
            Choice::Send => self.draft_send(qp),
            Choice::Write => self.draft_write(qp),
            Choice::Read => self.draft_read(qp),
            Choice::FetchAdd => self.draft_atomic(qp, true),
            Choice::CompareSwap => self.draft_atomic(qp, false),
            Choice::AtomicWrite => self.draft_atomic_write(qp),
            // Queue pairs with bad requests have no FLUSH permission.
            Choice::Flush if self.scenario.features.bad_requests => self.draft_write(qp),
            Choice::Flush => self.draft_flush(qp),
            Choice::ReadThenWrite => return self.post_read_then_write(qp),
            Choice::WriteThenRead => return self.post_write_then_read(qp),
            Choice::Window => return self.post_window(qp),
        };
        match draft {
            Some(draft) => self.submit(qp, draft),
            None => Ok(()),
        }
    }

    pub(crate) fn draft_send(&mut self, qp: usize) -> Option<Draft> {
        let peer = self.peer_of(qp)?;
        let imm = self.draw_imm();
        let mut draft = Draft::new(SendOp::Send { imm });
        draft.flags = self.draw_flags(qp);
        draft.xrc_srq = self.draw_xrc_srq(qp);
        let len = self.draw_len(qp, self.qps[peer].recv_size);
        self.draw_source(qp, &mut draft, len)?;
        Some(draft)
    }

    fn draw_imm(&mut self) -> Option<u32> {
        self.rng.chance(0.4).then(|| self.rng.u32())
    }

    /// Draws the zone for remote memory. In some scenarios it may be one that the
    /// peer deregisters while it is in use.
    fn remote_purpose(&mut self) -> Purpose {
        match self.scenario.features.deregister && self.rng.chance(0.4) {
            true => Purpose::DoomedRemote,
            false => Purpose::Remote,
        }
    }

    /// Allocates memory at the peer; returns its host and place.
    pub(crate) fn alloc_remote(
        &mut self,
        qp: usize,
        purpose: Purpose,
        len: u64,
        align: u64,
    ) -> Option<(usize, Place)> {
        let host = self.qps[self.peer_of(qp)?].host;
        let place = self.hosts[host].alloc(&mut self.rng, purpose, len, align)?;
        Some((host, place))
    }

    fn draft_write(&mut self, qp: usize) -> Option<Draft> {
        let len = self.draw_len(qp, self.scenario.longest);
        let imm = self.draw_imm();
        let purpose = self.remote_purpose();
        let remote = match len {
            0 => None,
            _ => Some(self.alloc_remote(qp, purpose, len, 1)?),
        };
        self.draft_write_to(qp, remote, len, imm)
    }

    /// Drafts a WRITE to allocated memory.
    fn draft_write_to(
        &mut self,
        qp: usize,
        remote: Option<(usize, Place)>,
        len: u64,
        imm: Option<u32>,
    ) -> Option<Draft> {
        let (remote_addr, rkey) = match remote {
            Some((host, place)) => self.hosts[host].remote(place),
            None => (self.rng.u64(), self.rng.u32()), // not checked for zero bytes
        };
        let op = SendOp::Write {
            remote_addr,
            rkey,
            imm,
        };
        let mut draft = Draft::new(op);
        draft.flags = self.draw_flags(qp);
        draft.xrc_srq = self.draw_xrc_srq(qp);
        self.draw_source(qp, &mut draft, len)?;
        draft.remote = remote;
        if let Some((host, place)) = remote {
            let rule = Rule::Landing {
                data: Rc::clone(&draft.payload),
                at: 0,
                once: self.qps[qp].kind.is_reliable(),
            };
            let wr_id = self.next_wr_id();
            self.hosts[host].arena.add(place.va, place.len, wr_id, rule);
        }
        Some(draft)
    }

    fn draft_read(&mut self, qp: usize) -> Option<Draft> {
        let len = self.draw_len(qp, self.scenario.longest);
        let purpose = self.remote_purpose();
        let remote = match len {
            0 => None,
            _ => Some(self.alloc_remote(qp, purpose, len, 1)?),
        };
        let data = payload(self.seed, self.next_wr_id(), len as usize);
        if let Some((host, place)) = remote {
            let arena = &self.hosts[host].arena;
            arena.poke(place.va, &data);
            arena.add(place.va, place.len, self.next_wr_id(), Rule::Shown);
        }
        self.draft_read_from(qp, remote, data)
    }

    /// Drafts a READ of memory that holds `data` when the READ is executed.
    pub(crate) fn draft_read_from(
        &mut self,
        qp: usize,
        remote: Option<(usize, Place)>,
        data: Rc<[u8]>,
    ) -> Option<Draft> {
        let (remote_addr, rkey) = match remote {
            Some((host, place)) => self.hosts[host].remote(place),
            None => (self.rng.u64(), self.rng.u32()),
        };
        let mut draft = Draft::new(SendOp::Read { remote_addr, rkey });
        draft.flags = self.draw_flags(qp);
        draft.xrc_srq = self.draw_xrc_srq(qp);
        draft.remote = remote;
        let (purpose, most) = (self.local_purpose(), self.qps[qp].cap.max_send_sge);
        let places =
            self.alloc_local(qp, purpose, data.len() as u64, most, |at| Rule::Landing {
                data: Rc::clone(&data),
                at,
                once: true,
            })?;
        draft.payload = data;
        draft.data = DraftData::Places(places);
        Some(draft)
    }

    fn draft_atomic(&mut self, qp: usize, add: bool) -> Option<Draft> {
        let host = self.qps[self.peer_of(qp)?].host;
        let va = self.rng.pick(&self.counters[host]);
        let wr_id = self.next_wr_id();
        let operand = unique(self.seed, wr_id);
        let zone = &self.hosts[host].zones;
        let zone = zone.iter().find(|zone| zone.purpose == Purpose::Counters)?;
        let (remote_addr, rkey) = (zone.key_address(va), zone.mr.rkey());
        let current = self.hosts[host].arena.peek(va, 8).try_into().ok()?;
        let compare = match self.rng.chance(0.7) {
            true => u64::from_ne_bytes(current), // likely to match
            false => self.rng.u64(),
        };
        let op = match add {
            true => SendOp::FetchAdd {
                remote_addr,
                rkey,
                add: operand,
            },
            false => SendOp::CompareSwap {
                remote_addr,
                rkey,
                compare,
                swap: operand,
            },
        };
        let mut draft = Draft::new(op);
        draft.flags = self.draw_flags(qp);
        draft.xrc_srq = self.draw_xrc_srq(qp);
        draft.payload = vec![0; 8].into();
        let purpose = self.local_purpose();
        let places = self.alloc_local(qp, purpose, 8, 1, |_| Rule::Buffer)?;
        draft.data = DraftData::Places(places);
        draft.atomic = Some(AtomicTarget { host, va, operand });
        let expected = Atomic {
            wr_id,
            compare: (!add).then_some(compare),
            original: None,
            closed: false,
        };
        self.hosts[host].arena.expect_atomic(va, operand, expected);
        Some(draft)
    }

    fn draft_atomic_write(&mut self, qp: usize) -> Option<Draft> {
        let purpose = self.remote_purpose();
        let (host, place) = self.alloc_remote(qp, purpose, 8, 8)?;
        let (remote_addr, rkey) = self.hosts[host].remote(place);
        let op = SendOp::AtomicWrite { remote_addr, rkey };
        let mut draft = Draft::new(op);
        draft.flags = self.draw_flags(qp);
        self.draw_source(qp, &mut draft, 8)?;
        draft.remote = Some((host, place));
        let rule = Rule::Landing {
            data: Rc::clone(&draft.payload),
            at: 0,
            once: true,
        };
        self.hosts[host]
            .arena
            .add(place.va, 8, self.next_wr_id(), rule);
        Some(draft)
    }

    pub(crate) fn draft_flush(&mut self, qp: usize) -> Option<Draft> {
        let host = self.qps[self.peer_of(qp)?].host;
        let zones = &self.hosts[host].zones;
        let zone = zones.iter().find(|zone| zone.purpose == Purpose::Remote)?;
        let at = self.rng.below(zone.len / 2);
        let len = self.rng.range(1..=zone.len / 2);
        let placement = self.rng.range(1..=3) as u8;
        let whole = self.rng.chance(0.3);
        let op = SendOp::Flush {
            remote_addr: zone.key_address(zone.start + at),
            rkey: zone.mr.rkey(),
            length: len as u32,
            placement,
            selectivity: u8::from(whole),
        };
        let persistent = placement & 2 != 0;
        let range = match whole {
            true => (zone.start, zone.len, persistent),
            false => (zone.start + at, len, persistent),
        };
        let mut draft = Draft::new(op);
        draft.flags = self.draw_flags(qp);
        draft.flush = Some(range);
        Some(draft)
    }

    /// Posts a WRITE and then a READ of the same memory.
    fn post_write_then_read(&mut self, qp: usize) -> Check {
        let Some((remote, len)) = self.alloc_ordered(qp) else {
            return Ok(());
        };
        let Some(mut write) = self.draft_write_to(qp, Some(remote), len, None) else {
            return Ok(());
        };
        write.frees_remote = false;
        let data = Rc::clone(&write.payload);
        self.submit(qp, write)?;
        let Some(read) = self.draft_read_from(qp, Some(remote), data) else {
            return Ok(());
        };
        self.submit(qp, read)
    }

    /// Posts a READ and then a fenced WRITE of the same memory.
    fn post_read_then_write(&mut self, qp: usize) -> Check {
        let Some((remote, len)) = self.alloc_ordered(qp) else {
            return Ok(());
        };
        let (host, place) = remote;
        let old = payload(self.seed, self.next_wr_id(), len as usize);
        self.hosts[host].arena.poke(place.va, &old);
        let Some(mut read) = self.draft_read_from(qp, Some(remote), old) else {
            return Ok(());
        };
        read.frees_remote = false;
        self.submit(qp, read)?;
        let Some(mut write) = self.draft_write_to(qp, Some(remote), len, None) else {
            return Ok(());
        };
        write.flags |= SendFlags::FENCE;
        self.submit(qp, write)
    }

    /// Allocates remote memory for two requests that must be executed in order. Returns it
    /// with its length.
    fn alloc_ordered(&mut self, qp: usize) -> Option<((usize, Place), u64)> {
        let len = self.draw_len(qp, self.scenario.longest).max(1);
        let remote = self.alloc_remote(qp, Purpose::Remote, len, 1)?;
        self.coverage.mark("requests ordered by fence");
        Some((remote, len))
    }

    pub(crate) fn post_datagram(&mut self, qp: usize) -> Check {
        let others: Vec<usize> = (0..self.qps.len())
            .filter(|&other| self.qps[other].is_datagram())
            .collect();
        let target = self.rng.pick(&others);
        let general = self.qps[qp].kind != self.qps[target].kind;
        let multicast = self.scenario.features.multicast && !general && self.rng.chance(0.5);
        let address = match multicast {
            true => group_address(self.rng.below(3) as u8, self.scenario.ipv6),
            false => self.hosts[self.qps[target].host].address,
        };
        // Queue pair 1 has a Q_Key of its own. Its peers drop datagrams with a wrong Q_Key.
        let wrong = general || self.rng.chance(0.1);
        let qkey = match wrong {
            true => self.qps[qp].setup.qkey,
            false => self.qps[target].setup.qkey,
        };
        let imm = self.draw_imm();
        let mut draft = Draft::new(SendOp::Send { imm });
        draft.flags = self.draw_flags(qp);
        draft.datagram = Some(DatagramTarget {
            address,
            qpn: if multicast {
                MULTICAST
            } else {
                self.qps[target].qpn
            },
            qkey,
        });
        let len = self.draw_len(qp, self.scenario.port_mtu.bytes() as u64);
        if self.draw_source(qp, &mut draft, len).is_none() {
            return Ok(());
        }
        if self.scenario.features.bad_locals && self.rng.chance(self.scenario.bad) {
            self.spoil_datagram(qp, &mut draft);
        }
        self.submit(qp, draft)
    }
}
