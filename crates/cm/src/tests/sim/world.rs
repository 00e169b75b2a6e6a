//! One run: hosts, faults, and a virtual clock that jumps to the next event.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::collections::BTreeMap;

use super::network::{Faults, Network, Packet};
use super::oracle::{Oracle, Outcome};
use super::program::{Action, Program};
use super::rng::Rng;
use crate::bugs::Bug;
use crate::{Address, Cm, Config, ListenAddress, MAD_LEN, Mad, PortSpace, Time};

/// The counts of a run, which are equal for equal seeds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Run {
    pub(super) steps: u64,
    pub(super) ended: Time,
    pub(super) attempts: u64,
    pub(super) connected: u64,
    pub(super) rejected: u64,
    pub(super) unreachable: u64,
    pub(super) data_before_rtu: u64,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) forged: u64,
    pub(super) resolved: u64,
}

impl Run {
    pub(super) fn add(&mut self, other: &Run) {
        self.steps += other.steps;
        self.ended += other.ended;
        self.attempts += other.attempts;
        self.connected += other.connected;
        self.rejected += other.rejected;
        self.unreachable += other.unreachable;
        self.data_before_rtu += other.data_before_rtu;
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.forged += other.forged;
        self.resolved += other.resolved;
    }
}

pub(super) struct Host {
    pub(super) cm: Cm,
    pub(super) ip: IpAddr,
    pub(super) next_qpn: u32,
    paused_until: Time,
}

/// A scheduled event of the simulation.
enum Item {
    Packet(usize, Address, Box<[u8; MAD_LEN]>),
    Action(usize, Action),
    Pause(usize, Duration),
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) hosts: Vec<Host>,
    pub(super) oracle: Oracle,
    pub(super) rng: Rng,
    pub(super) run: Run,
    /// True if programs take long to decide.
    pub(super) slow: bool,
    network: Network,
    agenda: BTreeMap<(Time, u64), Item>,
    sequence: u64,
    trace: bool,
}

/// The connection service of all hosts.
pub(super) const SERVICE: u64 = PortSpace::Tcp.service_id(7174);
/// The datagram service of all hosts.
pub(super) const DATAGRAMS: u64 = PortSpace::Udp.service_id(7174);
/// A service without a listener.
pub(super) const NO_LISTENER: u64 = PortSpace::Tcp.service_id(9);

/// Limits that no correct run reaches. A run that exceeds them hangs.
const MAX_STEPS: u64 = 50_000;
const MAX_TIME: Time = Duration::from_secs(20_000);

pub(super) fn run(seed: u64, bug: Option<Bug>, trace: bool) -> Result<Run, String> {
    let mut world = World::new(seed, bug);
    world.trace = trace;
    while world.step()? {}
    world.finish()
}

/// A loss percentage at which every connection can still be established.
const LIGHT_LOSS: u64 = 10;

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut rng = Rng::new(seed, 1);
        let cut = rng.percent(15).then(|| rng.micros(0, 3_000_000));
        // A message is sent at most 16 times. An answer may need (losses + 1)^2 of these
        // transmissions, and so may each MRA; a pause needs one per four seconds.
        // A REP is sent only five times until the peer answers it. So where no answer may be
        // lost for good, a message is lost at most once in a row.
        let slow = rng.percent(40);
        let loss = [0, LIGHT_LOSS, 30, 50][rng.below(4) as usize];
        let faults = Faults {
            losses: if slow || loss == LIGHT_LOSS { 1 } else { 2 },
            loss,
            repeat: [0, 10, 30][rng.below(3) as usize],
            late: [0, 20, 60][rng.below(3) as usize],
            forge: [0, 0, 30][rng.below(3) as usize],
            cut,
        };
        let count = 2 + rng.below(3) as usize;
        let hosts = (0..count).map(|number| host(number, &mut rng, bug));
        let mut world = World {
            now: Time::ZERO,
            hosts: hosts.collect(),
            oracle: Oracle::default(),
            network: Network::new(seed, faults),
            agenda: BTreeMap::new(),
            sequence: 0,
            trace: false,
            run: Run::default(),
            slow,
            rng,
        };
        world.oracle.may_lose_contact = cut.is_some();
        world.oracle.may_lose_answers = slow || faults.loss > LIGHT_LOSS;
        world.draw_plans();
        world
    }

    fn draw_plans(&mut self) {
        let hosts = self.hosts.len() as u64;
        for _ in 0..1 + self.rng.below(10) {
            let from = self.rng.below(hosts) as usize;
            let to = self.rng.below(hosts) as usize;
            let after = self.rng.micros(0, 2_000_000);
            let action = match self.rng.percent(12) {
                true => Action::SidrRequest { to },
                false => Action::Connect { to },
            };
            self.plan(after, from, action);
        }
        for _ in 0..self.rng.below(3) {
            let host = self.rng.below(hosts) as usize;
            let after = self.rng.micros(0, 8_000_000);
            let longest = if self.slow { 4_000_000 } else { 10_000_000 };
            let long = self.rng.micros(1_000, longest);
            self.schedule(self.now + after, Item::Pause(host, long));
        }
    }

    pub(super) fn plan(&mut self, after: Duration, host: usize, action: Action) {
        self.schedule(self.now + after, Item::Action(host, action));
    }

    fn schedule(&mut self, at: Time, item: Item) {
        self.agenda.insert((at, self.sequence), item);
        self.sequence += 1;
    }

    /// Processes the next event. Returns false if there is none.
    fn step(&mut self) -> Result<bool, String> {
        let timer = |h: &Host| h.cm.next_timeout().map(|t| t.max(h.paused_until));
        let timer = self
            .hosts
            .iter()
            .enumerate()
            .filter_map(|(n, h)| Some((timer(h)?, n)))
            .min();
        let item = self.agenda.first_key_value().map(|((time, _), _)| *time);
        self.run.steps += 1;
        if self.run.steps > MAX_STEPS || self.now > MAX_TIME {
            return Err(format!("still busy at {:?}", self.now));
        }
        let host = match (item, timer) {
            (None, None) => return Ok(false),
            // Packets that have arrived are received before timers are handled.
            (Some(at), t) if t.is_none_or(|(t, _)| at <= t) => {
                let ((_, _), item) = self.agenda.pop_first().expect("there is one");
                self.now = self.now.max(at);
                self.process(item)?
            }
            (_, Some((at, host))) => {
                self.now = self.now.max(at);
                let now = self.now;
                self.hosts[host].cm.handle_timeout(now);
                host
            }
            (Some(_), None) => unreachable!("the item is due before any timer"),
        };
        self.flush(host)?;
        Ok(true)
    }

    fn process(&mut self, item: Item) -> Result<usize, String> {
        let host = match &item {
            Item::Packet(host, ..) | Item::Action(host, _) | Item::Pause(host, _) => *host,
        };
        let until = self.hosts[host].paused_until;
        if until > self.now {
            self.schedule(until, item);
            return Ok(host);
        }
        match item {
            Item::Packet(host, address, mad) => {
                self.run.delivered += 1;
                let now = self.now;
                let result = self.hosts[host].cm.receive(now, address, &mad[..]);
                self.trace(host, || format!("receives {} {result:?}", describe(&mad)));
            }
            Item::Action(host, action) => {
                self.trace(host, || format!("does {action:?}"));
                self.act(host, action)?;
            }
            Item::Pause(host, long) => self.hosts[host].paused_until = self.now + long,
        }
        Ok(host)
    }

    /// Sends the messages of a host and handles its events.
    fn flush(&mut self, host: usize) -> Result<(), String> {
        loop {
            while let Some(transmit) = self.hosts[host].cm.poll_transmit() {
                let from = transmit.address;
                self.trace(host, || {
                    format!("sends {} to {}", describe(&transmit.mad), from.remote)
                });
                for packet in self.network.send(self.now, from, &transmit.mad) {
                    self.schedule_packet(packet);
                }
            }
            match self.hosts[host].cm.poll_event() {
                Some(event) => {
                    self.trace(host, || format!("gets event {event:?}"));
                    self.handle_event(host, event)?;
                }
                None => return Ok(()),
            }
        }
    }

    fn trace(&self, host: usize, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>12?} host {host} {}", self.now, text());
        }
    }

    fn schedule_packet(&mut self, packet: Packet) {
        let to = packet.address.local;
        if let Some(host) = self.hosts.iter().position(|h| h.ip == to) {
            let item = Item::Packet(host, packet.address, Box::new(packet.mad));
            self.schedule(packet.arrives, item);
        }
    }

    fn finish(mut self) -> Result<Run, String> {
        self.oracle.judge()?;
        for (number, host) in self.hosts.iter().enumerate() {
            if !host.cm.is_idle() {
                return Err(format!("host {number} has state left: {:?}", host.cm));
            }
        }
        let count = |outcome: fn(Outcome) -> bool| {
            let ended = |a: &&super::oracle::Attempt| a.active.outcome.is_some_and(outcome);
            self.oracle.attempts.iter().filter(ended).count() as u64
        };
        self.run.connected = count(|o| o == Outcome::Connected);
        self.run.rejected = count(|o| matches!(o, Outcome::Rejected(_)));
        self.run.unreachable = count(|o| o == Outcome::Unreachable);
        self.run.attempts = self.oracle.attempts.len() as u64;
        self.run.lost = self.network.lost;
        self.run.repeated = self.network.repeated;
        self.run.forged = self.network.forged;
        self.run.ended = self.now;
        Ok(self.run)
    }
}

/// Returns the name and the IDs of a message.
fn describe(mad: &[u8; MAD_LEN]) -> String {
    let message = Mad::decode(mad).expect("we sent it").message;
    let name = format!("{message:?}");
    let name = name.split('(').next().unwrap_or_default().to_owned();
    format!("{name} {:02x?} {:02x?}", &mad[24..28], &mad[28..32])
}

fn host(number: usize, rng: &mut Rng, bug: Option<Bug>) -> Host {
    let mut cm = Cm::new(Config::new(0x5254_0000 + number as u64), rng.bytes());
    cm.bug = bug;
    for service in [SERVICE, DATAGRAMS] {
        cm.listen(service, ListenAddress::Any, 64).unwrap();
    }
    Host {
        cm,
        ip: Ipv4Addr::new(198, 51, 100, 11 + number as u8).into(),
        next_qpn: 0x100,
        paused_until: Time::ZERO,
    }
}
