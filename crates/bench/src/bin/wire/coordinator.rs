//! Sets everything up, measures in turns, and takes everything down again.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use ferroce_bench::{Ferroced, Player, end_with_parent};
use ferroce_endpoint::Introduction;
use ferroce_testnet::{namespace, netdev};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use crate::Cli;
use crate::iperf::Iperf;
use crate::orders::{Figure, Order, Task};
use crate::plan::{Part, Plan, Series, idle_rows, report};

/// The netdev's MTU: enough for packets with 4096 bytes of payload.
const CABLE_MTU: u32 = 4200;
/// Index of the first IPv4 address in a GID table.
const GID_INDEX: u8 = 1;

pub(crate) fn run(cli: &Cli) -> Result<()> {
    end_with_parent()?;
    let plan = Plan {
        // Many and short: whatever disturbs the machine for a while then disturbs both
        // sides of a comparison, or a few of many.
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
        eprintln!("Note: built without optimisation, the figures mean nothing.");
    }
    let private = ferroce_net::enter_private_network();
    if let Err(error) = &private {
        eprintln!("Left out: veth, because there is no private network here ({error}).");
    }
    let tcp = Iperf::is_there();
    if !tcp && plan.parts.contains(&Part::Bandwidth) {
        eprintln!("Left out: TCP, because iperf3 is not installed.");
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
        bar.set_message("nothing at all");
        let ms = plan.idle_ms;
        rows.extend(idle_rows(networks[0].near.ask(Task::Idle { ms })?, ms));
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Two workers that can reach each other, with queue pairs and with plain sockets.
pub(crate) struct Network {
    name: &'static str,
    near: Worker,
    far: Worker,
    iperf: Option<Iperf>,
    /// Of the far end, where it is another network.
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

    /// Bytes a second of one TCP stream.
    pub(crate) fn tcp(&self) -> Result<f64> {
        self.iperf.as_ref().context("no iperf3")?.measure()
    }

    /// Has both workers do their halves of a task.
    pub(crate) fn perform(&mut self, task: Task) -> Result<Figure> {
        self.far.tell::<()>(&Order::Answer(task))?;
        let figure = self.near.ask(task)?;
        self.far.0.partner.hear::<()>()?;
        Ok(figure)
    }
}

/// A process that does as it is told.
struct Worker(Player);

impl Worker {
    fn start(place: Option<OwnedFd>) -> Result<Worker> {
        Ok(Worker(Player::start("worker", place)?))
    }

    fn tell<T: for<'de> Deserialize<'de>>(&mut self, order: &Order) -> Result<T> {
        self.0.tell(order)
    }

    fn ask(&mut self, task: Task) -> Result<Figure> {
        self.tell(&Order::Ask(task))
    }

    fn link(&mut self, name: &str, netdev: &str) -> Result<()> {
        let (name, netdev) = (name.to_owned(), netdev.to_owned());
        self.tell(&Order::Link { name, netdev })
    }

    /// Connects two workers in every way.
    fn meet(&mut self, other: &mut Worker, link: &str, addresses: [IpAddr; 2]) -> Result<()> {
        let open = Order::Open {
            link: link.to_owned(),
            gid_index: GID_INDEX,
        };
        let ours: Vec<Introduction> = self.tell(&open)?;
        let theirs: Vec<Introduction> = other.tell(&open)?;
        other.tell::<()>(&Order::Connect(ours))?;
        self.tell::<()>(&Order::Connect(theirs))?;
        let ours: [SocketAddr; 2] = self.tell(&Order::Plain(addresses[0]))?;
        let theirs: [SocketAddr; 2] = other.tell(&Order::Plain(addresses[1]))?;
        other.tell::<()>(&Order::Reach(ours))?;
        self.tell(&Order::Reach(theirs))
    }
}
