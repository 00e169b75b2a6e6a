//! Checks of the credits that programs on one machine share.
//!
//! The counts of a slot must say what its host really holds: unreliable packets of the same
//! machine that are sent and not yet processed.

use ferroce_shard::{Caller, packet_cost};
use ferroce_wire::is_unreliable;

use crate::network::{INTRUDER, InFlight};
use crate::world::{Check, World};

/// Deviations of a slot's counts that have a cause.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Cost of paced packets that were lost.
    lost: u64,
    /// Cost of packets that other machines sent, which no sender counts.
    foreign: u64,
    /// The host found its receive buffer empty while a run that has been counted waited.
    is_off: bool,
}

impl Ledger {
    /// Ends the checks: packets are lost without a trace.
    pub(crate) fn set_off(&mut self) {
        self.is_off = true;
    }

    /// Notes a packet that was lost on its way to the host.
    pub(crate) fn note_lost(&mut self, packet: &InFlight) {
        if is_paced(packet) {
            self.lost += cost(packet);
        }
    }

    /// Notes a packet that the host's engine received.
    pub(crate) fn note_received(&mut self, packet: &InFlight) {
        if is_unreliable(&packet.bytes) && !is_paced(packet) {
            self.foreign += cost(packet);
        }
    }
}

fn cost(packet: &InFlight) -> u64 {
    packet_cost(packet.bytes.len(), 1)
}

fn is_paced(packet: &InFlight) -> bool {
    let flow = packet.path.flow;
    let here = flow.source == flow.destination && packet.from != INTRUDER;
    is_unreliable(&packet.bytes) && here && packet.flaw.is_none()
}

impl World {
    /// Notes a turn: one that found nothing makes the owner adopt the senders' count.
    pub(crate) fn note_turn(&mut self, host: usize, caller: Caller, received: usize) {
        if received > 0 {
            return;
        }
        let waiting = self.is_sender_blocked(host);
        let ledger = &mut self.hosts[host].ledger;
        if waiting {
            ledger.is_off = true;
        } else if caller == Caller::ProgressThread && self.hosts[host].core().held_packets() == 0 {
            self.hosts[host].ledger = Ledger::default();
        }
    }

    /// Returns true if a run waits on the machine of a host: it may have been counted.
    fn is_sender_blocked(&self, host: usize) -> bool {
        let machine = self.scenario.machines[host];
        (0..self.hosts.len())
            .filter(|&other| self.scenario.machines[other] == machine)
            // A run may be charged before the wire has room for it.
            .any(|other| self.hosts[other].has_waiting_runs())
    }

    /// Compares the counts of all slots on a host's machine with the packets there.
    pub(crate) fn check_credits(&self, host: usize) -> Check {
        if self.scenario.receive_buffer == 0 || self.is_sender_blocked(host) {
            return Ok(());
        }
        let machine = self.scenario.machines[host];
        for (index, side) in self.hosts.iter().enumerate() {
            if self.scenario.machines[index] != machine || side.ledger.is_off || side.is_dead {
                continue;
            }
            let ends = self.ends_of(index);
            let in_memory: Vec<InFlight> = ends.iter().flat_map(|end| end.unread()).collect();
            let inbox = side.inbox.borrow();
            let packets = inbox.waiting.iter().chain(&inbox.undelivered);
            let packets = packets.chain(&in_memory);
            let inside: u64 = packets.filter(|packet| is_paced(packet)).map(cost).sum();
            let counted = side.credits.outstanding(side.slot);
            let least = inside as i64 - side.ledger.foreign as i64;
            let most = inside + side.ledger.lost;
            if counted < least || counted > most as i64 {
                return Err(format!(
                    "the credits say that host {index} holds {counted} bytes, but it holds {inside}"
                ));
            }
        }
        Ok(())
    }
}
