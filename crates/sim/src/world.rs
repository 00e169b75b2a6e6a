//! The world of a run: hosts, network, time, and the oracle that watches them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroce_transport::{Bug, Time, WcStatus, Xrcd};

use crate::agenda::{Agenda, Happening};
use crate::coverage::Coverage;
use crate::host::Host;
use crate::model::{CqModel, QpModel, RecvRecord, SendRecord, SrqModel, WindowModel};
use crate::network::Network;
use crate::rng::{Rng, Stream};
use crate::scenario::Scenario;
use crate::trace::Trace;

/// What a check finds: nothing, or a violation in words.
pub(crate) type Check = Result<(), String>;

/// Most events of a run: more means that something goes in circles.
const MOST_STEPS: u64 = 2_000_000;
/// How long, in virtual time, everything may take once faults have ended.
const PATIENCE_NS: u64 = 4_000_000_000;

/// A run.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) scenario: Scenario,
    pub(crate) now: Time,
    pub(crate) hosts: Vec<Host>,
    pub(crate) network: Network,
    pub(crate) agenda: Agenda,
    pub(crate) trace: Trace,
    /// For what programs do.
    pub(crate) rng: Rng,
    /// For what devices do.
    pub(crate) device_rng: Rng,
    pub(crate) qps: Vec<QpModel>,
    /// Queue pairs by host and number.
    pub(crate) by_number: BTreeMap<(usize, u32), usize>,
    pub(crate) cqs: Vec<CqModel>,
    pub(crate) srqs: Vec<SrqModel>,
    /// XRC domains and their hosts.
    pub(crate) domains: Vec<(usize, Arc<Xrcd>)>,
    pub(crate) windows: Vec<WindowModel>,
    /// Addresses of counters for atomics, by host.
    pub(crate) counters: Vec<Vec<u64>>,
    /// What engines reported as the failure of a work request.
    pub(crate) failures: BTreeMap<u64, WcStatus>,
    pub(crate) sends: Vec<SendRecord>,
    pub(crate) recvs: Vec<RecvRecord>,
    /// Packets on their way.
    pub(crate) flying: u64,
    pub(crate) packets: u64,
    pub(crate) steps: u64,
    pub(crate) healed: bool,
    pub(crate) coverage: Coverage,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, trace: Trace) -> World {
        let scenario = Scenario::draw(seed);
        let mut rng = Rng::new(seed, Stream::Program);
        let hosts = (0..scenario.hosts)
            .map(|id| Host::new(id, &scenario, &mut rng, bug))
            .collect();
        World {
            seed,
            now: Time::ZERO,
            hosts,
            network: Network::new(seed, scenario.links.clone(), scenario.most_losses),
            agenda: Agenda::default(),
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
            flying: 0,
            packets: 0,
            steps: 0,
            healed: false,
            coverage: Coverage::default(),
            scenario,
        }
    }

    /// Runs to the end: everything has completed and everything was right.
    pub(crate) fn run(&mut self) -> Check {
        let summary = self.scenario.summary();
        self.trace.line(Time::ZERO, || summary);
        self.build()?;
        while let Some((time, what)) = self.agenda.next() {
            self.now = time;
            self.steps += 1;
            let late = self.healed && time.nanos_since(self.scenario.heal) > PATIENCE_NS;
            if late || self.steps > MOST_STEPS {
                return Err(self.describe_hang());
            }
            let program = matches!(what, Happening::Program { .. });
            self.happen(what)?;
            if program && self.healed && self.is_quiet() {
                return self.finish();
            }
        }
        Err("the agenda ran out".into())
    }

    fn happen(&mut self, what: Happening) -> Check {
        let host = match what {
            Happening::Serve { host } | Happening::Timer { host } | Happening::Program { host } => {
                host
            }
            Happening::Arrive { host, packet } => return self.arrive(host, packet),
            Happening::Disrupt { index } => return self.disrupt(index),
            Happening::Resume { qp } => return self.resume(qp),
            Happening::Heal => return self.heal(),
        };
        let paused_until = self.hosts[host].paused_until;
        if self.now < paused_until {
            self.agenda.plan(paused_until, what);
            return Ok(());
        }
        match what {
            Happening::Serve { .. } => self.serve(host),
            Happening::Timer { .. } => self.timer(host),
            _ => self.program(host),
        }
    }

    /// Faults end; whatever is outstanding must now complete.
    fn heal(&mut self) -> Check {
        self.trace.line(self.now, || "faults end".into());
        self.healed = true;
        self.network.heal();
        for host in &mut self.hosts {
            host.paused_until = Time::ZERO;
        }
        for qp in 0..self.qps.len() {
            self.resume(qp)?;
        }
        Ok(())
    }

    /// The other end of a connection.
    pub(crate) fn peer_of(&self, qp: usize) -> Option<usize> {
        self.qps[qp].peer
    }

    /// A queue pair as the log names it.
    pub(crate) fn qp_name(&self, qp: usize) -> String {
        let model = &self.qps[qp];
        format!(
            "qp {:#x} ({:?}, host {})",
            model.qpn, model.kind, model.host
        )
    }
}
