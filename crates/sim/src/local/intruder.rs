//! A hostile process: it has channels to hosts of a machine, and writes anything into them.
//!
//! It has a slot of its own, so no queue pair may accept a packet of it. It copies packets of
//! others, and invents some. It also writes garbage into the rings, and changes records while
//! they are read.

use core::net::IpAddr;
use std::rc::Rc;

use ferroce_net::local::Endpoint;
use ferroce_net::local::encode_record;
use ferroce_net::local::ring::{HEADER, Writer};
use ferroce_roce::Path;
use ferroce_wire::Flow;

use super::channel::SimEnd;
use super::hosts::OpenChannel;
use super::memory::{CAPACITY, SimProcess, SimRing};
use crate::event_queue::SimEvent;
use crate::rng::{Rng, Stream};
use crate::wire_check;
use crate::world::{Check, World};

/// Most packets of others that the intruder remembers.
const MOST_SEEN: usize = 16;

/// A hostile process.
pub(crate) struct Intruder {
    slot: u8,
    process: Rc<SimProcess>,
    rng: Rng,
    seed: u64,
    channels: Vec<(usize, Rc<SimEnd>, Writer<SimRing>)>,
    /// Packets of others.
    seen: Vec<(Path, Rc<[u8]>)>,
    left: u32,
}

impl Intruder {
    pub(crate) fn new(seed: u64, slot: u8) -> Intruder {
        let mut rng = Rng::new(seed, Stream::Intruder);
        Intruder {
            slot,
            process: Rc::default(),
            left: rng.range(20..=120) as u32,
            rng,
            seed,
            channels: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Remembers a packet.
    pub(crate) fn see(&mut self, path: &Path, bytes: &Rc<[u8]>) {
        if self.seen.len() < MOST_SEEN {
            self.seen.push((*path, Rc::clone(bytes)));
        } else {
            let at = self.rng.below(MOST_SEEN as u64) as usize;
            self.seen[at] = (*path, Rc::clone(bytes));
        }
    }

    /// Returns a packet that its receiver must drop.
    fn forge(&mut self, path: &Path, bytes: &[u8]) -> (Path, Vec<u8>) {
        let (mut path, mut bytes) = (*path, bytes.to_vec());
        path.in_memory = true;
        if wire_check::is_connected(&bytes) {
            // The slot of the sender is wrong. The next PSN may be the expected one.
            if self.rng.chance(0.5) && bytes.len() >= 12 {
                bytes[11] = bytes[11].wrapping_add(self.rng.range(1..=3) as u8);
            }
        } else if self.rng.chance(0.7) {
            let other: IpAddr = match path.flow.is_ipv4() {
                true => [192, 0, 2, 1].into(),
                false => [0xfd00, 0, 0, 0, 0, 0, 0xbad, 1].into(),
            };
            match self.rng.chance(0.5) {
                true => path.flow.source = other,
                false => path.flow.destination = other,
            }
        } else if bytes.len() >= 4 {
            bytes[2..4].copy_from_slice(&0x8001u16.to_be_bytes());
        }
        (path, bytes)
    }

    fn garbage(&mut self, most: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.below(most) as usize];
        self.rng.fill(&mut bytes);
        bytes
    }
}

impl World {
    /// Connects the intruder to the hosts of the first machine.
    pub(crate) fn admit_intruder(&mut self) {
        let Some(mut intruder) = self.intruder.take() else {
            return;
        };
        for host in 0..self.hosts.len() {
            let victim = &self.hosts[host];
            if self.scenario.machines[host] != 0 || victim.is_dead {
                continue;
            }
            let known = intruder.channels.iter();
            let open = |(to, end, _): &&(usize, Rc<SimEnd>, _)| *to == host && !end.is_gone();
            if known.clone().any(|channel| open(&channel)) {
                continue;
            }
            let stream = intruder.seed ^ (u64::from(intruder.left) << 40) ^ host as u64;
            let scribbler = Rng::new(stream, Stream::Intruder);
            let [own, other] = SimEnd::pair(
                [intruder.slot, victim.slot],
                [&intruder.process, &victim.process],
                [None, Some(scribbler)],
            );
            other.channel.is_sabotaged.set(true);
            let writer = Writer::new(own.outgoing().clone());
            self.add_end(host, &other);
            self.channels.push(OpenChannel {
                ends: vec![(None, Rc::clone(&own)), (Some(host), other)],
            });
            intruder.channels.retain(|(to, ..)| *to != host);
            intruder.channels.push((host, own, writer));
        }
        self.intruder = Some(intruder);
        self.schedule_intruder();
    }

    fn schedule_intruder(&mut self) {
        let Some(intruder) = &mut self.intruder else {
            return;
        };
        if intruder.left == 0 || self.healed {
            return;
        }
        intruder.left -= 1;
        let most = self.scenario.heal.as_nanos() / 100;
        let at = self.now.after_nanos(intruder.rng.range(1..=most.max(1)));
        self.event_queue.schedule(at, SimEvent::Intrude);
    }

    /// Does something hostile.
    pub(crate) fn intrude(&mut self) -> Check {
        let Some(intruder) = &mut self.intruder else {
            return Ok(());
        };
        if intruder.channels.is_empty() {
            self.schedule_intruder();
            return Ok(());
        }
        let at = intruder.rng.below(intruder.channels.len() as u64) as usize;
        let seen = match intruder.seen.is_empty() {
            true => None,
            false => {
                let at = intruder.rng.below(intruder.seen.len() as u64) as usize;
                let (path, bytes) = intruder.seen[at].clone();
                Some(intruder.forge(&path, &bytes))
            }
        };
        let victim = intruder.channels[at].0;
        let address = self.hosts[victim].address;
        let flow = Flow {
            source: address,
            destination: address,
            source_port: 0,
        };
        let garbage = intruder.garbage(300);
        let (_, end, writer) = &mut intruder.channels[at];
        let rng = &mut intruder.rng;
        let end = Rc::clone(end);
        let mut reopens = false;
        match (rng.below(12), seen) {
            (0..=5, Some((path, bytes))) => {
                let header = encode_record(&path, bytes.len());
                let _full = writer.write(header, &bytes);
            }
            (6, _) => {
                let mut header = [0; HEADER];
                rng.fill(&mut header);
                let _full = writer.write(header, &garbage);
            }
            (7, _) => {
                let segment = rng.below(64) as usize;
                let header = encode_record(&Path::new(flow, 0, 64), segment);
                let _full = writer.write(header, &garbage);
            }
            (8, _) => {
                for _ in 0..rng.range(1..=40) {
                    let header = encode_record(&Path::new(flow, 0, 64), 1);
                    let _full = writer.write(header, &garbage[..garbage.len().min(8)]);
                }
            }
            (9, _) => {
                let tail = end.outgoing().published() + rng.below(2 * CAPACITY as u64);
                end.outgoing().forge_tail(tail);
                reopens = true;
            }
            (10, _) => {
                end.incoming().forge_head(rng.u64());
                reopens = rng.chance(0.5);
            }
            (_, _) => end.outgoing().scribble(rng),
        }
        if rng.chance(0.8) {
            end.wake();
        }
        if reopens && rng.chance(0.5) {
            end.close();
        }
        self.coverage.mark("intruder wrote to memory");
        self.admit_intruder();
        self.after_event()
    }
}
