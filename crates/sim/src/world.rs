//! The state of a run: hosts, network, virtual time and the oracle's model.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use ferroce_roce::{Time, WcStatus, Xrcd};
use ferroce_shard::CreditPage;

use crate::coverage::Coverage;
use crate::event_queue::{EventQueue, SimEvent};
use crate::host::Host;
use crate::local::{Intruder, OpenChannel};
use crate::model::{CqModel, QpModel, RecvRecord, SendRecord, SrqModel, WindowModel};
use crate::network::Network;
use crate::rng::{Rng, Stream};
use crate::runner::Options;
use crate::scenario::Scenario;
use crate::trace::Trace;

/// The result of a check; the error describes a violation.
pub(crate) type Check = Result<(), String>;

/// Most events of a run. A run with more is reported as a livelock.
const MOST_STEPS: u64 = 2_000_000;
/// Virtual time within which all work must complete after the faults end.
const PATIENCE_NS: u64 = 4_000_000_000;

/// The complete state of a run.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) scenario: Scenario,
    pub(crate) now: Time,
    pub(crate) hosts: Vec<Host>,
    pub(crate) network: Network,
    pub(crate) event_queue: EventQueue,
    pub(crate) trace: Trace,
    /// Randomness for the programs.
    pub(crate) rng: Rng,
    /// Randomness for the devices.
    pub(crate) device_rng: Rng,
    pub(crate) qps: Vec<QpModel>,
    /// Index of each queue pair by host and queue pair number.
    pub(crate) by_number: BTreeMap<(usize, u32), usize>,
    pub(crate) cqs: Vec<CqModel>,
    pub(crate) srqs: Vec<SrqModel>,
    /// XRC domains, each with its host.
    pub(crate) domains: Vec<(usize, Arc<Xrcd>)>,
    pub(crate) windows: Vec<WindowModel>,
    /// Addresses of the counters for atomics, by host.
    pub(crate) counters: Vec<Vec<u64>>,
    /// The status that an engine's failure event reported for each work request.
    pub(crate) failures: BTreeMap<u64, WcStatus>,
    pub(crate) sends: Vec<SendRecord>,
    pub(crate) recvs: Vec<RecvRecord>,
    /// The queue pair that is being moved to a state in which it receives nothing.
    pub(crate) stopping: Option<usize>,
    /// Channels in memory between hosts of one machine.
    pub(crate) channels: Vec<OpenChannel>,
    /// Randomness for the local wire.
    pub(crate) local_rng: Rng,
    pub(crate) intruder: Option<Intruder>,
    /// Number of packets in the network.
    pub(crate) in_flight: u64,
    /// Number of packets sent, which the wires of all hosts count.
    pub(crate) packets: Rc<Cell<u64>>,
    pub(crate) steps: u64,
    pub(crate) healed: bool,
    pub(crate) coverage: Coverage,
}

impl World {
    pub(crate) fn new(seed: u64, options: Options, trace: Trace) -> World {
        let Options { bug, family } = options;
        let scenario = Scenario::draw(seed, family);
        let packets = Rc::default();
        let mut rng = Rng::new(seed, Stream::Program);
        let pages: Vec<Arc<CreditPage>> =
            scenario.machines.iter().map(|_| Arc::default()).collect();
        let hosts = (0..scenario.hosts)
            .map(|id| {
                let credits = Arc::clone(&pages[scenario.machines[id]]);
                Host::new(id, (seed, &scenario), &mut rng, credits, bug, &packets)
            })
            .collect();
        World {
            seed,
            now: Time::ZERO,
            hosts,
            network: Network::new(
                seed,
                scenario.links.clone(),
                scenario.machines.clone(),
                scenario.most_losses,
            ),
            event_queue: EventQueue::default(),
            trace,
            rng,
            device_rng: Rng::new(seed, Stream::Device),
            qps: Vec::new(),
            by_number: BTreeMap::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            domains: Vec::new(),
            windows: Vec::new(),
            counters: Vec::new(),
            failures: BTreeMap::new(),
            sends: Vec::new(),
            recvs: Vec::new(),
            stopping: None,
            channels: Vec::new(),
            local_rng: Rng::new(seed, Stream::Local),
            intruder: scenario
                .local
                .filter(|local| local.has_intruder)
                .map(|_| Intruder::new(seed, scenario.hosts as u8 + 1)),
            in_flight: 0,
            packets,
            steps: 0,
            healed: false,
            coverage: Coverage::default(),
            scenario,
        }
    }

    /// Runs until all work has completed, or until the first violation.
    pub(crate) fn run(&mut self) -> Check {
        let summary = self.scenario.summary();
        self.trace.line(Time::ZERO, || summary);
        self.build()?;
        while let Some((time, what)) = self.event_queue.next() {
            self.now = time;
            self.steps += 1;
            let late = self.healed && time.nanos_since(self.scenario.heal) > PATIENCE_NS;
            if late || self.steps > MOST_STEPS {
                return Err(self.describe_hang());
            }
            let program = matches!(what, SimEvent::Program { .. });
            self.handle(what)?;
            self.after_event()?;
            if program && self.healed && self.is_finished() {
                return self.finish();
            }
        }
        Err("the event queue is empty, but work is outstanding".into())
    }

    fn handle(&mut self, what: SimEvent) -> Check {
        let host = match what {
            SimEvent::Serve { host }
            | SimEvent::Poll { host }
            | SimEvent::Sent { host }
            | SimEvent::Timer { host, .. }
            | SimEvent::Route { host, .. }
            | SimEvent::Program { host } => host,
            SimEvent::Arrive { host, packet } => {
                self.in_flight -= 1;
                if self.hosts[host].is_dead {
                    return Ok(());
                }
                self.arrive(host, packet);
                return match self.hosts[host].kill_on_arrival.take() {
                    Some(qp) => self.kill(qp),
                    None => Ok(()),
                };
            }
            SimEvent::Disrupt { index } => return self.disrupt(index),
            SimEvent::Resume { qp } => return self.resume(qp),
            SimEvent::Intrude => return self.intrude(),
            SimEvent::Heal => return self.heal(),
        };
        if self.hosts[host].is_dead {
            return Ok(());
        }
        let paused_until = self.hosts[host].paused_until;
        if self.now < paused_until {
            self.event_queue.schedule(paused_until, what);
            return Ok(());
        }
        match what {
            SimEvent::Serve { .. } => self.serve(host),
            SimEvent::Poll { .. } => self.poll_turn(host),
            SimEvent::Sent { .. } => self.finish_sending(host),
            SimEvent::Timer { due, .. } => self.timer(host, due),
            SimEvent::Route { qpn, .. } => self.set_route(host, qpn),
            _ if self.now < self.hosts[host].program_stopped_until => {
                let at = self.hosts[host].program_stopped_until;
                self.event_queue.schedule(at, what);
                Ok(())
            }
            _ => self.program(host),
        }
    }

    /// Ends all faults, so that all outstanding work must complete.
    fn heal(&mut self) -> Check {
        self.trace.line(self.now, || "faults end".into());
        for qp in 0..self.qps.len() {
            self.check_throughput(qp)?;
        }
        self.healed = true;
        self.network.heal();
        for host in &mut self.hosts {
            host.paused_until = Time::ZERO;
            host.program_stopped_until = Time::ZERO;
        }
        self.heal_local()?;
        for qp in 0..self.qps.len() {
            self.resume(qp)?;
        }
        Ok(())
    }

    /// Returns the other end of a connection.
    pub(crate) fn peer_of(&self, qp: usize) -> Option<usize> {
        self.qps[qp].peer
    }

    /// Returns the name of a queue pair in the log.
    pub(crate) fn qp_name(&self, qp: usize) -> String {
        let model = &self.qps[qp];
        format!(
            "qp {:#x} ({:?}, host {})",
            model.qpn, model.kind, model.host
        )
    }
}
