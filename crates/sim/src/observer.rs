//! The process around a simulated shard: passes every packet and event to the oracle.

use std::rc::Rc;

use ferroce_net::RUN_LIMITS;
use ferroce_roce::{Batch, Datagram, Decision, Event, Fault, Memory, Received, Run};
use ferroce_shard::Process;
use ferroce_wire::{Packet, completes_rc_receive, rc_acknowledge};

use crate::arena::Arena;
use crate::host::{Assembled, Outgoing};
use crate::network::InFlight;
use crate::wire_check;
use crate::world::{Check, World};

/// Observes one call into the shard of a host.
pub(crate) struct Observer<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) host: usize,
    pub(crate) arena: Rc<Arena>,
    /// The packet that the engine receives now.
    pub(crate) current: Option<InFlight>,
    /// The first violation.
    pub(crate) check: Check,
}

impl Observer<'_> {
    fn note(&mut self, check: Check) {
        if self.check.is_ok() {
            self.check = check;
        }
    }

    /// Takes a packet that the engine gets from the packets that the wire delivered. The
    /// shard must pass on each of them once, unchanged, and in order. An ACK may be late, and it may
    /// overtake messages that complete receives: a request completes before its answer.
    fn take(&mut self, datagram: &Datagram<'_>) -> Option<InFlight> {
        let inbox = Rc::clone(&self.world.hosts[self.host].inbox);
        let undelivered = &mut inbox.borrow_mut().undelivered;
        let is_it = |packet: &InFlight| {
            let flow = packet.path.flow;
            *packet.bytes == *datagram.payload
                && (flow.source, flow.destination) == (datagram.source, datagram.destination)
                && flow.source_port == datagram.source_port
        };
        let Some(at) = undelivered.iter().position(is_it) else {
            let text = wire_check::describe(datagram.payload);
            self.note(Err(format!(
                "host {}: the engine got a packet that did not arrive: {text}",
                self.host
            )));
            return None;
        };
        let taken = undelivered.remove(at)?;
        let overtaken = undelivered.iter().take(at).find(|&earlier| {
            let is_answer =
                rc_acknowledge(&taken.bytes).is_some() && completes_rc_receive(&earlier.bytes);
            rc_acknowledge(&earlier.bytes).is_none() && !is_answer && is_same_queue(earlier, &taken)
        });
        if let Some(earlier) = overtaken {
            let (later, earlier) = (taken.number, earlier.number);
            self.note(Err(format!(
                "host {}: packet {later} overtook packet {earlier} of its queue pair",
                self.host
            )));
        }
        Some(taken)
    }

    fn received(&mut self, packet: &InFlight, result: Received) {
        let checked = self.world.packet_received(self.host, packet, result);
        self.note(checked);
    }

    fn check_run(&self, batch: &Batch, run: &Run, bytes: &[u8]) -> Check {
        if run.packets.len() > RUN_LIMITS.packets || bytes.len() > RUN_LIMITS.bytes {
            return Err(format!(
                "a run of {} packets and {} bytes",
                run.packets.len(),
                bytes.len()
            ));
        }
        for index in run.packets.clone() {
            let len = batch.packet(index).wire_len();
            let last = index + 1 == run.packets.end;
            if len > run.segment || !last && len != run.segment {
                return Err(format!(
                    "a packet of {len} bytes in a run of {}",
                    run.segment
                ));
            }
        }
        Ok(())
    }
}

/// True if both packets come from one flow and go to one queue pair.
fn is_same_queue(one: &InFlight, other: &InFlight) -> bool {
    let qpn = |packet: &InFlight| Packet::parse(&packet.bytes).map(|p| p.dest_qpn()).ok();
    one.path.flow == other.path.flow && qpn(one).is_some() && qpn(one) == qpn(other)
}

impl Process for Observer<'_> {
    fn memory(&self) -> &dyn Memory {
        &*self.arena
    }

    fn report(&mut self, event: Event) {
        self.world
            .trace
            .host(self.world.now, self.host, || match &event {
                Event::Failure(failure) => format!("failure: {failure}"),
                other => format!("event: {other:?}"),
            });
        let checked = self.world.note_event(self.host, &event);
        self.note(checked);
    }

    fn receiving(&mut self, datagram: &Datagram<'_>) {
        self.current = self.take(datagram);
        if let Some(packet) = &self.current
            && packet.flaw.is_none()
        {
            self.world.expect_datagrams(self.host, packet, false);
        }
    }

    fn decided(&mut self, decisions: &[(u32, Decision)]) {
        for (qpn, decision) in decisions {
            let now = self.world.now;
            let text = || format!("decision: qp {qpn:#08x}: {decision}");
            self.world.trace.host(now, self.host, text);
        }
    }

    fn received(&mut self, _: &Datagram<'_>, result: Received, decisions: &[(u32, Decision)]) {
        self.decided(decisions);
        if let Some(packet) = self.current.take() {
            // Before a queue pair ends it receives what has arrived. The packets that come too
            // late are dropped.
            if packet.flaw.is_none() && !matches!(result, Received::Dropped(_)) {
                self.world.expect_datagrams(self.host, &packet, true);
            }
            Observer::received(self, &packet, result);
        }
    }

    fn predicted(&mut self, run: &Datagram<'_>, segment: usize, packets: usize) {
        self.world.coverage.mark("header predicted");
        if packets > 1 {
            self.world.coverage.mark("run predicted");
        }
        let mut rest = *run;
        for _ in 0..packets {
            let Some((datagram, others)) = rest.split_first(segment) else {
                return self.note(Err("more packets were predicted than arrived".into()));
            };
            rest = others;
            if let Some(packet) = self.take(&datagram) {
                Observer::received(self, &packet, Received::Accepted);
            }
        }
    }

    fn assembled(
        &mut self,
        batch: &Batch,
        run: &Run,
        bytes: &[u8],
        faults: &[(usize, Fault)],
        _: &[(usize, String)],
    ) {
        let checked = self.check_run(batch, run, bytes);
        self.note(checked);
        let mut rest = bytes;
        for index in run.packets.clone() {
            if faults.iter().any(|(faulty, _)| *faulty == index) {
                continue;
            }
            let packet = batch.packet(index);
            let Some((own, others)) = rest.split_at_checked(packet.wire_len()) else {
                return self.note(Err("a run is shorter than its packets".into()));
            };
            rest = others;
            let out = Outgoing {
                qpn: packet.qpn(),
                path: run.path,
                bytes: own.into(),
            };
            let checked = self.world.note_sent(self.host, &out);
            self.note(checked);
            self.world.hosts[self.host].assembled.push_back(Assembled {
                qpn: out.qpn,
                bytes: out.bytes,
                may_be_dropped: false,
            });
        }
        if !rest.is_empty() {
            self.note(Err("a run is longer than its packets".into()));
        }
    }
}
