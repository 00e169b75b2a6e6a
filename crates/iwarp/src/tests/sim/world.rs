//! One run: two hosts, their connections, and the steps that move bytes.

use std::sync::Arc;

use ferroce_objects::{Access, Cq, MemRef, Mr, Pd, Regions, Srq, SrqInit, Time};

use super::arena::{Arena, BASE, REGISTERED};
use super::conn::{Conn, End};
use super::pipe::Arrival;
use super::rng::Rng;
use crate::bugs::Bug;
use crate::{Config, Engine, StreamEvent};

/// The counts of a run, which are equal for equal seeds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Run {
    pub(super) steps: u64,
    pub(super) bytes: u64,
    pub(super) established: u64,
    pub(super) faults: u64,
    pub(super) disconnects: u64,
    pub(super) sends: u64,
    pub(super) writes: u64,
    pub(super) reads: u64,
    pub(super) fences: u64,
    pub(super) invalidates: u64,
    pub(super) received: u64,
    pub(super) flushed: u64,
    pub(super) errors: u64,
    pub(super) partial_writes: u64,
    pub(super) terminates: u64,
    pub(super) timeouts: u64,
    pub(super) direct: u64,
}

impl Run {
    pub(super) fn counts(&self) -> [(&'static str, u64); 17] {
        [
            ("steps", self.steps),
            ("bytes", self.bytes),
            ("established", self.established),
            ("faults", self.faults),
            ("disconnects", self.disconnects),
            ("sends", self.sends),
            ("writes", self.writes),
            ("reads", self.reads),
            ("fences", self.fences),
            ("invalidates", self.invalidates),
            ("received", self.received),
            ("flushed", self.flushed),
            ("errors", self.errors),
            ("partial writes", self.partial_writes),
            ("terminates", self.terminates),
            ("timeouts", self.timeouts),
            ("direct placements", self.direct),
        ]
    }

    pub(super) fn add(&mut self, other: &Run) {
        self.steps += other.steps;
        self.bytes += other.bytes;
        self.established += other.established;
        self.faults += other.faults;
        self.disconnects += other.disconnects;
        self.sends += other.sends;
        self.writes += other.writes;
        self.reads += other.reads;
        self.fences += other.fences;
        self.invalidates += other.invalidates;
        self.received += other.received;
        self.flushed += other.flushed;
        self.errors += other.errors;
        self.partial_writes += other.partial_writes;
        self.terminates += other.terminates;
        self.timeouts += other.timeouts;
        self.direct += other.direct;
    }
}

/// A host.
pub(super) struct Host {
    pub(super) engine: Engine,
    pub(super) regions: Arc<Regions>,
    pub(super) pd: Arc<Pd>,
    pub(super) arena: Arena,
    pub(super) mr: Arc<Mr>,
    pub(super) send_cq: Arc<Cq>,
    pub(super) recv_cq: Arc<Cq>,
    pub(super) srq: Option<Arc<Srq>>,
    /// Receives in the shared receive queue, and messages on their way to them.
    pub(super) shared: Vec<super::conn::Receive>,
    pub(super) shared_claims: usize,
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) hosts: [Host; 2],
    pub(super) conns: Vec<Conn>,
    pub(super) rng: Rng,
    pub(super) run: Run,
    pub(super) next_id: u64,
    /// Percentage of steps that inject a fault.
    pub(super) faults: u64,
    pub(super) trace: bool,
}

/// Steps without progress after which a run hangs.
const MAX_IDLE: u64 = 600;

pub(super) fn run(seed: u64, bug: Option<Bug>, trace: bool) -> Result<Run, String> {
    let mut world = World::new(seed, bug, trace);
    let steps = 200 + world.rng.below(600);
    for _ in 0..steps {
        world.step(true)?;
    }
    world.settle("traffic")?;
    world.check_nothing_outstanding()?;
    world.disconnect_all()?;
    world.settle("closing")?;
    world.finish()
}

impl Host {
    fn new(seed: u64, first_msn: u32, bug: Option<Bug>, shared: bool) -> Host {
        let regions = Arc::new(Regions::new([seed as u8; 32]));
        let pd = regions.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let access = access | Access::MW_BIND;
        let mr = regions
            .register(&pd, MemRef::host(BASE), REGISTERED, BASE, access)
            .unwrap();
        let config = Config {
            first_msn,
            careful_start: seed & 2 != 0,
            ..Config::default()
        };
        let mut engine = Engine::new(config, regions.clone());
        engine.set_bug(bug);
        let srq = shared.then(|| {
            let sizes = SrqInit {
                max_wr: 64,
                max_sge: 2,
                xrc: None,
            };
            Srq::new(5, pd.clone(), sizes).unwrap()
        });
        Host {
            engine,
            regions,
            pd,
            arena: Arena::new(),
            mr,
            send_cq: Cq::new(1, 4000).unwrap(),
            recv_cq: Cq::new(2, 4000).unwrap(),
            srq,
            shared: Vec::new(),
            shared_claims: 0,
        }
    }
}

impl World {
    fn new(seed: u64, bug: Option<Bug>, trace: bool) -> World {
        let mut rng = Rng::new(seed);
        let first_msn = rng.pick(&[1, u32::MAX - 3, u32::MAX]);
        let shared = rng.percent(25);
        let hosts = [0, 1].map(|n| Host::new(seed + n, first_msn, bug, shared));
        let mut world = World {
            now: Time::from_nanos(1),
            hosts,
            conns: Vec::new(),
            faults: rng.pick(&[0, 0, 1, 3]),
            rng,
            run: Run::default(),
            next_id: 1,
            trace,
        };
        for _ in 0..1 + world.rng.below(3) {
            world.open_connection();
        }
        world
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn trace(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>6} {}", self.run.steps, text());
        }
    }

    /// Does one random thing.
    fn step(&mut self, posting: bool) -> Result<(), String> {
        self.run.steps += 1;
        self.now = self.now.after_nanos(self.rng.below(10_000));
        let conn = self.rng.index(self.conns.len());
        let end = self.rng.index(2);
        match self.rng.below(100) {
            0..30 if posting => self.post(conn, end)?,
            30..32 if posting && self.rng.percent(self.faults * 10) => self.inject(conn, end),
            32..35 if posting => {
                let steps = self.rng.below(40);
                self.conns[conn].pipes[end].stall(steps);
            }
            0..65 => self.send(conn, end),
            _ => self.deliver(conn, end),
        }
        self.observe()
    }

    /// Lets the socket of an end take bytes.
    fn send(&mut self, conn: usize, end: usize) {
        let limit = self.rng.pick(&[1, 100, 5_000, 60_000, 300_000]);
        let World { hosts, conns, .. } = self;
        let (host, conn) = (&mut hosts[end], &mut conns[conn]);
        let (this, pipe) = (&mut conn.ends[end], &mut conn.pipes[end]);
        let room = match self.rng.percent(50) {
            true => pipe.room(),
            false => pipe.room().min(self.rng.index(3000)),
        };
        if !this.raw.is_empty() {
            let length = room.min(this.raw.len());
            pipe.push(&this.raw[..length]);
            this.raw.drain(..length);
            return;
        }
        if !this.is_set_up() || this.closed {
            return;
        }
        let qpn = this.qpn;
        let Some(output) = host.engine.output(self.now, &host.arena, qpn, limit) else {
            return;
        };
        let length = room.min(output.len());
        self.run.partial_writes += u64::from(length < output.len());
        let mut bytes = Vec::new();
        if output.copy_to(&host.arena, length, &mut bytes).is_err() {
            host.engine.output_fault(self.now, qpn);
            return;
        }
        pipe.push(&bytes);
        this.accepted += bytes.len() as u64;
        self.run.bytes += bytes.len() as u64;
        host.engine.accepted(self.now, qpn, bytes.len());
    }

    /// Delivers bytes to the other end.
    fn deliver(&mut self, number: usize, from: usize) {
        let most = match self.rng.below(4) {
            0 => 1 + self.rng.index(8),
            1 => 1 + self.rng.index(100),
            _ => 1 + self.rng.index(100_000),
        };
        let to = 1 - from;
        let arrival = self.conns[number].pipes[from].deliver(most);
        if self.conns[number].ends[to].closed {
            // A closed socket answers bytes with a reset.
            if let Arrival::Bytes(_) = arrival {
                self.conns[number].pipes[to].reset();
            }
            return;
        }
        match arrival {
            Arrival::Nothing => {}
            Arrival::Bytes(bytes) if self.conns[number].ends[to].is_set_up() => {
                self.receive(number, to, &bytes);
            }
            Arrival::Bytes(bytes) => self.receive_setup(number, to, &bytes),
            Arrival::EndOfStream => self.stream_ended(number, to, false),
            Arrival::Reset => self.stream_ended(number, to, true),
        }
    }

    /// Passes received bytes to the engine; sometimes places payload itself first.
    pub(super) fn receive(&mut self, number: usize, to: usize, bytes: &[u8]) {
        let qpn = self.conns[number].ends[to].qpn;
        let host = &mut self.hosts[to];
        let mut rest = bytes;
        if self.rng.percent(30) {
            let mut places = Vec::new();
            host.engine.direct_places(qpn, &mut places);
            for (at, length) in places {
                use ferroce_objects::Memory;
                let (now, behind) = rest.split_at(rest.len().min(length as usize));
                if !now.is_empty() {
                    let _in_arena = host.arena.write(at, now);
                    host.engine.placed(qpn, now.len() as u32);
                    self.run.direct += 1;
                }
                rest = behind;
            }
        }
        host.engine.receive(self.now, &host.arena, qpn, rest);
    }

    fn stream_ended(&mut self, number: usize, to: usize, reset: bool) {
        let this = &mut self.conns[number].ends[to];
        if !this.is_set_up() {
            this.closed = true;
            self.conns[number].pipes[to].reset();
            return;
        }
        let qpn = this.qpn;
        match reset {
            true => self.hosts[to].engine.reset(self.now, qpn),
            false => self.hosts[to].engine.end_of_stream(self.now, qpn),
        }
    }

    /// Handles the stream events of a host.
    pub(super) fn handle_stream_events(&mut self, host: usize) -> Result<(), String> {
        while let Some(event) = self.hosts[host].engine.poll_stream_event() {
            self.trace(|| format!("host {host}: {event:?}"));
            let (StreamEvent::Established { qpn }
            | StreamEvent::Shutdown { qpn }
            | StreamEvent::Closed { qpn, .. }) = event;
            let same = |conn: &&mut Conn| conn.ends[host].qpn == qpn;
            let Some(conn) = self.conns.iter_mut().find(same) else {
                return Err(format!("an event of unknown queue pair {qpn}"));
            };
            let end = &mut conn.ends[host];
            if end.closed {
                return Err(format!("{event:?} after the last event"));
            }
            match event {
                StreamEvent::Established { .. } => {
                    end.ready = true;
                    self.run.established += 1;
                }
                StreamEvent::Shutdown { .. } => conn.pipes[host].shut_down(),
                StreamEvent::Closed { abort, cause, .. } => {
                    end.ready = false;
                    end.closed = true;
                    match abort {
                        true => conn.pipes[host].reset(),
                        false => conn.pipes[host].shut_down(),
                    }
                    super::oracle::check_cause(conn, cause)?;
                    super::oracle::check_last_messages(conn, host)?;
                    self.run.terminates += u64::from(cause == crate::CloseCause::Terminated);
                    self.run.timeouts += u64::from(cause == crate::CloseCause::TimedOut);
                }
            }
        }
        Ok(())
    }

    /// Runs without new posts until nothing moves any more.
    fn settle(&mut self, what: &str) -> Result<(), String> {
        let pipes = self.conns.iter_mut().flat_map(|conn| &mut conn.pipes);
        pipes.for_each(super::pipe::Pipe::resume);
        let mut idle = 0;
        while idle < MAX_IDLE {
            let before = self.run.bytes + self.under_way();
            self.step(false)?;
            let quiet = self
                .conns
                .iter()
                .all(|conn| conn.pipes.iter().all(|p| p.is_quiet()));
            idle = match quiet && before == self.run.bytes + self.under_way() {
                true => idle + 4,
                false if before == self.run.bytes + self.under_way() => idle + 1,
                false => 0,
            };
        }
        // A peer that does not answer any more is given up after the engine's timeout.
        let engines = self.hosts.iter();
        let engines = engines.filter_map(|host| host.engine.next_timeout());
        let setups = self.conns.iter().flat_map(|conn| &conn.ends);
        let setups = setups.filter_map(End::setup_deadline);
        if let Some(time) = engines.chain(setups).min() {
            self.now = self.now.max(time);
            for host in &mut self.hosts {
                host.engine.handle_timeout(self.now);
            }
            self.give_up_setups();
            self.observe()?;
            return self.settle(what);
        }
        let stuck = |conn: &Conn| conn.fault.is_none() && conn.pipes.iter().any(|p| !p.is_quiet());
        match self.conns.iter().any(stuck) {
            true => Err(format!("{what}: bytes are stuck in a stream")),
            false => Ok(()),
        }
    }

    fn under_way(&self) -> u64 {
        let conns = self.conns.iter();
        conns
            .flat_map(|conn| &conn.pipes)
            .map(|pipe| pipe.len() as u64)
            .sum()
    }
}
