//! Speed of Ferroce beside the kernel's driver: the same programs in the same guests.
//!
//! Server and client run in one guest or in two, first with the kernel's `rdma_rxe` or `siw`, then
//! with Ferroce, in each round. Only one driver has a link at a time: those of type rxe both use
//! UDP port 4791. A guest without hardware virtualisation is slow: the ratios count, not the
//! figures.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{Running, deadline, now, pause};

use crate::case::Link;
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

/// Column of the latency at 99 % in perftest's table.
const P99_COLUMN: usize = 7;

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
fn options(link: Link, server: &str) -> [String; 2] {
    match link {
        Link::Rxe => [0; 2].map(|_| "-d rxe0 -x 1".to_owned()),
        Link::Siw => [
            format!("-d siw0 -R --wait_destroy=1 --source_ip={server}"),
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

    /// Returns a figure with its unit.
    fn format(self, value: f64) -> String {
        let unit = match self {
            Figure::Latency => "us",
            Figure::Bandwidth => "MiB/s",
            Figure::Rate => "k/s",
        };
        format!("{value:>9.1} {unit:<5}")
    }

    /// Returns a latency at 99 %.
    fn format_p99(self, value: f64) -> String {
        match self {
            Figure::Latency => format!("{value:.1}"),
            Figure::Bandwidth | Figure::Rate => "-".to_owned(),
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

/// Server and client of the measured programs. Both may be the same guest.
pub(crate) struct Ends<'a> {
    server: &'a Vm,
    client: &'a Vm,
    link: Link,
    /// Folder for logs.
    folder: &'a Path,
}

impl<'a> Ends<'a> {
    pub(crate) fn new(server: &'a Vm, client: &'a Vm, link: Link, folder: &'a Path) -> Ends<'a> {
        Ends {
            server,
            client,
            link,
            folder,
        }
    }

    /// Measures all rows, or those that contain `only`, and prints a table. Returns true if no program
    /// failed.
    pub(crate) fn measure(&self, only: Option<&str>) -> Result<bool> {
        self.prepare()?;
        let rows = rows(self.link)
            .iter()
            .filter(|(program, _)| only.is_none_or(|only| program.contains(only)));
        println!("{}", self.place());
        println!(
            "{:<39} {:>15} {:>9} {:>15} {:>9} {:>10}",
            "",
            format!("kernel {}", self.link.kind()),
            "99 %",
            "Ferroce",
            "99 %",
            "advantage"
        );
        let mut port = FIRST_PORT;
        let (mut ahead, mut total, mut failed) = (0, 0, 0);
        for &(program, figure) in rows {
            total += 1;
            match self.measure_row(program, figure, &mut port) {
                Ok(advantage) => ahead += usize::from(advantage > 1.0),
                Err(error) => {
                    failed += 1;
                    // The program's whole output follows its first error.
                    let error = format!("{error:#}");
                    let first: Vec<&str> = error.lines().take(2).collect();
                    println!("{program:<39} failed: {}", first.join(" "));
                    self.delete_links()?;
                }
            }
        }
        println!("\nFerroce is ahead in {ahead} of {total} rows; {failed} failed.");
        Ok(failed == 0)
    }

    /// Measures a row by turns and prints it. Returns the advantage of Ferroce.
    fn measure_row(&self, program: &str, figure: Figure, port: &mut u16) -> Result<f64> {
        let mut samples: [Vec<f64>; 5] = Default::default();
        for _ in 0..ROUNDS {
            let mut round = [Sample::default(); 2];
            for (sample, driver) in round.iter_mut().zip([Driver::Kernel, Driver::Ferroce]) {
                *port += 1;
                *sample = self
                    .run_pair(driver, program, figure, *port)
                    .with_context(|| format!("{driver:?}"))?;
            }
            let [kernel, ferroce] = round;
            let advantage = figure.advantage(ferroce.value, kernel.value);
            let values = [
                kernel.value,
                kernel.p99,
                ferroce.value,
                ferroce.p99,
                advantage,
            ];
            samples
                .iter_mut()
                .zip(values)
                .for_each(|(all, value)| all.push(value));
        }
        let [kernel, kernel_p99, ferroce, ferroce_p99, advantage] = samples.map(median);
        let [kernel, ferroce] = [kernel, ferroce].map(|value| figure.format(value));
        let [kernel_p99, ferroce_p99] =
            [kernel_p99, ferroce_p99].map(|value| figure.format_p99(value));
        println!(
            "{program:<39} {kernel:>15} {kernel_p99:>9} {ferroce:>15} {ferroce_p99:>9} {advantage:>8.2} x"
        );
        Ok(advantage)
    }

    /// Deletes the links that a failed measurement has left.
    fn delete_links(&self) -> Result<()> {
        for vm in self.guests() {
            for driver in [Driver::Kernel, Driver::Ferroce] {
                let [_, delete] = driver.link(self.link);
                vm.run(&format!("{delete} || true"))?;
            }
        }
        Ok(())
    }

    /// Unpacks Ferroce in the guests, and deletes their links.
    fn prepare(&self) -> Result<()> {
        for vm in self.guests() {
            vm.run(&format!(
                "mkdir -p /tmp/ferroce && tar xf {DISK} -C /tmp/ferroce && \
                 /tmp/ferroce/ferroce --version"
            ))?;
            vm.run(Driver::Kernel.link(Link::Rxe)[1])
                .context("cannot delete the kernel's link")?;
        }
        if self.link == Link::Siw {
            // perftest's client connects twice, does not wait for the server to listen again, and
            // crashes if refused.
            let netdev = if self.is_one() { "lo" } else { "data0" };
            self.client.run(&weather::lose_refusals(netdev))?;
        }
        Ok(())
    }

    /// Returns the guests, each once.
    fn guests(&self) -> impl Iterator<Item = &'a Vm> {
        [self.server, self.client]
            .into_iter()
            .take(if self.is_one() { 1 } else { 2 })
    }

    fn is_one(&self) -> bool {
        std::ptr::eq(self.server, self.client)
    }

    /// Returns a line that says where the ends run.
    fn place(&self) -> String {
        let guests = match self.is_one() {
            true => "Both ends in one guest with",
            false => "Each end in a guest of its own with",
        };
        let cores = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
        let processors = self.server.processors();
        format!("{guests} {processors}, on a machine with {cores} cores:")
    }

    /// Runs server and client of a program; returns the client's figures.
    fn run_pair(&self, driver: Driver, program: &str, figure: Figure, port: u16) -> Result<Sample> {
        let [add, delete] = driver.link(self.link);
        for vm in self.guests() {
            vm.run(add)?;
        }
        let seconds = PATIENCE.as_secs();
        let address = self.server.address();
        let [serve, call] = options(self.link, address).map(|options| {
            let prefix = driver.prefix();
            format!("timeout {seconds} {prefix}{program} {options} -F -p {port}")
        });
        let mut server = Running::spawn(&mut self.server.program(&serve)?, self.folder, "server")?;
        let until = deadline(PATIENCE);
        let mut listener = self.server.listener(port)?;
        while !listener.is_listening()? {
            if let Some(status) = server.wait_for_end(now())? {
                anyhow::bail!("the server ended ({status}): {}", server.output()?);
            }
            ensure!(now() < until, "the server does not listen");
            pause();
        }
        let output = self.client.run(&format!("{call} {address}"))?;
        server.wait_for_success(until)?;
        for vm in self.guests() {
            vm.run(delete)?;
        }
        parse(&output, figure).with_context(|| format!("no figure in: {output}"))
    }
}

/// The figures of one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sample {
    value: f64,
    /// Latency at 99 %; 0 for other figures.
    p99: f64,
}

/// Returns the figures in perftest's table, whose row begins with two whole numbers.
fn parse(output: &str, figure: Figure) -> Option<Sample> {
    let (column, factor) = figure.column();
    output.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let counts = words.get(..2)?;
        counts
            .iter()
            .all(|word| word.parse::<u64>().is_ok())
            .then_some(())?;
        let number = |column: usize| words.get(column)?.parse::<f64>().ok();
        Some(Sample {
            value: number(column)? * factor,
            p99: match figure {
                Figure::Latency => number(P99_COLUMN)?,
                Figure::Bandwidth | Figure::Rate => 0.0,
            },
        })
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
        let sample = |value, p99| Some(Sample { value, p99 });
        assert_eq!(parse(LATENCY, Figure::Latency), sample(7.25, 9.1));
        assert_eq!(parse(BANDWIDTH, Figure::Bandwidth), sample(28.5, 0.0));
        assert_eq!(parse(BANDWIDTH, Figure::Rate), sample(467.0, 0.0));
        assert_eq!(parse("8 500\n", Figure::Latency), None);
    }

    #[test]
    fn advantage_is_above_one_for_the_better_driver() {
        assert_eq!(Figure::Latency.advantage(5.0, 10.0), 2.0);
        assert_eq!(Figure::Rate.advantage(10.0, 5.0), 2.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
