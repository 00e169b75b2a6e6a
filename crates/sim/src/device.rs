//! The device of a host: turns of its shard, and timers.

use ferroce_net::slot_of_qpn;
use ferroce_roce::{Drop, QpState, Received, Time};
use ferroce_shard::{CREDIT_PATIENCE_NS, Caller, UNMATCHED_PATIENCE_NS};

use crate::event_queue::SimEvent;
use crate::host::{Assembled, SimCore, SimSending};
use crate::network::InFlight;
use crate::observer::Observer;
use crate::sim_wire::{Delivery, SentPacket};
use crate::wire_check;
use crate::world::{Check, World};

/// A turn with this many datagrams is part of a stream.
const STREAM: usize = 8;
/// Longest time in which a thread sends outside the shard.
const LONGEST_SEND_NS: u64 = 20_000;
/// Longest time that a shard may defer work.
const LONGEST_DEFERRAL_NS: u64 = 200_000;

impl World {
    /// Does a turn that receives one packet of the receive buffer, or several.
    pub(crate) fn serve(&mut self, host: usize) -> Check {
        let burst = match self.device_rng.below(10) {
            0..=4 => 1,
            5..=7 => self.device_rng.range(2..=16),
            _ => u64::MAX,
        };
        let side = &self.hosts[host];
        let caller = match self.device_rng.chance(side.polls) {
            true => Caller::Poller,
            false if side.streams && self.device_rng.chance(0.5) => Caller::Stream,
            false if self.device_rng.chance(0.2) => Caller::ExpectsPost,
            false => Caller::ProgressThread,
        };
        self.end_sleep(host);
        let taken = self.turn(host, caller, burst as usize)?;
        let packets = !self.hosts[host].inbox.borrow().waiting.is_empty();
        let busy = packets || !self.begin_sleep(host);
        self.hosts[host].serving = busy;
        if busy {
            let ns = self.scenario.service_ns * (taken as u64).max(1);
            let at = self.now.after_nanos(ns);
            self.event_queue.schedule(at, SimEvent::Serve { host });
        }
        Ok(())
    }

    /// Does a turn of a host's shard, which receives up to `budget` packets. Returns their
    /// number.
    pub(crate) fn turn(
        &mut self,
        host: usize,
        caller: Caller,
        budget: usize,
    ) -> Result<usize, String> {
        let now = self.now;
        let (received, sending) = self.with_core(host, |core, observer| {
            core.wire_mut().budget = budget;
            match caller == Caller::Poller && core.finds_nothing(now) {
                true => (0, None),
                false => core.turn(now, observer, caller),
            }
        })?;
        self.send(host, sending)?;
        self.hosts[host].streams = received >= STREAM;
        if caller == Caller::Poller && received > 0 && !self.hosts[host].core().is_idle() {
            self.coverage.mark("poller deferred ACKs");
        }
        let side = &mut self.hosts[host];
        if side.core().has_unmatched() {
            side.unmatched_since.get_or_insert(now);
            self.coverage.mark("packet waited for a receive");
        } else {
            side.unmatched_since = None;
        }
        self.note_turn(host, caller, received);
        // A poller that has received something mostly comes again at once.
        if caller == Caller::Poller && received > 0 && self.device_rng.chance(0.8) {
            let at = now.after_nanos(self.device_rng.range(100..=5_000));
            self.event_queue.schedule(at, SimEvent::Poll { host });
        }
        self.settle(host)?;
        Ok(received)
    }

    /// Does a turn of a poller who finds nothing in its completion queues.
    pub(crate) fn poll_turn(&mut self, host: usize) -> Check {
        self.turn(host, Caller::Poller, usize::MAX).map(|_| ())
    }

    /// Does a turn of the progress thread at a deadline, unless an earlier one replaced it.
    pub(crate) fn timer(&mut self, host: usize, due: Time) -> Check {
        if self.hosts[host].timer != Some(due) {
            return Ok(());
        }
        self.hosts[host].timer = None;
        self.trace.host(self.now, host, || "timer".into());
        let slept = !self.hosts[host].serving;
        if slept {
            self.end_sleep(host);
        }
        self.turn(host, Caller::ProgressThread, usize::MAX)?;
        if slept && !self.begin_sleep(host) {
            self.wake(host);
        }
        Ok(())
    }

    /// Sends packets, handles events and schedules timers after a call into an engine.
    pub(crate) fn after_engine(&mut self, host: usize) -> Check {
        let now = self.now;
        let sending = self.with_core(host, |core, observer| core.begin_transmit(now, observer))?;
        self.send(host, sending)?;
        self.settle(host)
    }

    /// Sends packets that the shard has begun to send: at once, or after a time in which
    /// other threads use the shard.
    fn send(&mut self, host: usize, sending: Option<SimSending>) -> Check {
        let Some(sending) = sending else {
            return Ok(());
        };
        self.hosts[host].sending = Some(sending);
        if self.device_rng.chance(0.7) {
            return self.end_sending(host);
        }
        self.coverage.mark("thread sent outside the shard");
        let ns = self.device_rng.range(100..=LONGEST_SEND_NS);
        let at = self.now.after_nanos(ns);
        self.event_queue.schedule(at, SimEvent::Sent { host });
        Ok(())
    }

    /// Waits for the thread that sends outside the shard.
    pub(crate) fn finish_sending(&mut self, host: usize) -> Check {
        if self.hosts[host].sending.is_none() || self.hosts[host].is_dead {
            return Ok(());
        }
        self.end_sending(host)?;
        self.settle(host)
    }

    fn end_sending(&mut self, host: usize) -> Check {
        let (now, sending) = (self.now, self.hosts[host].sending.take());
        self.with_core(host, |core, observer| core.complete(now, observer, sending))
    }

    /// Ends a list of posts to a send queue: the shard sends them, or lets them wait.
    pub(crate) fn after_posts(&mut self, qp: usize) -> Check {
        let (now, host, qpn) = (self.now, self.qps[qp].host, self.qps[qp].qpn);
        let sending = self.with_core(host, |core, observer| core.posted(now, observer, qpn))?;
        self.send(host, sending)?;
        if self.hosts[host].core().has_waiting_posts() {
            self.coverage.mark("posts waited for more");
        }
        self.settle(host)
    }

    /// Ends a list of posted receives.
    pub(crate) fn after_receives(&mut self, host: usize) -> Check {
        self.with_core(host, |core, observer| core.report(observer))?;
        self.settle(host)
    }

    /// Calls a host's shard under observation.
    pub(crate) fn with_core<T>(
        &mut self,
        host: usize,
        call: impl FnOnce(&mut SimCore, &mut Observer<'_>) -> T,
    ) -> Result<T, String> {
        let mut core = self.hosts[host].core.take().expect("calls do not nest");
        core.wire_mut().begin(self.now);
        let mut observer = Observer {
            arena: self.hosts[host].arena.clone(),
            world: self,
            host,
            current: None,
            check: Ok(()),
        };
        let result = call(&mut core, &mut observer);
        let check = observer.check;
        self.hosts[host].core = Some(core);
        check?;
        Ok(result)
    }

    /// Passes sent packets to the network, checks the host and plans its next turn.
    fn settle(&mut self, host: usize) -> Check {
        self.check_memory(host)?;
        let outbox = std::rc::Rc::clone(&self.hosts[host].core().wire().outbox);
        let sent = core::mem::take(&mut outbox.borrow_mut().sent);
        let blocked_until = outbox.borrow().blocked_until;
        let violation = outbox.borrow_mut().violation.take();
        let violation = violation.or_else(|| self.hosts[host].inbox.borrow_mut().violation.take());
        if let Some(what) = violation {
            return Err(format!("host {host} {what}"));
        }
        for packet in &sent {
            self.take_assembled(host, packet)?;
            self.note_way(host, packet)?;
        }
        self.check_forgotten(host)?;
        if self.hosts[host].core().has_prepared() {
            self.coverage.mark("packets prepared while a thread sent");
        }
        if self.ends_of(host).iter().any(|end| end.is_full()) {
            self.coverage.mark("run waited for room in memory");
        }
        let side = &mut self.hosts[host];
        side.blocked = side.core().is_blocked();
        if side.blocked && blocked_until <= self.now && self.scenario.local.is_none() {
            self.coverage.mark("sender waited for credits");
        }
        if side.blocked {
            side.blocked_since.get_or_insert(self.now);
        } else if let Some(since) = side.blocked_since.take()
            && self.now.nanos_since(since) > CREDIT_PATIENCE_NS
        {
            self.coverage.mark("sender gave up waiting for credits");
        }
        if !side.blocked && !side.core().is_sending() {
            side.forget_dropped(|_| false);
        }
        if !side.blocked && !side.core().is_sending() && !side.assembled.is_empty() {
            let count = side.assembled.len();
            return Err(format!(
                "host {host} lost {count} packets before it sent them"
            ));
        }
        let undelivered = side.inbox.borrow().undelivered.len();
        if undelivered != side.core().held_packets() {
            return Err(format!(
                "host {host} holds {} packets, but {undelivered} have not reached its engine",
                side.core().held_packets()
            ));
        }
        self.check_deadline(host)?;
        self.check_credits(host)?;
        self.refresh_states(host)?;
        if self.hosts[host].blocked && self.now < blocked_until {
            self.event_queue
                .schedule(blocked_until, SimEvent::Serve { host });
        }
        self.plan_timer(host);
        Ok(())
    }

    /// Checks that a packet, or a run that the wire has dropped, is the next one that was
    /// assembled.
    fn take_assembled(&mut self, host: usize, packet: &SentPacket) -> Check {
        let mut rest = &packet.bytes[..];
        while !rest.is_empty() {
            let is_it = |next: &Assembled| match packet.delivery {
                Delivery::GivenUp => rest.starts_with(&next.bytes),
                _ => *next.bytes == *rest,
            };
            self.hosts[host].forget_dropped(is_it);
            let next = self.hosts[host].assembled.pop_front();
            let Some(next) = next.filter(is_it) else {
                let what = wire_check::describe(&packet.bytes);
                return Err(format!("host {host} sent out of order: {what}"));
            };
            rest = &rest[next.bytes.len()..];
        }
        Ok(())
    }

    /// Follows a sent packet to the network or into memory.
    fn note_way(&mut self, host: usize, packet: &SentPacket) -> Check {
        if let Some(intruder) = &mut self.intruder
            && packet.delivery != Delivery::GivenUp
        {
            intruder.see(&packet.path, &packet.bytes);
        }
        let (now, text) = (self.now, || wire_check::describe(&packet.bytes));
        match packet.delivery {
            Delivery::Network => return self.send_to_network(host, packet),
            Delivery::Memory(number) => {
                self.coverage.sent(&packet.bytes);
                self.trace.host(now, host, || {
                    format!("-> packet {number} in memory: {}", text())
                });
                return Ok(());
            }
            Delivery::GivenUp => self.coverage.mark("run given up in memory"),
            // The other end may have closed the channel without having read the run.
            Delivery::Dropped => self.end_credit_checks(&packet.bytes),
        }
        self.trace
            .host(now, host, || format!("dropped by the wire: {}", text()));
        Ok(())
    }

    /// Ends the checks of the credits of a packet's receiver.
    fn end_credit_checks(&mut self, bytes: &[u8]) {
        let slot = wire_check::destination(bytes).map(slot_of_qpn);
        if let Some(to) = self.hosts.iter_mut().find(|to| Some(to.slot) == slot) {
            to.ledger.set_off();
        }
    }

    /// Checks that a shard with deferred work names a time for it.
    fn check_deadline(&self, host: usize) -> Check {
        let core = self.hosts[host].core();
        let latest = self.now.after_nanos(LONGEST_DEFERRAL_NS);
        let deadline = core.next_deadline(self.now);
        match core.is_idle() || deadline.is_some_and(|deadline| deadline <= latest) {
            true => Ok(()),
            false => Err(format!(
                "host {host} has work, but its deadline is {deadline:?}"
            )),
        }
    }

    /// Checks the result of a packet that an engine received.
    pub(crate) fn packet_received(
        &mut self,
        host: usize,
        packet: &InFlight,
        result: Received,
    ) -> Check {
        self.trace.host(self.now, host, || {
            let what = wire_check::describe(&packet.bytes);
            match result {
                Received::Accepted => format!("<- packet {} {what}", packet.number),
                Received::Dropped(why) => {
                    format!("<- packet {} dropped, {why:?}: {what}", packet.number)
                }
            }
        });
        self.hosts[host].ledger.note_received(packet);
        if let Received::Dropped(why) = result {
            self.coverage.dropped(why);
            let since = self.hosts[host].unmatched_since;
            let expired = |since| self.now.nanos_since(since) >= UNMATCHED_PATIENCE_NS;
            if why == Drop::NoReceive && since.is_some_and(expired) {
                self.coverage.mark("packet without a receive expired");
            }
        }
        if let (Some(flaw), Received::Accepted) = (packet.flaw, result) {
            let (number, flow) = (packet.number, packet.path.flow);
            return Err(format!(
                "host {host} accepted packet {number} from {} to {}: {flaw:?}",
                flow.source, flow.destination
            ));
        }
        self.check_memory(host)?;
        let to = wire_check::destination(&packet.bytes)
            .and_then(|qpn| self.by_number.get(&(host, qpn)))
            .copied();
        match to {
            Some(qp) if result == Received::Accepted => self.note_received(qp, &packet.bytes),
            _ => Ok(()),
        }
    }

    /// Queries the state of each queue pair of a host and updates the model.
    pub(crate) fn refresh_states(&mut self, host: usize) -> Check {
        for qp in 0..self.qps.len() {
            if self.qps[qp].host != host || self.qps[qp].state.is_none() {
                continue;
            }
            let query = self.hosts[host].engine().query_qp(self.qps[qp].qpn);
            let state = query.map_err(|e| e.to_string())?.attr.state;
            if self.qps[qp].state != Some(state) {
                let name = self.qp_name(qp);
                self.trace
                    .line(self.now, || format!("{name} is now {state:?}"));
                self.qps[qp].state = Some(state);
                if state == QpState::Err {
                    self.stopped_receiving(qp);
                }
            }
        }
        Ok(())
    }

    fn plan_timer(&mut self, host: usize) {
        let side = &mut self.hosts[host];
        let Some(due) = side.core().next_deadline(self.now) else {
            return;
        };
        if side.timer.is_none_or(|planned| due < planned) {
            side.timer = Some(due);
            let late = match self.device_rng.chance(0.1) {
                true => self.device_rng.below(20_000),
                false => 0,
            };
            let at = due.max(self.now).after_nanos(late);
            self.event_queue.schedule(at, SimEvent::Timer { host, due });
        }
    }
}
