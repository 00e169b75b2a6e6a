//! Creation of counters, queue pairs and connections at the start of a run.

use ferroce_net::Source;
use ferroce_roce::{Access, AddressVector, AttrMask, QpAttr, QpCap, QpInit, QpState, QpType, Time};
use ferroce_wire::{Psn, rc_source_port, ud_source_port};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::event_queue::SimEvent;
use crate::host::group_address;
use crate::model::{Drain, QpModel, Setup};
use crate::scenario::{DatagramPlan, EndPlan};
use crate::slot::Rule;
use crate::world::{Check, World};
use crate::zone::Purpose;

/// Number of counters for atomics on each host.
const COUNTERS: usize = 3;
/// The Q_Key of queue pair 1.
const GENERAL_SERVICES_QKEY: u32 = 0x8001_0000;
impl World {
    pub(crate) fn build(&mut self) -> Check {
        for host in 0..self.hosts.len() {
            self.add_counters(host);
            let delay = self.rng.below(self.scenario.step_ns);
            let at = Time::from_nanos(delay);
            self.event_queue.schedule(at, SimEvent::Program { host });
        }
        for plan in self.scenario.pairs.clone() {
            let kinds = match plan.kind {
                QpType::XrcInitiator => [QpType::XrcInitiator, QpType::XrcTarget],
                kind => [kind, kind],
            };
            let a = self.add_qp(kinds[0], &plan.ends[0])?;
            let b = self.add_qp(kinds[1], &plan.ends[1])?;
            self.qps[a].peer = Some(b);
            self.qps[b].peer = Some(a);
            self.connect(a, plan.ends[0].late_ns)?;
            self.connect(b, plan.ends[1].late_ns)?;
        }
        for plan in self.scenario.datagrams.clone() {
            self.add_datagram_qp(&plan)?;
        }
        if self.scenario.features.windows {
            self.add_windows()?;
        }
        self.admit_intruder();
        for index in 0..self.scenario.disruptions.len() {
            let at = self.scenario.disruptions[index].0;
            self.event_queue.schedule(at, SimEvent::Disrupt { index });
        }
        self.event_queue
            .schedule(self.scenario.heal, SimEvent::Heal);
        Ok(())
    }

    fn add_counters(&mut self, host: usize) {
        let mut counters = Vec::new();
        for _ in 0..COUNTERS {
            let side = &mut self.hosts[host];
            let place = side.alloc(&mut self.rng, Purpose::Counters, 8, 8);
            let va = place.expect("counters fit").va;
            let start = self.rng.u64();
            side.arena.poke(va, &start.to_ne_bytes());
            side.arena.add(va, 8, 0, Rule::Counter(BTreeMap::new()));
            counters.push(va);
        }
        self.counters.push(counters);
    }

    fn add_qp(&mut self, kind: QpType, plan: &EndPlan) -> Result<usize, String> {
        let host = plan.host;
        let small = self.scenario.features.small_cqs && self.rng.chance(0.5);
        let send_cq = self.new_or_shared_cq(host, small);
        let recv_cq = match self.rng.chance(0.4) {
            true => send_cq,
            false => self.new_or_shared_cq(host, small),
        };
        let domain = match kind {
            QpType::XrcTarget => Some(self.new_or_shared_domain(host, plan.recv_size, recv_cq)),
            _ => None,
        };
        let srq = match domain {
            Some(domain) => self.srqs_of_domain(domain).first().copied(),
            None if plan.shared_receives && kind != QpType::XrcInitiator => {
                Some(self.shared_srq(host, kind, plan.recv_size))
            }
            None => None,
        };
        let is_xrc = matches!(kind, QpType::XrcInitiator | QpType::XrcTarget);
        let cq = |index: usize| Some(Arc::clone(&self.cqs[index].cq));
        let init = QpInit {
            qp_type: kind,
            pd: (kind != QpType::XrcTarget).then(|| Arc::clone(&self.hosts[host].pd)),
            send_cq: (kind != QpType::XrcTarget).then(|| cq(send_cq)).flatten(),
            recv_cq: (!is_xrc).then(|| cq(recv_cq)).flatten(),
            srq: srq
                .filter(|_| !is_xrc)
                .map(|srq| Arc::clone(&self.srqs[srq].srq)),
            xrcd: domain.map(|domain| Arc::clone(&self.domains[domain].1)),
            cap: QpCap {
                max_send_wr: plan.queue_depth,
                max_recv_wr: plan.queue_depth,
                max_send_sge: plan.max_sge,
                max_recv_sge: plan.max_sge,
                max_inline_data: self.rng.pick(&[0, 64, 256]),
            },
            sq_sig_all: plan.signals_all,
        };
        let created = self.hosts[host].engine_mut().create_qp(&init);
        let (qpn, cap) = created.map_err(|e| format!("create_qp: {e}"))?;
        let recv_size = srq.map_or(plan.recv_size, |srq| self.srqs[srq].recv_size);
        self.by_number.insert((host, qpn), self.qps.len());
        self.qps.push(QpModel {
            host,
            qpn,
            kind,
            peer: None,
            send_cq,
            recv_cq,
            srq,
            domain,
            cap,
            signals_all: plan.signals_all,
            setup: plan.setup,
            recv_size,
            state: Some(QpState::Reset),
            todo: plan.todo,
            only: plan.only,
            sends: Vec::new(),
            ended: 0,
            first_error: None,
            messages: Vec::new(),
            recvs: Vec::new(),
            recvs_ended: 0,
            delivered: 0,
            datagrams: Default::default(),
            datagrams_taken: 0,
            datagrams_sent: 0,
            groups: BTreeSet::new(),
            cause: Default::default(),
            drain: Drain::No,
            events: Vec::new(),
            recv_failed: false,
            sent: BTreeMap::new(),
            peer_unreachable: false,
            awaited: BTreeSet::new(),
            read_psns: BTreeSet::new(),
            rnr_wait: None,
            last_rnr_nak: None,
            last_request: None,
            naks: BTreeSet::new(),
            rnr_naks: 0,
            bad_receives: false,
            early_requests: 0,
            reconnections: 0,
            reconnect_at: None,
        });
        Ok(self.qps.len() - 1)
    }

    fn add_datagram_qp(&mut self, plan: &DatagramPlan) -> Check {
        let taken = |qp: &QpModel| qp.kind == QpType::Gsi && qp.host == plan.end.host;
        let general = plan.general_services && !self.qps.iter().any(taken);
        let mut end = plan.end.clone();
        let mut kind = QpType::Ud;
        if general {
            kind = QpType::Gsi;
            end.setup.qkey = GENERAL_SERVICES_QKEY;
        }
        let qp = self.add_qp(kind, &end)?;
        self.modify(qp, QpState::Init)?;
        self.post_receives(qp)?;
        self.modify(qp, QpState::Rtr)?;
        self.modify(qp, QpState::Rts)?;
        if general {
            return Ok(());
        }
        for &group in &plan.groups {
            let address = group_address(group, self.scenario.ipv6);
            let (host, qpn) = (self.qps[qp].host, self.qps[qp].qpn);
            let side = &mut self.hosts[host];
            let attached = side.engine_mut().attach_multicast(qpn, address);
            let first = attached.map_err(|e| format!("attach_multicast: {e}"))?;
            let joined = &side.core().wire().joined;
            if first == joined.contains(&address) {
                return Err(format!(
                    "attach_multicast is wrong about the first queue pair in {address}"
                ));
            }
            if first {
                let joined = side.core_mut().join_multicast(address);
                joined.map_err(|e| format!("join_multicast: {e}"))?;
            }
            self.qps[qp].groups.insert(address);
        }
        Ok(())
    }

    /// Moves a queue pair to RTR, and to RTS now or after `late_ns`.
    pub(crate) fn connect(&mut self, qp: usize, late_ns: u64) -> Check {
        self.modify(qp, QpState::Init)?;
        if self.rng.chance(0.7) {
            self.post_receives(qp)?;
        }
        self.modify(qp, QpState::Rtr)?;
        if late_ns == 0 {
            return self.modify(qp, QpState::Rts);
        }
        let at = self.now.after_nanos(late_ns);
        self.event_queue.schedule(at, SimEvent::Resume { qp });
        Ok(())
    }

    /// Moves a queue pair to a state, with the attributes that the transition requires.
    pub(crate) fn modify(&mut self, qp: usize, state: QpState) -> Check {
        let model = &self.qps[qp];
        let (host, qpn) = (model.host, model.qpn);
        let from = model.state;
        self.finish_sending(host)?;
        let (attr, mask) = self.attributes(qp, state);
        self.trace.host(self.now, host, || {
            format!("modify qp {qpn:#x} to {state:?}")
        });
        let now = self.now;
        // A queue pair that moves to ERR first receives what has arrived.
        self.stopping = (!state.receives() && state != QpState::Err).then_some(qp);
        let modified = self.with_core(host, |core, observer| {
            core.wire_mut().budget = usize::MAX;
            core.modify_qp(now, observer, qpn, &attr, mask)
        })?;
        self.stopping = None;
        if state == QpState::Reset {
            self.note_end_of_uc(qp);
        }
        if self.hosts[host].core().has_deferred() {
            return Err(format!("qp {qpn:#x} changed before its deferred ACKs left"));
        }
        let arrived = self.hosts[host].inbox.borrow().waiting.len() + self.unread_of_others(host);
        let receives_first = match state {
            QpState::Err => true,
            QpState::Rtr => self.qps[qp].kind == QpType::Uc,
            _ => false,
        };
        if receives_first && arrived > 0 {
            return Err(format!(
                "qp {qpn:#x} moved to {state:?} before {arrived} packets were received"
            ));
        }
        if let Err(e) = modified {
            let found = self.hosts[host].engine().query_qp(qpn);
            let failed = found.is_ok_and(|query| query.attr.state == QpState::Err);
            // A response that was deferred is sent first. If its memory cannot be read, the
            // queue pair is in ERR.
            return match failed && from != Some(QpState::Err) {
                true => self.after_engine(host),
                false => Err(format!("qp {qpn:#x} from {from:?} to {state:?}: {e}")),
            };
        }
        self.choose_port(qp, state, &attr)?;
        self.after_engine(host)
    }

    /// Chooses the UDP source port of a queue pair when it gets its path, as devices do.
    fn choose_port(&mut self, qp: usize, state: QpState, attr: &QpAttr) -> Check {
        let model = &self.qps[qp];
        let (host, qpn) = (model.host, model.qpn);
        let (want, source) = match (model.is_datagram(), state, attr.av) {
            (true, QpState::Init, _) => (ud_source_port(qpn), Source::Any),
            (false, QpState::Rtr, Some(av)) => (
                rc_source_port(av.flow_label, qpn, attr.dest_qpn),
                Source::Address(av.source),
            ),
            _ => return Ok(()),
        };
        let core = self.hosts[host].core_mut();
        core.choose_port(qpn, want, source)
            .map_err(|e| format!("choose_port: {e}"))?;
        let on_this_machine = attr.av.is_some_and(|av| av.source == av.destination);
        if on_this_machine && !self.qps[qp].is_datagram() {
            let pinned = self.hosts[host].engine_mut().pin_peer_port(qpn);
            pinned.map_err(|e| format!("pin_peer_port: {e}"))?;
            self.choose_wire(qp)?;
        }
        Ok(())
    }

    fn attributes(&self, qp: usize, state: QpState) -> (QpAttr, AttrMask) {
        let model = &self.qps[qp];
        let Setup {
            mtu,
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            depth,
            sq_psn,
            qkey,
            flow_label,
        } = model.setup;
        let mut attr = QpAttr {
            state,
            access: self.remote_access(),
            en_sqd_async_notify: true,
            path_mtu: mtu,
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            max_rd_atomic: depth,
            max_dest_rd_atomic: depth,
            sq_psn,
            qkey,
            ..QpAttr::default()
        };
        if let Some(peer) = model.peer {
            let peer = &self.qps[peer];
            attr.dest_qpn = peer.qpn;
            attr.rq_psn = peer.setup.sq_psn;
            attr.av = Some(AddressVector {
                flow_label,
                ..self.address_vector(model.host, self.hosts[peer.host].address)
            });
        }
        let resumes = model.is(QpState::Sqd) || model.is(QpState::Sqe);
        (attr, mask(model.kind, state, resumes))
    }

    /// Returns the remote access that queue pairs permit. Scenarios with bad requests
    /// do not permit FLUSH.
    fn remote_access(&self) -> Access {
        let flush = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let rest = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        match self.scenario.features.bad_requests {
            true => rest,
            false => rest | flush,
        }
    }

    /// Returns the address vector from a host to an address.
    pub(crate) fn address_vector(&self, host: usize, to: core::net::IpAddr) -> AddressVector {
        AddressVector {
            source: self.hosts[host].address,
            destination: to,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            sl: 0,
            port: 1,
        }
    }

    /// Draws an initial PSN, just below the wrap if the scenario has that feature.
    pub(crate) fn draw_psn(&mut self) -> Psn {
        match self.scenario.features.wrap {
            true => Psn::new(0xff_ffff - self.rng.range(0..=60) as u32),
            false => Psn::new(self.rng.u32()),
        }
    }
}

/// Returns the attributes that a transition requires.
fn mask(kind: QpType, state: QpState, resumes: bool) -> AttrMask {
    use AttrMask as M;
    let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let responder = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    M::STATE
        | match (state, kind) {
            (QpState::Init, QpType::Ud) => M::PKEY_INDEX | M::PORT | M::QKEY,
            (QpState::Init, QpType::Gsi) => M::PKEY_INDEX | M::QKEY,
            (QpState::Init, _) => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            (QpState::Rtr, QpType::Rc | QpType::XrcTarget) => connected | responder,
            (QpState::Rtr, QpType::Uc | QpType::XrcInitiator) => connected,
            (QpState::Rts, _) if resumes => M::empty(),
            (QpState::Rts, QpType::Rc | QpType::XrcInitiator) => {
                M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC
            }
            (QpState::Rts, QpType::XrcTarget) => M::TIMEOUT | M::SQ_PSN,
            (QpState::Rts, _) => M::SQ_PSN,
            (QpState::Sqd, _) => M::EN_SQD_ASYNC_NOTIFY,
            _ => M::empty(),
        }
}
