//! Hosts that share memory: their channels, their sleep and their death.

use std::rc::Rc;

use ferroce_net::local::Endpoint;
use ferroce_net::slot_of_qpn;
use ferroce_roce::QpType;

use super::channel::SimEnd;
use crate::event_queue::SimEvent;
use crate::host::Host;
use crate::world::{Check, World};

/// Longest time until a thread runs that was woken.
const LONGEST_WAKEUP_NS: u64 = 20_000;
/// Longest time until the route of a datagram is found.
const LONGEST_SEARCH_NS: u64 = 60_000;

/// A channel between two hosts, or from a host to itself.
pub(crate) struct OpenChannel {
    /// The hosts, and their ends. An intruder has no host.
    pub(crate) ends: Vec<(Option<usize>, Rc<SimEnd>)>,
}

impl World {
    /// Returns the ends of a host.
    pub(crate) fn ends_of(&self, host: usize) -> Vec<Rc<SimEnd>> {
        let ends = self.channels.iter().flat_map(|channel| &channel.ends);
        let own = ends.filter(|(owner, _)| *owner == Some(host));
        own.map(|(_, end)| Rc::clone(end)).collect()
    }

    /// Returns true if a host may reach another one in memory: both are programs of one machine.
    fn may_share_memory(&self, host: usize, peer: usize) -> bool {
        let machines = &self.scenario.machines;
        let alive = !self.hosts[host].is_dead && !self.hosts[peer].is_dead;
        self.scenario.local.is_some() && machines[host] == machines[peer] && alive
    }

    /// Returns true if a host has a channel to another one, or gets one now.
    pub(crate) fn reaches_in_memory(&mut self, host: usize, peer: usize) -> bool {
        let Some(chance) = self.scenario.local.map(|local| local.in_memory) else {
            return false;
        };
        if !self.may_share_memory(host, peer) || !self.local_rng.chance(chance) {
            return false;
        }
        let slot = self.hosts[peer].slot;
        let ends = self.ends_of(host);
        let mut open = ends.iter().filter(|end| end.peer() == slot);
        if open.any(|end| !end.is_gone()) {
            return true;
        }
        // ferroced introduces the two. An end that is closed is forgotten first.
        self.forget_closed(host);
        self.open_channel(host, peer);
        true
    }

    fn open_channel(&mut self, host: usize, peer: usize) {
        self.trace
            .line(self.now, || format!("hosts {host} and {peer} share memory"));
        let [one, other] = [host, peer].map(|host| &self.hosts[host]);
        let ends: Vec<(usize, Rc<SimEnd>)> = match host == peer {
            true => vec![(host, SimEnd::to_itself(one.slot, &one.process))],
            false => {
                let slots = [one.slot, other.slot];
                let ends = SimEnd::pair(slots, [&one.process, &other.process], [None, None]);
                [host, peer].into_iter().zip(ends).collect()
            }
        };
        for (host, end) in &ends {
            self.add_end(*host, end);
        }
        let ends = ends.into_iter().map(|(host, end)| (Some(host), end));
        self.channels.push(OpenChannel {
            ends: ends.collect(),
        });
    }

    /// Adds an end to the wire of a host, and wakes its progress thread.
    pub(super) fn add_end(&mut self, host: usize, end: &Rc<SimEnd>) {
        let wire = self.hosts[host].core_mut().wire_mut();
        wire.local.add(Rc::clone(end));
        wire.outbox.borrow_mut().local.add(Rc::clone(end));
        self.wake(host);
    }

    /// Forgets closed channels, and the routes through them, as devices do.
    fn forget_closed(&mut self, host: usize) {
        let ends = self.ends_of(host);
        for end in ends.iter().filter(|end| end.is_gone()) {
            end.close();
            end.forget();
            self.hosts[host].ledger.set_off();
        }
        let open: Vec<u8> = ends
            .iter()
            .filter(|end| !end.is_closed())
            .map(Endpoint::peer)
            .collect();
        let core = self.hosts[host].core_mut();
        core.wire_mut().local.remove_closed();
        core.wire().outbox.borrow_mut().local.remove_closed();
        let is_reached = |qpn| open.contains(&slot_of_qpn(qpn));
        core.engine.forget_datagram_routes(is_reached);
    }

    /// Checks that no channel was forgotten with packets in it, and forgets those that were.
    pub(crate) fn check_forgotten(&mut self, host: usize) -> Check {
        if self.channels.is_empty() {
            return Ok(());
        }
        let wire = self.hosts[host].core().wire();
        let kept: Vec<*const SimEnd> = wire.local.ends().map(Rc::as_ptr).collect();
        for end in self.ends_of(host) {
            if kept.contains(&Rc::as_ptr(&end)) {
                continue;
            }
            if end.has_unread() && !end.channel.is_sabotaged.get() {
                let left = end.unread().len();
                return Err(format!(
                    "host {host} has forgotten a channel with {left} packets of slot {}",
                    end.peer()
                ));
            }
            end.stop_reading();
            let gone = |ends: &OpenChannel| ends.ends.iter().all(|(_, end)| end.is_deaf());
            self.channels.retain(|channel| !gone(channel));
        }
        Ok(())
    }

    /// Ends the sleep of a host's progress thread.
    pub(crate) fn end_sleep(&mut self, host: usize) {
        let mut closed = false;
        for end in self.ends_of(host) {
            end.disarm();
            closed |= end.take_wakeups();
        }
        if closed {
            self.forget_closed(host);
        }
    }

    /// Prepares the sleep of a host's progress thread. Returns false if it must not sleep.
    pub(crate) fn begin_sleep(&mut self, host: usize) -> bool {
        let ends = self.ends_of(host);
        let wire = self.hosts[host].core().wire();
        let _again_later = wire.outbox.borrow_mut().local.shrink();
        for end in ends.iter().filter(|end| !end.is_closed()) {
            end.arm();
            // The run is tried again at its deadline: the thread was awake when the room came.
            if end.has_new_room() {
                end.end_wait();
            }
        }
        let packet = self.hosts[host].core().wire().local.has_packet();
        !packet && !ends.iter().any(|end| end.is_readable())
    }

    /// Schedules a turn of a host's progress thread.
    pub(crate) fn wake(&mut self, host: usize) {
        if self.hosts[host].serving {
            return;
        }
        self.hosts[host].serving = true;
        let ns = self.local_rng.range(1..=LONGEST_WAKEUP_NS);
        let at = self.now.after_nanos(ns);
        self.event_queue.schedule(at, SimEvent::Serve { host });
    }

    /// Wakes hosts after an event, and buries those that have died. Checks that no host sleeps
    /// while there is something to do.
    pub(crate) fn after_event(&mut self) -> Check {
        if self.scenario.local.is_none() {
            return Ok(());
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].process.is_dead() && !self.hosts[host].is_dead {
                self.bury(host)?;
            }
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_dead || self.hosts[host].serving {
                continue;
            }
            let ends = self.ends_of(host);
            if ends.iter().any(|end| end.is_readable()) {
                self.coverage.mark("host woken by memory");
                self.wake(host);
                continue;
            }
            self.check_sleep(host, &ends)?;
        }
        Ok(())
    }

    /// Checks that a host which sleeps has neither a packet nor room that it waits for.
    fn check_sleep(&self, host: usize, ends: &[Rc<SimEnd>]) -> Check {
        let mut honest = ends
            .iter()
            .filter(|end| !end.channel.is_sabotaged.get() && !end.is_closed());
        if let Some(end) = honest.clone().find(|end| end.has_unread()) {
            return Err(format!(
                "host {host} sleeps, but packets of slot {} wait in memory",
                end.peer()
            ));
        }
        let blocked = self.hosts[host].core().is_blocked();
        match honest.find(|end| blocked && end.has_new_room()) {
            Some(end) => Err(format!(
                "host {host} sleeps, but slot {} has made room for a run that waits",
                end.peer()
            )),
            None => Ok(()),
        }
    }

    /// Removes a host that has died. The kernel closes its sockets; its peers learn of it.
    fn bury(&mut self, host: usize) -> Check {
        self.trace
            .host(self.now, host, || "the process is dead".into());
        self.coverage.mark("process died");
        // Messages that it has acknowledged have completed.
        self.poll_host(host)?;
        let ends = self.ends_of(host);
        for qp in 0..self.qps.len() {
            if self.qps[qp].host != host || self.qps[qp].state.is_none() {
                continue;
            }
            self.by_number.remove(&(host, self.qps[qp].qpn));
            self.qps[qp].state = None;
            self.qps[qp].todo = 0;
            self.qps[qp].datagrams.clear();
            self.qps[qp].groups.clear();
            if let Some(peer) = self.peer_of(qp) {
                self.qps[peer].reconnect_at = None;
            }
            self.discard_work(qp);
        }
        for end in &ends {
            let rest = self.other_end(end).is_some_and(|other| other.has_unread());
            if rest {
                self.coverage.mark("dead process left packets");
            }
            end.hang_up();
            end.stop_reading();
        }
        let side = &mut self.hosts[host];
        side.is_dead = true;
        side.serving = false;
        side.sending = None;
        side.blocked = false;
        side.assembled.clear();
        let mut inbox = side.inbox.borrow_mut();
        inbox.waiting.clear();
        inbox.undelivered.clear();
        Ok(())
    }

    fn other_end(&self, end: &Rc<SimEnd>) -> Option<&Rc<SimEnd>> {
        let mut ends = self.channels.iter().flat_map(|channel| &channel.ends);
        let is_other = |other: &SimEnd| {
            Rc::ptr_eq(&other.channel, &end.channel) && !std::ptr::eq(other, Rc::as_ptr(end))
        };
        ends.find(|(_, other)| is_other(other)).map(|(_, end)| end)
    }

    /// Lets a host die at one of its next accesses to shared memory.
    pub(crate) fn doom(&mut self, host: usize, accesses: u64) -> Check {
        self.hosts[host].process.die_after(accesses);
        Ok(())
    }

    /// Ends the faults of the local wire.
    pub(crate) fn heal_local(&mut self) -> Check {
        for host in 0..self.hosts.len() {
            if self.hosts[host].process.is_doomed() {
                self.hosts[host].process.die();
            }
        }
        self.after_event()
    }

    /// Closes the channel between two hosts, or lets one of them publish a wrong position.
    pub(crate) fn disturb_channel(&mut self, host: usize, sabotages: bool) -> Check {
        let ends = self.ends_of(host);
        let to_others = |end: &&Rc<SimEnd>| !end.is_gone() && end.peer() != self.hosts[host].slot;
        let Some(end) = ends.iter().find(to_others) else {
            return Ok(());
        };
        let peer = usize::from(end.peer() - 1);
        if peer >= self.hosts.len() || self.hosts[host].is_dead {
            return Ok(());
        }
        let Some(other) = self.other_end(end).map(Rc::clone) else {
            return Ok(());
        };
        self.trace.line(self.now, || {
            format!("the channel of hosts {host} and {peer} ends")
        });
        if sabotages {
            self.coverage.mark("channel sabotaged");
            if end.sabotage(&other, &mut self.local_rng) {
                other.must_close();
            }
            end.wake();
        } else {
            self.coverage.mark("channel closed");
            end.close();
        }
        for host in [host, peer] {
            self.hosts[host].ledger.set_off();
        }
        self.excuse(|world, qp| {
            let far = world.peer_of(qp).map(|other| world.qps[other].host);
            let near = world.qps[qp].host;
            far.is_some_and(|far| (near, far) == (host, peer) || (near, far) == (peer, host))
        });
        self.after_event()
    }

    /// Lets the retries of some queue pairs run out.
    pub(crate) fn excuse(&mut self, which: impl Fn(&World, usize) -> bool) {
        for qp in 0..self.qps.len() {
            if which(self, qp) {
                self.qps[qp].cause.outage = true;
            }
        }
    }

    /// Returns the number of packets of other hosts that wait in memory.
    pub(crate) fn unread_of_others(&self, host: usize) -> usize {
        let slot = self.hosts[host].slot;
        let ends = self.ends_of(host).into_iter();
        let others = ends.filter(|end| end.peer() != slot && !end.channel.is_sabotaged.get());
        others.map(|end| end.unread().len()).sum()
    }

    /// Returns true if runs of a host wait for room in memory.
    pub(crate) fn has_waiting_run_in_memory(&self, host: usize) -> bool {
        self.scenario.local.is_some() && self.hosts[host].has_waiting_runs()
    }

    /// Returns true if no packet waits in memory.
    pub(crate) fn are_channels_empty(&self) -> bool {
        let mut ends = self.channels.iter().flat_map(|channel| &channel.ends);
        !ends.any(|(_, end)| end.has_unread() && !end.channel.is_sabotaged.get())
    }

    /// Checks the channels at the end of a run.
    pub(crate) fn check_channels(&self) -> Check {
        for host in self
            .hosts
            .iter()
            .filter(|host| !host.is_dead && !host.serving)
        {
            let wire = host.core().wire();
            if wire.budget == 0 {
                continue; // the next turn finds that the channel is empty
            }
            let mut ends = wire.local.ends();
            let is_of_dead =
                |peer: &Host, end: &Rc<SimEnd>| peer.is_dead && peer.slot == end.peer();
            if let Some(end) = ends.find(|end| self.hosts.iter().any(|peer| is_of_dead(peer, end)))
            {
                let (slot, dead) = (host.slot, end.peer());
                return Err(format!(
                    "slot {slot} keeps its channel to slot {dead}, which is dead"
                ));
            }
        }
        for (host, end) in self.channels.iter().flat_map(|channel| &channel.ends) {
            let Some(host) = host.filter(|&host| !self.hosts[host].is_dead) else {
                continue;
            };
            if end.is_overdue() {
                return Err(format!(
                    "host {host} keeps a channel with an impossible position of slot {}",
                    end.peer()
                ));
            }
        }
        Ok(())
    }

    /// Names the wire of a connected queue pair that moves to RTR, as devices do.
    pub(crate) fn choose_wire(&mut self, qp: usize) -> Check {
        let Some(peer) = self.peer_of(qp).map(|peer| self.qps[peer].host) else {
            return Ok(());
        };
        let (host, qpn) = (self.qps[qp].host, self.qps[qp].qpn);
        if self.scenario.local.is_none() {
            return Ok(());
        }
        let in_memory = self.reaches_in_memory(host, peer);
        let slot = self.hosts[peer].slot;
        let engine = self.hosts[host].engine_mut();
        let set = engine.set_local_peer(qpn, slot, in_memory);
        set.map_err(|e| format!("set_local_peer: {e}"))?;
        let ends = self.ends_of(host);
        let mut to_peer = ends.iter().filter(|end| end.peer() == slot);
        if to_peer.any(|end| end.channel.is_sabotaged.get() && !end.is_closed()) {
            // The channel ends once this host notices.
            self.qps[qp].cause.outage = true;
        }
        if in_memory {
            self.coverage.mark(match self.qps[qp].kind {
                QpType::Rc => "RC through memory",
                QpType::Uc => "UC through memory",
                _ => "XRC through memory",
            });
        }
        Ok(())
    }

    /// Finds the route of datagrams to a queue pair of this machine: now, or after a while.
    pub(crate) fn seek_route(&mut self, host: usize, qpn: u32) {
        self.hosts[host].engine_mut().seek_datagram_route(qpn);
        let ns = match self.local_rng.chance(0.5) {
            true => 0,
            false => self.local_rng.range(1..=LONGEST_SEARCH_NS),
        };
        let at = self.now.after_nanos(ns);
        self.event_queue.schedule(at, SimEvent::Route { host, qpn });
    }

    /// Sets the route of datagrams to a queue pair of this machine.
    pub(crate) fn set_route(&mut self, host: usize, qpn: u32) -> Check {
        let slot = slot_of_qpn(qpn);
        let peer = self.hosts.iter().position(|peer| peer.slot == slot);
        let in_memory = peer.is_some_and(|peer| self.reaches_in_memory(host, peer));
        if in_memory {
            self.coverage.mark("UD through memory");
        }
        let now = self.now;
        let engine = self.hosts[host].engine_mut();
        engine.set_datagram_route(now, qpn, in_memory);
        self.after_engine(host)
    }
}
