//! The network: delays, drops, duplicates, reorders and corrupts packets.
//!
//! Loss is random but bounded. The same packet of a reliable connection (the
//! same PSN to the same queue pair) is lost at most `most_losses` times. So the
//! scenario alone determines whether retries may run out. Without such a fault in
//! the scenario, the oracle treats an error completion as a violation.

use std::collections::BTreeMap;
use std::rc::Rc;

use ferroce_roce::{Path, Time};
use ferroce_wire::{Packet, Transport};

use crate::rng::{Rng, Stream};

/// The ECN bits of a packet that met congestion.
const CONGESTION_EXPERIENCED: u8 = 3;

/// The sender of packets that no host has sent.
pub(crate) const INTRUDER: usize = usize::MAX;

/// A packet in the network.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    /// Number of the packet in the run.
    pub(crate) number: u64,
    /// The host that sent it.
    pub(crate) from: usize,
    pub(crate) path: Path,
    pub(crate) ip_id: u16,
    pub(crate) bytes: Rc<[u8]>,
    /// Set if no receiver may accept the packet.
    pub(crate) flaw: Option<Flaw>,
    /// Lost `most_losses` times already: it must arrive.
    pub(crate) protected: bool,
}

/// The reason why a receiver must drop a packet.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    /// Bits are changed or missing.
    Corrupted,
    /// The ICRC is right, but the sender, the partition or the addresses are not.
    Forged,
}

/// Delays and fault probabilities of one direction between two hosts.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) latency_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    /// Upper bound of a duplicate's additional delay.
    pub(crate) straggle_ns: u64,
    pub(crate) corrupt: f64,
    pub(crate) reorder: f64,
    /// Probability of an ECN congestion mark.
    pub(crate) mark: f64,
}

/// The arrival of one copy of a packet, or the reason for its loss.
pub(crate) enum Fate {
    Arrives(Time, InFlight),
    Lost(&'static str),
}

pub(crate) struct Network {
    rng: Rng,
    /// `links[from][to]`.
    links: Vec<Vec<Link>>,
    /// Arrival time of the last packet of each link. Later packets arrive after it,
    /// unless the link reorders them.
    last: Vec<Vec<Time>>,
    /// End of the current outage of each link.
    outage: Vec<Vec<Time>>,
    /// Machine of each host. A machine has a lossless loopback without delay.
    machines: Vec<usize>,
    /// Number of losses by receiver, queue pair, PSN and whether it is a response.
    losses: BTreeMap<(usize, u32, u32, bool), u8>,
    /// Most losses of the same packet.
    most_losses: u8,
    healed: bool,
}

impl Network {
    pub(crate) fn new(
        seed: u64,
        links: Vec<Vec<Link>>,
        machines: Vec<usize>,
        most_losses: u8,
    ) -> Network {
        let n = links.len();
        Network {
            rng: Rng::new(seed, Stream::Network),
            links,
            last: vec![vec![Time::ZERO; n]; n],
            outage: vec![vec![Time::ZERO; n]; n],
            machines,
            losses: BTreeMap::new(),
            most_losses,
            healed: false,
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
        self.outage
            .iter_mut()
            .flatten()
            .for_each(|until| *until = Time::ZERO);
    }

    /// Drops all packets between two hosts until the given time.
    pub(crate) fn cut(&mut self, a: usize, b: usize, until: Time) {
        self.outage[a][b] = until;
        self.outage[b][a] = until;
    }

    /// Sends a packet to the host `to`: appends an arrival or loss for each copy.
    pub(crate) fn send(
        &mut self,
        now: Time,
        mut packet: InFlight,
        to: usize,
        fates: &mut Vec<Fate>,
    ) {
        let link = self.links[packet.from][to];
        let link = if self.healed { link.healed() } else { link };
        if now < self.outage[packet.from][to] {
            fates.push(Fate::Lost("the link is down"));
            return;
        }
        if self.machines[packet.from] == self.machines[to] {
            fates.push(Fate::Arrives(now, packet));
            return;
        }
        packet.protected = self.is_protected(to, &packet);
        if !packet.protected && self.rng.chance(link.loss) {
            self.count_loss(to, &packet);
            fates.push(Fate::Lost("lost"));
            return;
        }
        if self.rng.chance(link.duplicate) {
            let mut at = self.arrival(now, &link, packet.from, to);
            if link.straggle_ns > 0 && self.rng.chance(0.3) {
                at = at.after_nanos(self.rng.below(link.straggle_ns));
            }
            fates.push(Fate::Arrives(at, packet.clone()));
        }
        if self.rng.chance(link.mark) {
            packet.path.traffic_class |= CONGESTION_EXPERIENCED;
        }
        if !packet.protected && self.rng.chance(link.corrupt) {
            self.count_loss(to, &packet);
            self.corrupt(&mut packet);
        }
        let at = self.arrival(now, &link, packet.from, to);
        fates.push(Fate::Arrives(at, packet));
    }

    /// Counts a loss, also one that happens in a full receive buffer.
    pub(crate) fn count_loss(&mut self, to: usize, packet: &InFlight) {
        if let Some(key) = key(to, &packet.bytes) {
            *self.losses.entry(key).or_default() += 1;
        }
    }

    fn is_protected(&self, to: usize, packet: &InFlight) -> bool {
        let lost = key(to, &packet.bytes).and_then(|key| self.losses.get(&key));
        lost.is_some_and(|&lost| lost >= self.most_losses)
    }

    fn arrival(&mut self, now: Time, link: &Link, from: usize, to: usize) -> Time {
        let jitter = self.rng.range(0..=link.jitter_ns);
        let time = now.after_nanos(link.latency_ns + jitter);
        if self.rng.chance(link.reorder) {
            return time;
        }
        let last = &mut self.last[from][to];
        *last = time.max(last.after_nanos(1));
        *last
    }

    /// Flips up to three bits, which the ICRC always detects, or truncates the packet.
    /// The byte that the ICRC does not cover stays unchanged.
    fn corrupt(&mut self, packet: &mut InFlight) {
        const NOT_COVERED: usize = 4;
        packet.flaw = Some(Flaw::Corrupted);
        let mut bytes = packet.bytes.to_vec();
        if self.rng.chance(0.1) {
            bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
        } else {
            let at = self.rng.below(bytes.len() as u64 - 1) as usize;
            let flip = 0b1011 >> self.rng.below(4);
            bytes[if at == NOT_COVERED { at + 1 } else { at }] ^= flip;
        }
        packet.bytes = bytes.into();
    }
}

impl Link {
    /// Returns the longest delay of a packet.
    pub(crate) fn longest_ns(&self) -> u64 {
        self.latency_ns + self.jitter_ns
    }

    fn healed(self) -> Link {
        Link {
            latency_ns: self.latency_ns,
            ..Link::default()
        }
    }
}

/// Returns the identity of a packet of a reliable connection, the same for all
/// of its retransmissions.
fn key(to: usize, bytes: &[u8]) -> Option<(usize, u32, u32, bool)> {
    let packet = Packet::parse(bytes).ok()?;
    let opcode = packet.opcode();
    let reliable = matches!(opcode.transport(), Transport::Rc | Transport::Xrc);
    reliable.then(|| {
        (
            to,
            packet.dest_qpn(),
            packet.psn().value(),
            opcode.is_response(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr};
    use ferroce_wire::{Bth, Flow, HeaderBuf, Opcode, Operation, Psn};

    fn packet(psn: u32) -> InFlight {
        let opcode = Opcode::new(Transport::Rc, Operation::SendOnly).unwrap();
        let header = HeaderBuf::new(&Bth::new(opcode, 17, Psn::new(psn))).finish();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&[0; 4]);
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let flow = Flow {
            source: nowhere,
            destination: nowhere,
            source_port: 0,
        };
        InFlight {
            number: 0,
            from: 0,
            path: Path::new(flow, 0, 0),
            ip_id: 0,
            bytes: bytes.into(),
            flaw: None,
            protected: false,
        }
    }

    fn network(link: Link) -> Network {
        Network::new(1, vec![vec![link; 2]; 2], vec![0, 1], 3)
    }

    #[test]
    fn packet_is_lost_at_most_most_losses_times() {
        let mut network = network(Link {
            loss: 1.0,
            ..Link::default()
        });
        for psn in [1, 2] {
            let mut fates = Vec::new();
            for _ in 0..4 {
                network.send(Time::ZERO, packet(psn), 1, &mut fates);
            }
            let arrived = |fate: &Fate| matches!(fate, Fate::Arrives(..));
            assert_eq!(
                fates.iter().map(arrived).collect::<Vec<_>>(),
                [false, false, false, true]
            );
        }
    }

    #[test]
    fn jitter_without_reordering_keeps_packet_order() {
        let mut network = network(Link {
            jitter_ns: 1000,
            ..Link::default()
        });
        let mut last = Time::ZERO;
        for psn in 0..100 {
            let mut fates = Vec::new();
            network.send(Time::ZERO, packet(psn), 1, &mut fates);
            let [Fate::Arrives(at, _)] = fates[..] else {
                panic!("one packet, one arrival");
            };
            assert!(at > last);
            last = at;
        }
    }

    #[test]
    fn corruption_changes_bytes_that_the_icrc_covers() {
        let mut network = network(Link {
            corrupt: 1.0,
            ..Link::default()
        });
        for psn in 0..100 {
            let mut fates = Vec::new();
            network.send(Time::ZERO, packet(psn), 1, &mut fates);
            let Some(Fate::Arrives(_, arrived)) = fates.pop() else {
                panic!("one packet, one arrival");
            };
            assert_eq!(arrived.flaw, Some(Flaw::Corrupted));
            let genuine = packet(psn);
            assert_ne!(arrived.bytes, genuine.bytes);
            assert_eq!(
                arrived.bytes.get(4).unwrap_or(&0),
                &0,
                "not covered by the ICRC"
            );
        }
    }
}
