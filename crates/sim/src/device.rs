//! The device of a host: receives packets, sends packets and handles timers.

use ferroce_transport::{Datagram, Event, IpId, QpState, Received};
use ferroce_wire::{ICRC_LEN, icrc};

use crate::event_queue::SimEvent;
use crate::network::{Fate, InFlight};
use crate::wire_check;
use crate::world::{Check, World};

/// The partition key of a partition that no host belongs to.
const OTHER_PARTITION: u16 = 0x8001;
/// Most batches that a device sends at once. More are reported as a livelock.
const MOST_PORTIONS: u32 = 100_000;
/// Longest time that a socket buffer stays full: too short for the peers' timers
/// to expire.
const LONGEST_BLOCK_NS: u64 = 5_000;

impl World {
    /// Puts a packet into a host's receive buffer, or drops it if the buffer is full.
    pub(crate) fn arrive(&mut self, host: usize, packet: InFlight) -> Check {
        self.in_flight -= 1;
        let full = self.hosts[host].rx.len() >= self.scenario.rx_capacity;
        if full && !packet.protected && !self.healed {
            self.network.count_loss(host, &packet);
            self.trace.host(self.now, host, || {
                format!("packet {} lost: the receive buffer is full", packet.number)
            });
            return Ok(());
        }
        self.hosts[host].rx.push_back(packet);
        if !self.hosts[host].serving {
            self.hosts[host].serving = true;
            let at = self.now.after_nanos(self.scenario.service_ns);
            self.event_queue.schedule(at, SimEvent::Serve { host });
        }
        Ok(())
    }

    /// Processes one packet of the receive buffer, or several.
    pub(crate) fn serve(&mut self, host: usize) -> Check {
        let burst = match self.device_rng.chance(0.3) {
            true => self.device_rng.range(2..=16),
            false => 1,
        };
        let mut taken = 0;
        while taken < burst
            && let Some(packet) = self.hosts[host].rx.pop_front()
        {
            taken += 1;
            self.deliver(host, &packet)?;
        }
        self.after_engine(host)?;
        let busy = !self.hosts[host].rx.is_empty();
        self.hosts[host].serving = busy;
        if busy {
            let at = self.now.after_nanos(self.scenario.service_ns * taken);
            self.event_queue.schedule(at, SimEvent::Serve { host });
        }
        Ok(())
    }

    fn deliver(&mut self, host: usize, packet: &InFlight) -> Check {
        let flow = packet.path.flow;
        // The ICRC covers the IP identification. A receiver is sure to detect an
        // invalid packet only if it knows this field.
        let knows_id = flow.is_ipv4() && (packet.invalid || self.device_rng.chance(0.5));
        let datagram = Datagram {
            source: flow.source,
            destination: flow.destination,
            source_port: flow.source_port,
            traffic_class: packet.path.traffic_class,
            hop_limit: packet.path.hop_limit,
            ip_id: match knows_id {
                true => IpId::Seen(packet.ip_id),
                false => IpId::UNSEEN,
            },
            payload: &packet.bytes,
        };
        let to = wire_check::destination(&packet.bytes)
            .and_then(|qpn| self.by_number.get(&(host, qpn)))
            .copied();
        if !packet.invalid {
            self.expect_datagrams(host, packet);
        }
        let side = &mut self.hosts[host];
        let (now, memory, length) = (self.now, &side.arena, packet.bytes.len());
        let received = match side
            .engine
            .receive_predicted(now, memory, &datagram, length)
        {
            0 => side.engine.receive(now, memory, &datagram),
            _ => Received::Accepted,
        };
        self.trace.host(self.now, host, || {
            let what = wire_check::describe(&packet.bytes);
            match received {
                Received::Accepted => format!("<- packet {} {what}", packet.number),
                Received::Dropped(why) => {
                    format!("<- packet {} dropped, {why:?}: {what}", packet.number)
                }
            }
        });
        if let Received::Dropped(why) = received {
            self.coverage.dropped(why);
        }
        if packet.invalid && received == Received::Accepted {
            return Err(format!(
                "host {host} accepted the invalid packet {}",
                packet.number
            ));
        }
        self.check_memory(host)?;
        if let Some(qp) = to
            && received == Received::Accepted
        {
            self.note_received(qp, &packet.bytes)?;
        }
        self.drain_events(host)
    }

    pub(crate) fn timer(&mut self, host: usize) -> Check {
        let side = &mut self.hosts[host];
        side.timer = None;
        self.trace.host(self.now, host, || "timer".into());
        side.engine.handle_timeout(self.now);
        self.after_engine(host)
    }

    /// Sends packets, handles events and schedules timers after a call into an engine.
    pub(crate) fn after_engine(&mut self, host: usize) -> Check {
        self.drain_events(host)?;
        let mut out = Vec::new();
        let mut portions = 0;
        while self.hosts[host].transmit(self.now, &mut self.device_rng, &mut out)? {
            portions += 1;
            if portions > MOST_PORTIONS {
                return Err(format!("host {host} does not stop sending"));
            }
        }
        self.check_memory(host)?;
        for packet in &out {
            self.note_sent(host, packet)?;
            self.send_to_network(host, packet);
        }
        self.drain_events(host)?;
        self.refresh_states(host)?;
        if self.hosts[host].is_blocked() {
            let at = self
                .now
                .after_nanos(self.device_rng.range(1..=LONGEST_BLOCK_NS));
            self.event_queue.schedule(at, SimEvent::Serve { host });
        }
        self.plan_timer(host);
        Ok(())
    }

    /// Hands a packet to the network.
    fn send_to_network(&mut self, host: usize, packet: &crate::host::Outgoing) {
        let number = self.packets;
        self.packets += 1;
        self.coverage.sent(&packet.bytes);
        self.trace.host(self.now, host, || {
            format!("-> packet {number} {}", wire_check::describe(&packet.bytes))
        });
        let in_flight = InFlight {
            number,
            from: host,
            path: packet.path,
            ip_id: packet.ip_id,
            bytes: packet.bytes.clone(),
            invalid: false,
            protected: false,
        };
        let destination = packet.path.flow.destination;
        let mut fates = Vec::new();
        if self.scenario.features.strays && self.device_rng.chance(0.1) {
            self.forge(&in_flight);
        }
        for to in 0..self.hosts.len() {
            let side = &self.hosts[to];
            if side.address != destination && !side.joined.contains(&destination) {
                continue;
            }
            self.network
                .send(self.now, in_flight.clone(), to, &mut fates);
            for fate in fates.drain(..) {
                match fate {
                    Fate::Lost(why) => {
                        self.trace
                            .line(self.now, || format!("network: packet {number} {why}"));
                    }
                    Fate::Arrives(at, packet) => {
                        if packet.invalid {
                            self.trace
                                .line(self.now, || format!("network: packet {number} corrupted"));
                        }
                        self.in_flight += 1;
                        self.event_queue
                            .schedule(at, SimEvent::Arrive { host: to, packet });
                    }
                }
            }
        }
    }

    /// Sends a copy that its receiver must drop although its ICRC is right: with the
    /// key of another partition, or (for connections) from another host.
    fn forge(&mut self, genuine: &InFlight) {
        let mut forged = genuine.clone();
        let mut bytes = genuine.bytes.to_vec();
        let Some(to) = self
            .hosts
            .iter()
            .position(|h| h.address == genuine.path.flow.destination)
        else {
            return;
        };
        let connected = wire_check::is_connected(&bytes);
        if connected && self.device_rng.chance(0.5) {
            let others = (0..self.hosts.len()).filter(|&h| h != genuine.from);
            let others: Vec<usize> = others.collect();
            let from = self.device_rng.pick(&others);
            forged.path.flow.source = self.hosts[from].address;
        } else {
            bytes[2..4].copy_from_slice(&OTHER_PARTITION.to_be_bytes());
        }
        let body = bytes.len() - ICRC_LEN;
        let icrc = icrc::compute(&forged.path.flow, forged.ip_id, &bytes[..body]);
        bytes[body..].copy_from_slice(&icrc);
        forged.bytes = bytes.into();
        forged.invalid = true;
        let at = self.now.after_nanos(self.device_rng.range(1..=30_000));
        self.in_flight += 1;
        self.event_queue.schedule(
            at,
            SimEvent::Arrive {
                host: to,
                packet: forged,
            },
        );
    }

    pub(crate) fn check_memory(&mut self, host: usize) -> Check {
        match self.hosts[host].arena.take_violation() {
            Some(what) => Err(format!("host {host}: {what}")),
            None => Ok(()),
        }
    }

    fn drain_events(&mut self, host: usize) -> Check {
        while let Some(event) = self.hosts[host].engine.poll_event() {
            self.trace.host(self.now, host, || match &event {
                Event::Failure(failure) => format!("failure: {failure}"),
                other => format!("event: {other:?}"),
            });
            self.note_event(host, &event)?;
        }
        Ok(())
    }

    /// Queries the state of each queue pair of a host and updates the model.
    pub(crate) fn refresh_states(&mut self, host: usize) -> Check {
        for qp in 0..self.qps.len() {
            if self.qps[qp].host != host || self.qps[qp].state.is_none() {
                continue;
            }
            let query = self.hosts[host].engine.query_qp(self.qps[qp].qpn);
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
        let Some(due) = side.engine.next_timeout() else {
            return;
        };
        if side.timer.is_none_or(|planned| due < planned) {
            side.timer = Some(due);
            let late = match self.device_rng.chance(0.1) {
                true => self.device_rng.below(20_000),
                false => 0,
            };
            let at = due.max(self.now).after_nanos(late);
            self.event_queue.schedule(at, SimEvent::Timer { host });
        }
    }
}
