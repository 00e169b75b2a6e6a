//! The coordinator: sets up networks and workers, and runs the measurements.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use ferroce_bench::{Ferroced, RoleProcess, end_with_parent};
use ferroce_endpoint::Introduction;
use ferroce_testnet::{namespace, netdev};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use crate::Cli;
use crate::iperf::Iperf;
use crate::plan::{Part, Plan, Series, idle_rows, report};
use crate::requests::{Figure, Request, Task};

/// MTU of the veth pair: enough for packets with 4096 bytes of payload.
const CABLE_MTU: u32 = 4200;
/// Index of the first IPv4 address in a GID table.
const GID_INDEX: u8 = 1;

pub(crate) fn run(cli: &Cli) -> Result<()> {
    end_with_parent()?;
    let plan = Plan {
        // Many short rounds: temporary load on the machine then affects both sides of a
        // comparison, or only a few rounds.
        rounds: cli.rounds.unwrap_or(if cli.quick { 3 } else { 25 }).max(1),
        ms: if cli.quick { 100 } else { 120 },
        round_trips: if cli.quick { 5_000 } else { 8_000 },
        idle_ms: if cli.quick { 2_000 } else { 5_000 },
        parts: match cli.only.is_empty() {
            true => vec![Part::Bandwidth, Part::Latency, Part::Idle],
            false => cli.only.clone(),
        },
    };
    if cfg!(debug_assertions) {
        eprintln!("Note: built without optimisation; the figures are meaningless.");
    }
    let private = ferroce_net::enter_private_network();
    if let Err(error) = &private {
        eprintln!("Skipped: veth, because no private network could be created ({error}).");
    }
    let tcp = Iperf::is_there();
    if !tcp && plan.parts.contains(&Part::Bandwidth) {
        eprintln!("Skipped: TCP, because iperf3 is not installed.");
    }
    let _ferroced = Ferroced::start(None)?;
    let mut networks = vec![Network::loopback(tcp)?];
    if private.is_ok() && !cli.loopback {
        networks.push(Network::cable(tcp)?);
    }
    let rows = measure(&plan, &mut networks)?;
    let report = report(rows);
    match cli.csv {
        true => print!("{}", report.csv()),
        false => println!("{report}\n{}", report.summary()),
    }
    Ok(())
}

fn measure(plan: &Plan, networks: &mut [Network]) -> Result<Vec<ferroce_bench::Row>> {
    let each: usize = networks
        .iter()
        .map(|network| plan.samples(network.has_tcp()).len())
        .sum();
    let style = ProgressStyle::with_template("measuring [{bar:40}] {pos}/{len} {msg}")?;
    let bar = ProgressBar::new((plan.rounds * each) as u64).with_style(style);
    let mut series: Vec<Series> = networks.iter().map(|_| Series::default()).collect();
    for _ in 0..plan.rounds {
        for (network, series) in networks.iter_mut().zip(&mut series) {
            for sample in plan.samples(network.has_tcp()) {
                bar.set_message(format!("{} {sample:?}", network.name));
                series.add(sample, plan.measure(network, sample)?);
                bar.inc(1);
            }
        }
    }
    let mut rows = Vec::new();
    for (network, series) in networks.iter().zip(&series) {
        rows.extend(series.rows(network.name));
    }
    if plan.parts.contains(&Part::Idle) {
        bar.set_message("idle device");
        let ms = plan.idle_ms;
        rows.extend(idle_rows(networks[0].near.initiate(Task::Idle { ms })?, ms));
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Two workers connected by queue pairs and by plain sockets.
pub(crate) struct Network {
    name: &'static str,
    near: Worker,
    far: Worker,
    iperf: Option<Iperf>,
    /// ferroced of the far end, if it is in another network namespace.
    _ferroced: Option<Ferroced>,
}

impl Network {
    fn loopback(tcp: bool) -> Result<Network> {
        let mut near = Worker::start(None)?;
        let mut far = Worker::start(None)?;
        near.link("loop0", "lo")?;
        let address: IpAddr = [127, 0, 0, 1].into();
        near.meet(&mut far, "loop0", [address; 2])?;
        let iperf = tcp.then(|| Iperf::start(address, None)).transpose()?;
        Ok(Network {
            name: "loopback",
            near,
            far,
            iperf,
            _ferroced: None,
        })
    }

    fn cable(tcp: bool) -> Result<Network> {
        let place = namespace::another()?;
        netdev::add_veth("near", "far");
        netdev::move_to("far", place.as_fd());
        let settle = |name, address: &str| {
            netdev::set_mtu(name, CABLE_MTU);
            netdev::add_address(name, address);
            netdev::set_up(name);
        };
        settle("near", "10.0.0.1/24");
        namespace::within(&place, || settle("far", "10.0.0.2/24"))?;
        let ferroced = namespace::within(&place, || Ferroced::start(Some(place.try_clone()?)))??;
        let mut near = Worker::start(None)?;
        let mut far = Worker::start(Some(place.try_clone()?))?;
        near.link("wire0", "near")?;
        far.link("wire0", "far")?;
        let addresses: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        near.meet(&mut far, "wire0", addresses)?;
        let iperf = tcp.then(|| Iperf::start(addresses[1], Some(place)));
        Ok(Network {
            name: "veth",
            near,
            far,
            iperf: iperf.transpose()?,
            _ferroced: Some(ferroced),
        })
    }

    fn has_tcp(&self) -> bool {
        self.iperf.is_some()
    }

    /// Returns the bytes per second of one TCP stream.
    pub(crate) fn tcp(&self) -> Result<f64> {
        self.iperf.as_ref().context("no iperf3")?.measure()
    }

    /// Runs a task on both workers; returns the active worker's figure.
    pub(crate) fn perform(&mut self, task: Task) -> Result<Figure> {
        self.far.request::<()>(&Request::Respond(task))?;
        let figure = self.near.initiate(task)?;
        self.far.0.partner.hear::<()>()?;
        Ok(figure)
    }
}

/// A worker process.
struct Worker(RoleProcess);

impl Worker {
    fn start(place: Option<OwnedFd>) -> Result<Worker> {
        Ok(Worker(RoleProcess::start("worker", place)?))
    }

    fn request<T: for<'de> Deserialize<'de>>(&mut self, request: &Request) -> Result<T> {
        self.0.request(request)
    }

    fn initiate(&mut self, task: Task) -> Result<Figure> {
        self.request(&Request::Initiate(task))
    }

    fn link(&mut self, name: &str, netdev: &str) -> Result<()> {
        let (name, netdev) = (name.to_owned(), netdev.to_owned());
        self.request(&Request::Link { name, netdev })
    }

    /// Connects the queue pairs and the plain sockets of two workers.
    fn meet(&mut self, other: &mut Worker, link: &str, addresses: [IpAddr; 2]) -> Result<()> {
        let open = Request::Open {
            link: link.to_owned(),
            gid_index: GID_INDEX,
        };
        let ours: Vec<Introduction> = self.request(&open)?;
        let theirs: Vec<Introduction> = other.request(&open)?;
        other.request::<()>(&Request::Connect(ours))?;
        self.request::<()>(&Request::Connect(theirs))?;
        let ours: [SocketAddr; 2] = self.request(&Request::Plain(addresses[0]))?;
        let theirs: [SocketAddr; 2] = other.request(&Request::Plain(addresses[1]))?;
        other.request::<()>(&Request::Reach(ours))?;
        self.request(&Request::Reach(theirs))
    }
}
