//! Speed of Ferroce beside the kernel's driver: the same programs in the same guest.
//!
//! Server and client both run in the guest, first with the kernel's `rdma_rxe` or `siw`, then
//! with Ferroce, in each round. Only one driver has a link at a time: those of type rxe both use
//! UDP port 4791. A guest without hardware virtualisation is slow: the ratios count, not the
//! figures.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{Running, deadline, now, pause};

use crate::agent;
use crate::case::Link;
use crate::network::GUEST;
use crate::vm::Vm;
use crate::weather;

/// Rounds; the figures are medians.
const ROUNDS: usize = 3;
/// Timeout for one measurement, in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// TCP port of the first server. Each measurement takes the next one.
const FIRST_PORT: u16 = 18_600;
/// The disk with Ferroce, in the guest.
const DISK: &str = "/dev/vdb";

/// The figure of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// Typical latency in microseconds: less is better.
    Latency,
    /// Average bandwidth in MiB/s.
    Bandwidth,
    /// Messages per second, in thousands.
    Rate,
}

/// Programs over RoCE with their options, and the figure to read.
const RXE: [(&str, Figure); 12] = [
    ("ib_write_lat -s 8 -n 500", Figure::Latency),
    ("ib_send_lat -s 8 -n 500", Figure::Latency),
    ("ib_read_lat -s 8 -n 500", Figure::Latency),
    ("ib_atomic_lat -n 500", Figure::Latency),
    ("ib_send_lat -s 8 -n 300 -e", Figure::Latency),
    ("ib_write_bw -s 64 -n 3000", Figure::Rate),
    ("ib_send_bw -s 64 -n 3000", Figure::Rate),
    ("ib_write_bw -s 4096 -m 1024 -n 1000", Figure::Bandwidth),
    ("ib_write_bw -s 65536 -m 1024 -n 200", Figure::Bandwidth),
    ("ib_write_bw -s 65536 -m 4096 -n 200", Figure::Bandwidth),
    ("ib_read_bw -s 65536 -m 1024 -n 200", Figure::Bandwidth),
    (
        "ib_write_bw -s 65536 -m 1024 -n 100 -q 4",
        Figure::Bandwidth,
    ),
];

/// Programs over iWARP.
const SIW: [(&str, Figure); 10] = [
    ("ib_write_lat -s 8 -n 500", Figure::Latency),
    ("ib_send_lat -s 8 -n 500", Figure::Latency),
    ("ib_read_lat -s 8 -n 500", Figure::Latency),
    ("ib_send_lat -s 8 -n 300 -e", Figure::Latency),
    ("ib_write_bw -s 65536 -n 500", Figure::Bandwidth),
    ("ib_read_bw -s 65536 -n 500", Figure::Bandwidth),
    ("ib_send_bw -s 65536 -n 500", Figure::Bandwidth),
    ("ib_write_bw -s 1048576 -n 60", Figure::Bandwidth),
    ("ib_read_bw -s 1048576 -n 60", Figure::Bandwidth),
    ("ib_send_bw -s 1048576 -n 60", Figure::Bandwidth),
];

/// Returns the programs of a type of link.
fn rows(link: Link) -> &'static [(&'static str, Figure)] {
    match link {
        Link::Rxe => &RXE,
        Link::Siw => &SIW,
    }
}

/// Returns the options of perftest that select the link, at the server and at the client.
///
/// The kernel's siw binds a listener without an address to its netdev, which connections of the
/// same host do not reach. The server waits before it ends: siw reports an error for a SEND that
/// has arrived, if the peer closes the connection before siw has completed it.
fn options(link: Link) -> [String; 2] {
    match link {
        Link::Rxe => [0; 2].map(|_| "-d rxe0 -x 1".to_owned()),
        Link::Siw => [
            format!("-d siw0 -R --wait_destroy=1 --source_ip={}", GUEST[0]),
            "-d siw0 -R --wait_destroy=1".to_owned(),
        ],
    }
}

impl Figure {
    /// Returns the column of perftest's table, and the factor to the unit.
    fn column(self) -> (usize, f64) {
        match self {
            Figure::Latency => (4, 1.0),
            Figure::Bandwidth => (3, 1.0),
            Figure::Rate => (4, 1000.0),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Figure::Latency => "us",
            Figure::Bandwidth => "MiB/s",
            Figure::Rate => "k/s",
        }
    }

    /// Returns how many times better `ferroce` is than `kernel`.
    fn advantage(self, ferroce: f64, kernel: f64) -> f64 {
        match self {
            Figure::Latency => kernel / ferroce,
            Figure::Bandwidth | Figure::Rate => ferroce / kernel,
        }
    }
}

/// The driver of a measurement.
#[derive(Debug, Clone, Copy)]
enum Driver {
    Kernel,
    Ferroce,
}

impl Driver {
    /// Returns the guest's commands that add and delete the link. The kernel's `rdma_rxe` has the
    /// UDP port as long as its module is loaded, and ferroced until it has ended.
    fn link(self, link: Link) -> [&'static str; 2] {
        match (self, link) {
            (Driver::Kernel, Link::Rxe) => [
                "for attempt in $(seq 100); do modprobe rdma_rxe && break; sleep 0.1; done; \
                 rdma link add rxe0 type rxe netdev data0",
                "rdma link delete rxe0 && modprobe -r rdma_rxe",
            ],
            (Driver::Kernel, Link::Siw) => [
                "modprobe siw && rdma link add siw0 type siw netdev data0",
                "rdma link delete siw0",
            ],
            (Driver::Ferroce, Link::Rxe) => [
                "/tmp/ferroce/ferroce link add rxe0 type rxe netdev data0",
                "/tmp/ferroce/ferroce link delete rxe0",
            ],
            (Driver::Ferroce, Link::Siw) => [
                "/tmp/ferroce/ferroce link add siw0 type siw netdev data0",
                "/tmp/ferroce/ferroce link delete siw0",
            ],
        }
    }

    /// Returns the words before a program.
    fn prefix(self) -> &'static str {
        match self {
            Driver::Kernel => "",
            Driver::Ferroce => "/tmp/ferroce/ferroce run --quiet -- ",
        }
    }
}

/// Packs `ferroce` and the libraries beside it into an archive, which is the guest's second
/// disk. Returns its path.
pub(crate) fn pack(ferroce: &Path, folder: &Path) -> Result<PathBuf> {
    let archive = folder.join("ferroce.tar");
    let beside = ferroce.parent().context("ferroce is in no folder")?;
    let status = Command::new("tar")
        .arg("-C")
        .arg(beside)
        .arg("-cf")
        .arg(&archive)
        .args(["ferroce", "lib"])
        .status()
        .context("cannot start tar")?;
    ensure!(
        status.success(),
        "cannot pack {}: tar failed ({status})",
        beside.display()
    );
    Ok(archive)
}

/// Measures all rows, or those that contain `only`, and prints a table. Returns true.
pub(crate) fn measure(vm: &Vm, link: Link, only: Option<&str>, folder: &Path) -> Result<bool> {
    vm.run(&format!(
        "mkdir -p /tmp/ferroce && tar xf {DISK} -C /tmp/ferroce && /tmp/ferroce/ferroce --version"
    ))?;
    vm.run(Driver::Kernel.link(Link::Rxe)[1])
        .context("cannot delete the kernel's link")?;
    if link == Link::Siw {
        // perftest's client connects twice, does not wait for the server to listen again, and
        // crashes if refused.
        vm.run(&weather::lose_refusals("lo"))?;
    }
    let rows = rows(link)
        .iter()
        .filter(|(program, _)| only.is_none_or(|only| program.contains(only)));
    println!(
        "{:<42} {:>15} {:>15} {:>10}",
        "both ends in one guest",
        format!("kernel {}", link.kind()),
        "Ferroce",
        "advantage"
    );
    let mut port = FIRST_PORT;
    let (mut ahead, mut total) = (0, 0);
    for &(program, figure) in rows {
        let mut samples: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let mut round = [0.0; 2];
            for (value, driver) in round.iter_mut().zip([Driver::Kernel, Driver::Ferroce]) {
                port += 1;
                *value = run_pair(vm, (driver, link), program, figure, port, folder)
                    .with_context(|| format!("{program} ({driver:?})"))?;
            }
            let [kernel, ferroce] = round;
            let values = [kernel, ferroce, figure.advantage(ferroce, kernel)];
            samples
                .iter_mut()
                .zip(values)
                .for_each(|(all, value)| all.push(value));
        }
        let [kernel, ferroce, advantage] = samples.map(median);
        let unit = figure.unit();
        println!(
            "{program:<42} {kernel:>9.1} {unit:<5} {ferroce:>9.1} {unit:<5} {advantage:>8.2} x"
        );
        ahead += usize::from(advantage > 1.0);
        total += 1;
    }
    println!("\nFerroce is ahead in {ahead} of {total} rows.");
    Ok(true)
}

/// Runs server and client of a program; returns the client's figure.
fn run_pair(
    vm: &Vm,
    (driver, link): (Driver, Link),
    program: &str,
    figure: Figure,
    port: u16,
    folder: &Path,
) -> Result<f64> {
    let [add, delete] = driver.link(link);
    vm.run(add)?;
    let seconds = PATIENCE.as_secs();
    let [serve, call] = options(link).map(|options| {
        let prefix = driver.prefix();
        format!("timeout {seconds} {prefix}{program} {options} -F -p {port}")
    });
    let mut server = Running::spawn(&mut vm.program(&serve)?, folder, "server")?;
    let until = deadline(PATIENCE);
    let mut listener = agent::Listener::new(port)?;
    while !listener.is_listening()? {
        if let Some(status) = server.wait_for_end(now())? {
            anyhow::bail!("the server ended ({status}): {}", server.output()?);
        }
        ensure!(now() < until, "the server does not listen");
        pause();
    }
    let output = vm.run(&format!("{call} {}", GUEST[0]))?;
    server.wait_for_success(until)?;
    vm.run(delete)?;
    parse(&output, figure).with_context(|| format!("no figure in: {output}"))
}

/// Returns the figure in perftest's table, whose row begins with two whole numbers.
fn parse(output: &str, figure: Figure) -> Option<f64> {
    let (column, factor) = figure.column();
    output.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let counts = words.get(..2)?;
        counts
            .iter()
            .all(|word| word.parse::<u64>().is_ok())
            .then_some(())?;
        Some(words.get(column)?.parse::<f64>().ok()? * factor)
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
 8       500          6.10           40.2         7.25     	       7.40    	0.5  	9.1  	40.2
";
    const BANDWIDTH: &str = "\
 local address: LID 0000 QPN 0x010001
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 64         3000             30.00              28.50              0.467000
";

    #[test]
    fn figures_are_read_from_perftest_tables() {
        assert_eq!(parse(LATENCY, Figure::Latency), Some(7.25));
        assert_eq!(parse(BANDWIDTH, Figure::Bandwidth), Some(28.5));
        assert_eq!(parse(BANDWIDTH, Figure::Rate), Some(467.0));
        assert_eq!(parse("8 500\n", Figure::Latency), None);
    }

    #[test]
    fn advantage_is_above_one_for_the_better_driver() {
        assert_eq!(Figure::Latency.advantage(5.0, 10.0), 2.0);
        assert_eq!(Figure::Rate.advantage(10.0, 5.0), 2.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
