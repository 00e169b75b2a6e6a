//! The faults of a shard: a stage between the wire and the core that exists only while faults
//! are in force.
//!
//! [`Weather`] decides what happens to each packet. This module carries it out: it drops,
//! holds, repeats and changes packets on their way in ([`Inbound`]) and out ([`Outbound`]).
//!
//! Packets to send are judged when they are assembled ([`Inbound::judge`]), while the process can
//! still observe them: its captures have the fate of each packet as a comment. So one weather
//! sees the packets of both directions, and causes an event once.

use core::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use ferroce_faults::{
    Counts, Direction, Fate, Held, Plan, Provoked, Weather, answer_instead, damage,
};
use ferroce_net::{Incoming, IncomingRun, Scope, Wire};
use ferroce_roce::{Datagram, IpId, Path, Time};
use ferroce_wire::{Flow, icrc};

/// The faults of a process on a link.
#[derive(Clone, Debug)]
pub struct Faults {
    /// The rules.
    pub plan: Arc<Plan>,
    /// Counts of packets, which other shards and processes may share.
    pub counts: Arc<dyn Counts>,
    /// Senders that have the same faults.
    pub senders: Arc<dyn Senders>,
}

/// The senders that have the same faults: their packets have been judged already.
pub trait Senders: Send + Sync + Debug {
    /// Returns true if the sender of packets from this address and UDP port is one of them. The
    /// port of packets in shared memory is the sender's slot.
    fn include(&self, source: IpAddr, port: u16) -> bool;
    /// Notes that this process sends from a UDP port, or has a slot.
    fn add(&self, port: u16);
}

/// A received packet that waits.
#[derive(Debug)]
struct HeldIn {
    /// With an empty payload.
    incoming: Incoming<'static>,
    bytes: Vec<u8>,
    fate: Option<String>,
}

/// The fate of a received packet that faults do not leave alone.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Mishap<'a> {
    /// The fate in words.
    pub(crate) text: &'a str,
    /// True if the packet is lost: the engine does not get it.
    pub(crate) is_lost: bool,
}

impl<'a> Mishap<'a> {
    /// Returns the fate of a packet that is not lost.
    fn survived(text: &'a str) -> Mishap<'a> {
        let is_lost = false;
        Mishap { text, is_lost }
    }
}

/// The stage of received packets, which has the weather.
#[derive(Debug)]
pub(crate) struct Inbound {
    weather: Weather,
    senders: Arc<dyn Senders>,
    held: Held<HeldIn>,
}

impl Inbound {
    pub(crate) fn new(faults: &Faults) -> Inbound {
        let (plan, counts) = (Arc::clone(&faults.plan), Arc::clone(&faults.counts));
        Inbound {
            weather: Weather::for_packets(plan, counts),
            senders: Arc::clone(&faults.senders),
            held: Held::default(),
        }
    }

    /// Decides the fates of the packets of a run to send. Returns them, and those that the faults
    /// do not leave alone in words, by their index.
    pub(crate) fn judge(
        &mut self,
        now: Time,
        path: &Path,
        segment: usize,
        bytes: &[u8],
    ) -> (Fates, Vec<(usize, String)>) {
        let (now, peer) = (now.as_nanos(), path.flow.destination);
        let weather = &mut self.weather;
        let judge = |packet| weather.judge(now, Direction::Out, peer, packet, false);
        let fates: Fates = bytes.chunks(segment).map(judge).collect();
        if fates.iter().all(Fate::is_pass) {
            return (Fates::new(), Vec::new());
        }
        let plan = weather.plan();
        let told = fates.iter().enumerate();
        let told = told.filter_map(|(index, fate)| Some((index, fate.describe(now, plan)?)));
        let told = told.collect();
        (fates, told)
    }

    /// Receives as [`Wire::receive`] does, through the weather.
    pub(crate) fn receive<W: Wire>(
        &mut self,
        now: Time,
        wire: &mut W,
        scope: Scope,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>, Option<Mishap<'_>>),
    ) -> std::io::Result<usize> {
        let now = now.as_nanos();
        self.weather.begin(now);
        let released = self.release(now, &mut each);
        let received = wire.receive(scope, max, |run| {
            for incoming in run.datagrams() {
                self.pass(now, incoming, &mut each);
            }
        })?;
        Ok(received + released + self.release(now, &mut each))
    }

    /// Passes on the packets that are due. Returns their number.
    fn release(
        &mut self,
        now: u64,
        each: &mut impl FnMut(&IncomingRun<'_>, Option<Mishap<'_>>),
    ) -> usize {
        let mut released = 0;
        while let Some(held) = self.held.take_due(now) {
            let fate = held.fate.as_deref().map(Mishap::survived);
            deliver(held.incoming, &held.bytes, fate, each);
            released += 1;
        }
        released
    }

    fn pass(
        &mut self,
        now: u64,
        incoming: Incoming<'_>,
        each: &mut impl FnMut(&IncomingRun<'_>, Option<Mishap<'_>>),
    ) {
        let datagram = incoming.datagram;
        let judged = self.senders.include(datagram.source, datagram.source_port);
        let (peer, packet) = (datagram.source, datagram.payload);
        let fate = self.weather.judge(now, Direction::In, peer, packet, judged);
        let flow = flow_number(packet);
        if fate.is_pass() {
            deliver(incoming, packet, None, each);
            return self.held.passed(now, flow);
        }
        let text = fate.describe(now, self.weather.plan());
        let path = Flow {
            source: datagram.source,
            destination: datagram.destination,
            source_port: datagram.source_port,
        };
        let ip_id = match datagram.ip_id {
            IpId::Seen(id) | IpId::Unseen(id) => Some(id),
            IpId::InMemory => None,
        };
        let bytes = match changed(packet, &path, ip_id, &fate) {
            Some(bytes) if !fate.is_lost() => bytes,
            _ => {
                let text = text.as_deref().unwrap_or_default();
                let lost = Mishap {
                    text,
                    is_lost: true,
                };
                return deliver(incoming, packet, Some(lost), each);
            }
        };
        for _ in 0..fate.copies {
            if fate.due.is_some() || fate.behind > 0 {
                let incoming = Incoming {
                    datagram: Datagram {
                        payload: &[],
                        ..datagram
                    },
                    ifindex: incoming.ifindex,
                };
                let held = HeldIn {
                    incoming,
                    bytes: bytes.clone(),
                    fate: text.clone(),
                };
                self.held.add(now, &fate, flow, held);
            } else {
                let fate = text.as_deref().map(Mishap::survived);
                deliver(incoming, &bytes, fate, each);
                self.held.passed(now, flow);
            }
        }
    }

    /// Returns true if no packet waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the time at which a packet or an event is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let times = [self.held.next_due(), self.weather.next_timeout()];
        let next = times.into_iter().flatten().min();
        next.map(Time::from_nanos)
    }

    /// Returns the next event that the faults have caused.
    pub(crate) fn poll_event(&mut self, now: Time) -> Option<Provoked> {
        self.weather.handle_timeout(now.as_nanos());
        self.weather.poll_event()
    }
}

/// The fates of the packets of a run; empty if the faults leave all of them alone.
pub(crate) type Fates = Vec<Fate>;

/// A packet to send that waits.
#[derive(Debug)]
struct HeldOut {
    path: Path,
    bytes: Vec<u8>,
}

/// The stage of packets to send.
#[derive(Debug)]
pub(crate) struct Outbound {
    senders: Arc<dyn Senders>,
    held: Held<HeldOut>,
    /// True if the packets of a run have the identifications 0, 1, 2, ...
    numbered: bool,
}

impl Outbound {
    pub(crate) fn new(faults: &Faults, numbered: bool) -> Outbound {
        Outbound {
            senders: Arc::clone(&faults.senders),
            held: Held::default(),
            numbered,
        }
    }

    /// Notes that packets leave from a UDP port.
    pub(crate) fn bound(&self, port: u16) {
        self.senders.add(port);
    }

    /// Carries out the fates of a run, and passes to `send` what goes on now: path, bytes of each
    /// packet, and the packets. A run that the faults leave alone stays one run.
    pub(crate) fn pass(
        &mut self,
        now: Time,
        path: &Path,
        segment: usize,
        bytes: &[u8],
        fates: &[Fate],
        mut send: impl FnMut(&Path, usize, &[u8]),
    ) {
        let now = now.as_nanos();
        if fates.is_empty() {
            send(path, segment, bytes);
            for packet in bytes.chunks(segment) {
                self.held.passed(now, flow_number(packet));
            }
        } else {
            for (index, (packet, fate)) in bytes.chunks(segment).zip(fates).enumerate() {
                self.pass_alone(now, path, index as u16, packet, fate, &mut send);
            }
        }
        self.release(now, &mut send);
    }

    fn pass_alone(
        &mut self,
        now: u64,
        path: &Path,
        index: u16,
        packet: &[u8],
        fate: &Fate,
        send: &mut impl FnMut(&Path, usize, &[u8]),
    ) {
        let flow = flow_number(packet);
        // It leaves as a run of its own, whose identification is 0.
        let alone = match self.numbered && index > 0 && !path.in_memory {
            true => icrc::change_id(&path.flow, index, 0, packet).map_or_else(
                || packet.to_vec(),
                |(body, trailer)| [body, &trailer].concat(),
            ),
            false => packet.to_vec(),
        };
        let ip_id = (!path.in_memory).then_some(0);
        let Some(bytes) = changed(&alone, &path.flow, ip_id, fate) else {
            return;
        };
        for _ in 0..fate.copies {
            if fate.due.is_some() || fate.behind > 0 {
                let (path, bytes) = (*path, bytes.clone());
                self.held.add(now, fate, flow, HeldOut { path, bytes });
            } else {
                send(path, bytes.len(), &bytes);
                self.held.passed(now, flow);
            }
        }
    }

    /// Passes on the packets that are due.
    pub(crate) fn send_due(&mut self, now: Time, mut send: impl FnMut(&Path, usize, &[u8])) {
        self.release(now.as_nanos(), &mut send);
    }

    fn release(&mut self, now: u64, send: &mut impl FnMut(&Path, usize, &[u8])) {
        while let Some(HeldOut { path, bytes }) = self.held.take_due(now) {
            send(&path, bytes.len(), &bytes);
        }
    }

    /// Passes on all packets that wait: the process or the queue pair ends.
    pub(crate) fn send_all(&mut self, mut send: impl FnMut(&Path, usize, &[u8])) {
        while let Some(HeldOut { path, bytes }) = self.held.take_any() {
            send(&path, bytes.len(), &bytes);
        }
    }

    /// Returns the time at which a packet is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.held.next_due().map(Time::from_nanos)
    }
}

fn deliver(
    incoming: Incoming<'_>,
    payload: &[u8],
    fate: Option<Mishap<'_>>,
    each: &mut impl FnMut(&IncomingRun<'_>, Option<Mishap<'_>>),
) {
    let Incoming { datagram, ifindex } = incoming;
    let datagram = Datagram {
        payload,
        ..datagram
    };
    let run = IncomingRun {
        merged: Incoming { datagram, ifindex },
        segment: payload.len(),
    };
    each(&run, fate);
}

/// Returns a packet as its fate changes it. Packets in shared memory have no identification and
/// no ICRC: they are lost where a receiver would notice the damage.
fn changed(packet: &[u8], flow: &Flow, ip_id: Option<u16>, fate: &Fate) -> Option<Vec<u8>> {
    let id = ip_id.unwrap_or(0);
    let answer = fate.answer;
    let answered = answer.and_then(|answer| answer_instead(packet, flow, id, answer));
    let mut bytes = answered.unwrap_or_else(|| packet.to_vec());
    if let Some(place) = fate.damage {
        if ip_id.is_none() && !place.undetected {
            return None;
        }
        damage(&mut bytes, flow, id, place);
    }
    Some(bytes)
}

/// Returns the destination queue pair, which tells flows apart.
fn flow_number(packet: &[u8]) -> u64 {
    packet.get(5..8).map_or(0, |qpn| {
        u64::from(u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]))
    })
}
