//! Disruptions: pauses, outages, teardown and deregistration while work is
//! outstanding.

use ferroce_roce::{QpState, QpType, WcStatus};
use ferroce_shard::Caller;

use crate::event_queue::SimEvent;
use crate::model::{Drain, End, QpModel, RecvOwner};
use crate::scenario::Disruption;
use crate::world::{Check, World};
use crate::zone::Purpose;

/// A stop after which queue pairs may have used up their retries. Runs to the stopped host wait for
/// room in memory until they are given up after 20 ms, and runs to other hosts wait behind them.
const LONG_STOP_NS: u64 = 10_000_000;

impl World {
    pub(crate) fn disrupt(&mut self, index: usize) -> Check {
        let what = self.scenario.disruptions[index].1;
        self.trace
            .line(self.now, || format!("disruption: {what:?}"));
        match what {
            Disruption::Pause { host, ns } => {
                let until = self.now.after_nanos(ns);
                self.hosts[host].paused_until = until.max(self.hosts[host].paused_until);
                if self.scenario.local.is_some() && ns > LONG_STOP_NS {
                    // Runs to it wait for so long, and other runs behind them.
                    self.excuse(|_, _| true);
                }
                Ok(())
            }
            Disruption::Die { host, accesses } => self.doom(host, accesses),
            Disruption::EndChannel { host, sabotages } => self.disturb_channel(host, sabotages),
            Disruption::StopProgram { host, ns } => {
                self.hosts[host].program_stopped_until = self.now.after_nanos(ns);
                Ok(())
            }
            // Half of the queue pairs fail while packets wait in the receive buffer.
            Disruption::Kill { qp } if self.device_rng.chance(0.5) => {
                let host = self.qps[qp].host;
                self.hosts[host].kill_on_arrival = Some(qp);
                Ok(())
            }
            Disruption::Kill { qp } => self.kill(qp),
            Disruption::Reset { qp } => self.reset(qp),
            Disruption::Destroy { qp } => self.destroy(qp),
            Disruption::Deregister { host, remote } => self.deregister(host, remote),
            Disruption::Drain { qp, ns } => self.drain(qp, ns),
            Disruption::Outage { a, b, ns } => {
                self.network.cut(a, b, self.now.after_nanos(ns));
                for qp in 0..self.qps.len() {
                    let far = self.peer_of(qp).map(|peer| self.qps[peer].host);
                    let near = self.qps[qp].host;
                    if far.is_some_and(|far| (near, far) == (a, b) || (near, far) == (b, a)) {
                        self.qps[qp].cause.outage = true;
                    }
                }
                Ok(())
            }
        }
    }

    /// Moves a queue pair to ERR, as its program.
    pub(crate) fn kill(&mut self, qp: usize) -> Check {
        if matches!(
            self.qps[qp].state,
            None | Some(QpState::Reset | QpState::Err)
        ) {
            return Ok(());
        }
        self.qps[qp].cause.program = true;
        // Packets that have arrived are received first, and may end a drain.
        self.modify(qp, QpState::Err)?;
        self.qps[qp].drain = Drain::No;
        Ok(())
    }

    pub(crate) fn reset(&mut self, qp: usize) -> Check {
        if self.qps[qp].state.is_none() {
            return Ok(());
        }
        self.take_completions(qp)?;
        self.coverage.mark("reset");
        self.modify(qp, QpState::Reset)?;
        // Those of an ACK that arrived before.
        self.take_completions(qp)?;
        self.discard_work(qp);
        Ok(())
    }

    fn destroy(&mut self, qp: usize) -> Check {
        let (host, qpn) = (self.qps[qp].host, self.qps[qp].qpn);
        if self.qps[qp].state.is_none() {
            return Ok(());
        }
        self.finish_sending(host)?;
        // Packets that have arrived may fail the queue pair, which the oracle must see before.
        while self.unread_of_others(host) > 0 {
            self.turn(host, Caller::ProgressThread, usize::MAX)?;
        }
        self.finish_sending(host)?;
        self.take_completions(qp)?;
        self.trace
            .host(self.now, host, || format!("destroy qp {qpn:#x}"));
        self.leave_groups(qp)?;
        let now = self.now;
        self.stopping = Some(qp);
        let shares_memory = self.scenario.local.is_some();
        let destroyed = self.with_core(host, |core, observer| {
            if shares_memory {
                core.wire_mut().budget = usize::MAX;
            }
            core.destroy_qp(now, observer, qpn)
        })?;
        self.stopping = None;
        self.note_end_of_uc(qp);
        if self.hosts[host].core().has_deferred() {
            return Err(format!("qp {qpn:#x} ended before its deferred ACKs left"));
        }
        destroyed.map_err(|e| format!("destroy_qp: {e}"))?;
        self.take_completions(qp)?;
        self.coverage.mark("destroyed");
        self.by_number.remove(&(host, qpn));
        self.qps[qp].state = None;
        self.discard_work(qp);
        self.after_engine(host)
    }

    /// Notes that the shard drops the packets of a UC queue pair that have not been sent.
    pub(crate) fn note_end_of_uc(&mut self, qp: usize) {
        let QpModel {
            host, qpn, kind, ..
        } = self.qps[qp];
        if kind == QpType::Uc && self.hosts[host].end_uc_connection(qpn) {
            self.coverage
                .mark("UC connection ended before its packets left");
        }
    }

    /// Detaches a queue pair from its multicast groups. Checks first that the engine
    /// refuses to destroy it while it is attached.
    fn leave_groups(&mut self, qp: usize) -> Check {
        let (host, qpn) = (self.qps[qp].host, self.qps[qp].qpn);
        let groups = std::mem::take(&mut self.qps[qp].groups);
        let side = &mut self.hosts[host];
        if !groups.is_empty() && side.engine_mut().destroy_qp(qpn).is_ok() {
            return Err(format!(
                "qp {qpn:#x} was destroyed while attached to a group"
            ));
        }
        for group in groups {
            let detached = side.engine_mut().detach_multicast(qpn, group);
            let last = detached.map_err(|e| format!("detach_multicast: {e}"))?;
            let here = |other: &QpModel| other.host == host && other.groups.contains(&group);
            if last == self.qps.iter().any(here) {
                return Err(format!(
                    "detach_multicast is wrong about the last queue pair in {group}"
                ));
            }
            if last {
                let left = side.core_mut().leave_multicast(group);
                left.map_err(|e| format!("leave_multicast: {e}"))?;
            }
        }
        Ok(())
    }

    /// Polls the completions of both ends before one of them discards its work.
    fn take_completions(&mut self, qp: usize) -> Check {
        self.poll_host(self.qps[qp].host)?;
        if !self.qps[qp].datagrams.is_empty() && !self.qps[qp].cause.cq_overflow {
            return Err(format!(
                "{} has not delivered all datagrams",
                self.qp_name(qp)
            ));
        }
        match self.peer_of(qp) {
            Some(peer) => self.poll_host(self.qps[peer].host),
            None => Ok(()),
        }
    }

    /// Records that all work posted to a queue pair ends without completions.
    pub(crate) fn discard_work(&mut self, qp: usize) {
        self.stopped_receiving(qp);
        for at in self.qps[qp].ended..self.qps[qp].sends.len() {
            let send = self.qps[qp].sends[at];
            self.send_failed(send, End::Discarded);
        }
        for at in self.qps[qp].recvs_ended..self.qps[qp].recvs.len() {
            let recv = self.qps[qp].recvs[at];
            self.recv_ended(recv, End::Discarded);
        }
        let model = &mut self.qps[qp];
        model.ended = model.sends.len();
        model.recvs_ended = model.recvs.len();
        model.drain = Drain::No;
        for srq in 0..self.srqs.len() {
            self.srqs[srq].may_be_lost += usize::from(self.uses_srq(qp, srq));
        }
    }

    /// Deregisters memory that outstanding sends and receives use.
    fn deregister(&mut self, host: usize, remote: bool) -> Check {
        let purpose = match remote {
            true => Purpose::DoomedRemote,
            false => Purpose::DoomedLocal,
        };
        if self.hosts[host].is_dead {
            return Ok(());
        }
        let zones = &self.hosts[host].zones;
        let doomed = |zone: &crate::zone::Zone| zone.purpose == purpose && zone.registered;
        let Some(zone) = zones.iter().position(doomed) else {
            return Ok(());
        };
        let mr = zones[zone].mr.clone();
        self.finish_sending(host)?;
        let done = self.hosts[host].regions.deregister(&mr);
        done.map_err(|e| format!("deregister: {e}"))?;
        self.hosts[host].zones[zone].registered = false;
        self.coverage.mark("deregistered");
        for send in 0..self.sends.len() {
            let record = &mut self.sends[send];
            if record
                .remote
                .is_some_and(|(h, place)| h == host && place.zone == zone)
            {
                record.allowed.add_error(WcStatus::RemoteAccess, true);
                self.close_remote(send);
            }
            let record = &mut self.sends[send];
            let here = self.qps[record.qp].host == host && record.end.is_none();
            if here && record.local.iter().any(|place| place.zone == zone) {
                record.allowed.add_error(WcStatus::LocalProtection, false);
                let arena = &self.hosts[host].arena;
                let lost = record.local.iter().filter(|place| place.zone == zone);
                lost.for_each(|place| arena.close(place.va));
            }
        }
        self.deregister_receives(host, zone);
        Ok(())
    }

    fn deregister_receives(&mut self, host: usize, zone: usize) {
        for recv in 0..self.recvs.len() {
            let record = &self.recvs[recv];
            let (at, users): (usize, Vec<usize>) = match record.owner {
                RecvOwner::Qp(qp) => (self.qps[qp].host, vec![qp]),
                RecvOwner::Srq(srq) => {
                    let uses = |qp: &usize| self.uses_srq(*qp, srq);
                    (
                        self.srqs[srq].host,
                        (0..self.qps.len()).filter(uses).collect(),
                    )
                }
            };
            let lost = record.places.iter().filter(|place| place.zone == zone);
            let lost: Vec<u64> = lost.map(|place| place.va).collect();
            if at != host || record.end.is_some() || lost.is_empty() {
                continue;
            }
            self.recvs[recv].errors.push(WcStatus::LocalProtection);
            lost.iter().for_each(|va| self.hosts[host].arena.close(*va));
            for qp in users {
                self.qps[qp].bad_receives = true;
            }
        }
    }

    fn drain(&mut self, qp: usize, ns: u64) -> Check {
        let model = &mut self.qps[qp];
        if !model.is(QpState::Rts) || model.kind == QpType::XrcTarget {
            return Ok(());
        }
        model.drain = Drain::Draining;
        self.modify(qp, QpState::Sqd)?;
        let at = self.now.after_nanos(ns);
        self.event_queue.schedule(at, SimEvent::Resume { qp });
        Ok(())
    }

    /// Continues a queue pair that waits in RTR for a late connection, in SQD after
    /// a drain, or in RESET for a reconnection.
    pub(crate) fn resume(&mut self, qp: usize) -> Check {
        let again = self.now.after_nanos(self.scenario.step_ns);
        let model = &mut self.qps[qp];
        match model.state {
            Some(QpState::Rtr) => self.modify(qp, QpState::Rts),
            Some(QpState::Sqd) if model.drain == Drain::Drained => {
                model.drain = Drain::No;
                self.coverage.mark("drained and resumed");
                self.modify(qp, QpState::Rts)
            }
            // After the faults have ended, the SQ_DRAINED event resumes the queue pair.
            Some(QpState::Sqd) if model.drain == Drain::Draining && !self.healed => {
                self.event_queue.schedule(again, SimEvent::Resume { qp });
                Ok(())
            }
            Some(QpState::Reset) if model.reconnect_at.is_some_and(|at| at <= self.now) => {
                self.reconnect(qp)
            }
            _ => Ok(()),
        }
    }

    /// Resets both ends of a failed connection once they have no sends outstanding,
    /// and schedules the reconnection.
    pub(crate) fn consider_reconnecting(&mut self, qp: usize) -> Check {
        let Some(peer) = self.peer_of(qp) else {
            return Ok(());
        };
        let (one, other) = (&self.qps[qp], &self.qps[peer]);
        let broken = |state| matches!(state, Some(QpState::Err | QpState::Reset));
        let settled = one.pending() == 0 && other.pending() == 0;
        let over = one.state.is_none() || other.state.is_none() || one.reconnections > 1;
        let under_way = one.reconnect_at.is_some();
        let early = one.is(QpState::Rtr) || other.is(QpState::Rtr);
        if over || early || under_way || !settled || !(broken(one.state) || broken(other.state)) {
            return Ok(());
        }
        // Wait until every packet of the old connection has left the network.
        let wait = 3 * self.scenario.longest_straggler_ns() + 2_000 * self.scenario.service_ns;
        let paused = [qp, peer].map(|end| self.hosts[self.qps[end].host].paused_until);
        let at = self.now.max(paused[0]).max(paused[1]).after_nanos(wait);
        for end in [qp, peer] {
            self.reset(end)?;
            self.qps[end].reconnections += 1;
            self.qps[end].reconnect_at = Some(at);
        }
        self.event_queue.schedule(at, SimEvent::Resume { qp });
        Ok(())
    }

    fn reconnect(&mut self, qp: usize) -> Check {
        let Some(peer) = self.peer_of(qp) else {
            return Ok(());
        };
        if self.qps[peer].state.is_none() {
            self.qps[qp].reconnect_at = None;
            return Ok(()); // its process has died
        }
        let paused = [qp, peer].map(|end| self.hosts[self.qps[end].host].paused_until);
        let paused = paused[0].max(paused[1]);
        if self.now < paused {
            let wait = self.scenario.longest_trip_ns();
            self.event_queue
                .schedule(paused.after_nanos(wait), SimEvent::Resume { qp });
            return Ok(());
        }
        let waits = |end: &usize| self.has_waiting_run_in_memory(self.qps[*end].host);
        if self.qps[qp].kind != QpType::Uc && [qp, peer].iter().any(waits) {
            // Packets of the old connection may be among the runs. Those of UC are dropped when
            // their queue pair is reset.
            let again = self.now.after_nanos(self.scenario.step_ns);
            self.event_queue.schedule(again, SimEvent::Resume { qp });
            return Ok(());
        }
        for end in [qp, peer] {
            self.qps[end].forget();
            self.qps[end].reconnect_at = None;
            self.qps[end].setup.sq_psn = self.draw_psn();
            // Its runs may wait behind those for a host that is stopped.
            let stopped = self.hosts.iter().any(|host| self.now < host.paused_until);
            self.qps[end].cause.outage = stopped && self.scenario.local.is_some();
        }
        self.coverage.mark("connected again");
        self.connect(qp, 0)?;
        self.connect(peer, 0)
    }
}
