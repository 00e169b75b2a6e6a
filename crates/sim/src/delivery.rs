//! Packets between hosts: losses, delays and copies of the network, and forged packets.

use core::net::IpAddr;

use ferroce_roce::Time;
use ferroce_wire::{ICRC_LEN, icrc};

use crate::event_queue::SimEvent;
use crate::network::{Fate, Flaw, InFlight};
use crate::sim_wire::SentPacket;
use crate::wire_check;
use crate::world::{Check, World};

/// The partition key of a partition that no host belongs to.
const OTHER_PARTITION: u16 = 0x8001;

impl World {
    /// Hands a packet to the network.
    pub(crate) fn send_to_network(&mut self, host: usize, packet: &SentPacket) -> Check {
        let number = self.packets.get();
        self.packets.set(number + 1);
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
            flaw: None,
            protected: false,
        };
        let destination = packet.path.flow.destination;
        let qpn = wire_check::destination(&packet.bytes);
        let mut fates = Vec::new();
        let forge = self.scenario.features.strays && self.device_rng.chance(0.1);
        let mut forged_before = false;
        if forge {
            forged_before = self.device_rng.chance(0.5);
            if !forged_before {
                let at = self.now.after_nanos(self.device_rng.range(1..=30_000));
                self.forge(&in_flight, at);
            }
        }
        for to in 0..self.hosts.len() {
            if !self.hosts[to].takes(destination, qpn) {
                continue;
            }
            self.network
                .send(self.now, in_flight.clone(), to, &mut fates);
            for fate in fates.drain(..) {
                match fate {
                    Fate::Lost(why) => {
                        self.hosts[to].ledger.note_lost(&in_flight);
                        self.trace
                            .line(self.now, || format!("network: packet {number} {why}"));
                    }
                    Fate::Arrives(at, packet) => {
                        if packet.flaw.is_some() {
                            self.trace
                                .line(self.now, || format!("network: packet {number} corrupted"));
                        }
                        if core::mem::take(&mut forged_before) {
                            self.forge(&in_flight, at);
                        }
                        self.schedule_arrival(to, at, packet);
                    }
                }
            }
        }
        Ok(())
    }

    /// Lets a packet arrive at a time. On one machine it arrives at once.
    fn schedule_arrival(&mut self, host: usize, at: Time, packet: InFlight) {
        if at == self.now {
            return self.arrive(host, packet);
        }
        self.in_flight += 1;
        self.event_queue
            .schedule(at, SimEvent::Arrive { host, packet });
    }

    /// Sends a copy that its receiver must drop although its ICRC is right: with the key of
    /// another partition, to a queue pair that does not exist, or (for connections) from
    /// another host.
    fn forge(&mut self, genuine: &InFlight, at: Time) {
        let mut forged = genuine.clone();
        let qpn = wire_check::destination(&genuine.bytes);
        let mut bytes = genuine.bytes.to_vec();
        let Some(to) = self
            .hosts
            .iter()
            .position(|h| h.takes(genuine.path.flow.destination, qpn))
        else {
            return;
        };
        let connected = wire_check::is_connected(&bytes);
        let addresses = self.hosts.iter().map(|host| host.address);
        let others: Vec<IpAddr> = addresses
            .filter(|&address| address != genuine.path.flow.source)
            .collect();
        if connected && !others.is_empty() && self.device_rng.chance(0.5) {
            forged.path.flow.source = self.device_rng.pick(&others);
        } else if !forged.path.flow.destination.is_multicast() && self.device_rng.chance(0.5) {
            // No queue pair of the slot has this number.
            bytes[6..8].fill(0xff);
        } else {
            bytes[2..4].copy_from_slice(&OTHER_PARTITION.to_be_bytes());
        }
        let body = bytes.len() - ICRC_LEN;
        let icrc = icrc::compute(&forged.path.flow, forged.ip_id, &bytes[..body]);
        bytes[body..].copy_from_slice(&icrc);
        forged.bytes = bytes.into();
        forged.flaw = Some(Flaw::Forged);
        self.schedule_arrival(to, at, forged);
    }

    pub(crate) fn check_memory(&mut self, host: usize) -> Check {
        match self.hosts[host].arena.take_violation() {
            Some(what) => Err(format!("host {host}: {what}")),
            None => Ok(()),
        }
    }

    /// Puts a packet into a host's receive buffer, or drops it if the buffer is full.
    pub(crate) fn arrive(&mut self, host: usize, packet: InFlight) {
        if packet.bytes.is_empty() {
            return; // the kernel delivers it, and a wire discards it
        }
        let side = &mut self.hosts[host];
        let mut inbox = side.inbox.borrow_mut();
        let full = inbox.waiting.len() >= self.scenario.rx_capacity;
        if full && !packet.protected && !self.healed {
            side.ledger.note_lost(&packet);
            self.network.count_loss(host, &packet);
            self.trace.host(self.now, host, || {
                format!("packet {} lost: the receive buffer is full", packet.number)
            });
            return;
        }
        inbox.waiting.push_back(packet);
        drop(inbox);
        if !side.serving {
            side.serving = true;
            let at = self.now.after_nanos(self.scenario.service_ns);
            self.event_queue.schedule(at, SimEvent::Serve { host });
        }
    }
}
