//! The measurements: groups of probes, the rows that compare them, and their goals.

mod iwarp;

use core::ops::RangeInclusive;

use super::probe::{Probe, RunLength, Sockets, Tool};
use super::sample::Metric;
use crate::report::Goal;

const QUEUE_PAIRS: &str = "queue pairs";
const LATENCY: u32 = 8;
const SMALL: u32 = 64;
const PAGE: u32 = 4 << 10;
const LARGE: u32 = 64 << 10;
const HUGE: u32 = 1 << 20;
const MTUS: [u32; 2] = [1024, 4096];
/// Message sizes of the plots.
const SIZES: [u32; 7] = [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 1 << 20];
/// Largest datagram of the plain ping-pong, less its headers.
const LARGEST_DATAGRAM: u32 = 60_000;
const ANY: RangeInclusive<u32> = 1..=u32::MAX;
const TWO: RangeInclusive<u32> = 1..=2;
const MANY: RangeInclusive<u32> = 3..=u32::MAX;

/// Probes that are measured in turn, and the rows that compare them.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Title, which `--only` matches.
    pub title: &'static str,
    /// Number of rounds.
    pub rounds: usize,
    /// Rows of the table.
    pub rows: Vec<RowPlan>,
    /// Probes without a row, for plots.
    pub plotted: Vec<Probe>,
}

/// A row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct RowPlan {
    /// The measured program.
    pub probe: Probe,
    /// The figure of the row.
    pub metric: Metric,
    /// The reference, if there is one.
    pub against: Option<Reference>,
    /// The goal, if there is one.
    pub goal: Option<Goal>,
    /// Numbers of processors with which the row is measured.
    pub cores: RangeInclusive<u32>,
}

/// A reference: the same kind of figure of another probe.
#[derive(Clone, PartialEq, Debug)]
pub struct Reference {
    /// Name for the table.
    pub name: &'static str,
    /// The probe.
    pub probe: Probe,
}

/// All measurements of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The groups, in the order of their measurement.
    pub groups: Vec<Group>,
    /// The length of each run of a program.
    pub run_length: RunLength,
}

impl Plan {
    /// Returns the plan: all measurements, or with `quick` a part that takes few minutes.
    pub fn new(quick: bool, rounds: Option<usize>) -> Plan {
        let mut groups = vec![
            group("latency", latency(quick)),
            group("message rate", message_rate(quick)),
            group("bandwidth", bandwidth(quick)),
            group(QUEUE_PAIRS, queue_pairs(quick)),
            group("UCX", ucx(quick)),
            group("libfabric", libfabric()),
            group("qperf", qperf(quick)),
            group("local wire", local_wire(quick)),
        ];
        if !quick {
            groups.extend(sweeps());
            // The plot over queue pairs starts with one stream.
            let several = groups.iter_mut().find(|group| group.title == QUEUE_PAIRS);
            several
                .into_iter()
                .for_each(|group| group.plotted.push(Probe::new(Tool::Iperf, 0)));
        }
        Plan::of(groups, quick, rounds)
    }

    /// Returns the plan for links of type siw.
    pub fn iwarp(quick: bool, rounds: Option<usize>) -> Plan {
        Plan::of(iwarp::groups(), quick, rounds)
    }

    fn of(mut groups: Vec<Group>, quick: bool, rounds: Option<usize>) -> Plan {
        let rounds = rounds.unwrap_or(if quick { 3 } else { 5 });
        for group in &mut groups {
            group.rounds = rounds;
        }
        let run_length = match quick {
            true => RunLength {
                bytes: 512 << 20,
                messages: 60_000,
                round_trips: 1_000,
                ms: 300,
            },
            false => RunLength {
                bytes: 1 << 30,
                messages: 200_000,
                round_trips: 5_000,
                ms: 500,
            },
        };
        Plan { groups, run_length }
    }

    /// Keeps groups whose title contains one of the texts, and rows whose program does.
    pub fn keep(&mut self, texts: &[String]) {
        let named = |name: &str| texts.iter().any(|text| name.contains(text.as_str()));
        if texts.is_empty() {
            return;
        }
        for group in &mut self.groups {
            if !named(group.title) {
                group.rows.retain(|row| named(&row.probe.label()));
                group.plotted.retain(|probe| named(&probe.label()));
            }
        }
        let is_empty = |group: &Group| group.rows.is_empty() && group.plotted.is_empty();
        self.groups.retain(|group| !is_empty(group));
    }
}

impl Group {
    /// Returns the probes that are measured with a number of processors, each once.
    pub fn probes(&self, cores: u32) -> Vec<Probe> {
        let mut probes: Vec<Probe> = Vec::new();
        let rows = self.rows.iter().filter(|row| row.cores.contains(&cores));
        let compared = rows.flat_map(|row| {
            let reference = row.against.iter().map(|reference| &reference.probe);
            core::iter::once(&row.probe).chain(reference)
        });
        for probe in compared.chain(&self.plotted) {
            if !probes.contains(probe) {
                probes.push(probe.clone());
            }
        }
        probes
    }
}

impl RowPlan {
    fn new(probe: Probe, metric: Metric) -> RowPlan {
        RowPlan {
            probe,
            metric,
            against: None,
            goal: None,
            cores: ANY,
        }
    }

    /// Compares with another probe.
    fn beside(mut self, probe: &Probe) -> RowPlan {
        let name = match probe.size {
            _ if probe.wire != self.probe.wire && probe.tool == self.probe.tool => "UDP wire",
            LARGE if probe.tool == self.probe.tool && probe.qps == self.probe.qps => "64K",
            _ if probe.tool == self.probe.tool && probe.qps == 1 => "1 QP",
            _ if *probe == iwarp::iperf_on_two_cores() => "iperf3 -A 0,1",
            _ => probe.tool.name(),
        };
        let probe = probe.clone();
        self.against = Some(Reference { name, probe });
        self
    }

    fn goal(mut self, goal: Goal) -> RowPlan {
        self.goal = Some(goal);
        self
    }

    fn cores(mut self, cores: RangeInclusive<u32>) -> RowPlan {
        self.cores = cores;
        self
    }
}

fn group(title: &'static str, rows: Vec<RowPlan>) -> Group {
    Group {
        title,
        rounds: 1,
        rows,
        plotted: Vec::new(),
    }
}

fn perftest(name: &'static str, size: u32) -> Probe {
    Probe::new(Tool::Perftest(name), size)
}

fn sockets(kind: Sockets, size: u32) -> Probe {
    Probe::new(Tool::Sockets(kind), size)
}

fn latency(quick: bool) -> Vec<RowPlan> {
    let row = |probe| RowPlan::new(probe, Metric::Latency);
    let send = perftest("ib_send_lat", LATENCY);
    let write = perftest("ib_write_lat", LATENCY);
    let floor = sockets(Sockets::Floor, LATENCY);
    let blocking = sockets(Sockets::Blocking, LATENCY);
    let polling = sockets(Sockets::Polling, LATENCY);
    let mut rows = vec![
        row(send.clone()).beside(&floor).goal(Goal::Ratio(1.3)),
        row(write.clone()).beside(&send).goal(Goal::Ratio(1.5)),
        RowPlan::new(write, Metric::P99)
            .goal(Goal::Most(100.0))
            .cores(TWO),
    ];
    for name in ["ib_read_lat", "ib_atomic_lat"] {
        let probe = perftest(name, LATENCY);
        rows.push(row(probe).beside(&send).goal(Goal::Ratio(2.2)));
    }
    let events = send.clone().options("-e");
    rows.push(row(events).beside(&blocking).goal(Goal::Ratio(1.5)));
    if !quick {
        let events = perftest("ib_read_lat", LATENCY).options("-e");
        rows.push(row(events).beside(&blocking));
        rows.push(row(send).beside(&polling));
        rows.push(row(floor).beside(&polling));
    }
    rows
}

fn message_rate(quick: bool) -> Vec<RowPlan> {
    let row = |probe| RowPlan::new(probe, Metric::Messages);
    let mut rows = Vec::new();
    for name in ["ib_write_bw", "ib_send_bw"] {
        let probe = perftest(name, SMALL);
        rows.push(row(probe.clone()).goal(Goal::Least(1200.0)));
        if !quick || name == "ib_write_bw" {
            rows.push(row(probe.options("-l 16")));
        }
    }
    if !quick {
        rows.push(row(perftest("ib_read_bw", SMALL)));
        rows.push(row(perftest("ib_atomic_bw", LATENCY)));
        rows.push(row(perftest("ib_send_bw", SMALL).options("-e")));
    }
    rows
}

fn bandwidth(quick: bool) -> Vec<RowPlan> {
    let row = |probe: Probe| RowPlan::new(probe, Metric::Bandwidth);
    let iperf = Probe::new(Tool::Iperf, 0);
    let mut rows = Vec::new();
    for mtu in MTUS {
        let plain = sockets(Sockets::Stream, 0).mtu(mtu);
        for size in [LARGE, HUGE] {
            for name in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
                if quick && name != "ib_write_bw" && (size, mtu) != (LARGE, 4096) {
                    continue;
                }
                let probe = perftest(name, size).mtu(mtu);
                let row = |reference| row(probe.clone()).beside(reference);
                rows.push(row(&plain).goal(Goal::AtLeast(0.9)));
                rows.push(row(&iperf).goal(Goal::AtLeast(1.0)));
            }
        }
    }
    for name in ["ib_write_bw", "ib_send_bw"] {
        let whole = perftest(name, LARGE).mtu(4096);
        let page = perftest(name, PAGE).mtu(4096);
        rows.push(row(page).beside(&whole).goal(Goal::AtLeast(0.7)));
    }
    if !quick {
        let both = perftest("ib_write_bw", LARGE).mtu(4096).options("-b");
        rows.push(row(both).beside(&iperf.clone().options("--bidir")));
        let both = perftest("ib_send_bw", LARGE).mtu(4096).options("-b");
        rows.push(row(both).beside(&iperf.options("--bidir")));
    }
    rows
}

/// With free cores, more queue pairs are faster. On two cores they are never slower.
fn queue_pairs(quick: bool) -> Vec<RowPlan> {
    let names: &[&str] = match quick {
        true => &["ib_write_bw"],
        false => &["ib_write_bw", "ib_send_bw"],
    };
    let mut rows = Vec::new();
    for name in names {
        let one = perftest(name, LARGE).mtu(4096);
        for (qps, least) in [(2, 1.7), (4, 2.8), (8, 4.0)] {
            let many = one.clone().qps(qps);
            let row = RowPlan::new(many.clone(), Metric::Bandwidth).beside(&one);
            rows.push(row.clone().goal(Goal::AtLeast(1.0)).cores(TWO));
            rows.push(row.clone().cores(3..=2 * qps - 1));
            let free = (2 * qps).max(3)..=u32::MAX;
            rows.push(row.goal(Goal::AtLeast(least)).cores(free));
            if !quick {
                let streams = Probe::new(Tool::Iperf, 0).qps(qps);
                rows.push(RowPlan::new(many, Metric::Bandwidth).beside(&streams));
            }
        }
    }
    rows
}

fn ucx(quick: bool) -> Vec<RowPlan> {
    let send = perftest("ib_send_lat", LATENCY);
    let row = |test, size, metric| {
        let probe = Probe::new(Tool::Ucx(test), size);
        RowPlan::new(probe, metric).beside(&Probe::new(Tool::UcxTcp(test), size))
    };
    let put = row("ucp_put_lat", LATENCY, Metric::Latency);
    let mut rows = vec![
        row("tag_lat", LATENCY, Metric::Latency),
        put.clone().beside(&send).goal(Goal::Ratio(1.5)),
        put,
        row("ucp_put_bw", LARGE, Metric::Bandwidth),
    ];
    if !quick {
        rows.push(row("tag_bw", LARGE, Metric::Bandwidth));
        rows.push(row("ucp_put_bw", LATENCY, Metric::Messages));
    }
    rows
}

fn libfabric() -> Vec<RowPlan> {
    let reference = Probe::new(Tool::FabricTcp, SMALL);
    let probe = Probe::new(Tool::Fabric, SMALL);
    vec![RowPlan::new(probe, Metric::Latency).beside(&reference)]
}

fn qperf(quick: bool) -> Vec<RowPlan> {
    let mut tests = vec![("rc_lat", LATENCY, "tcp_lat", Metric::Latency)];
    if !quick {
        tests.extend([
            (
                "rc_rdma_write_poll_lat",
                LATENCY,
                "tcp_lat",
                Metric::Latency,
            ),
            ("rc_bw", LARGE, "tcp_bw", Metric::Bandwidth),
            ("rc_rdma_write_bw", LARGE, "tcp_bw", Metric::Bandwidth),
        ]);
    }
    let row = |(test, size, reference, metric)| {
        let reference = Probe::new(Tool::QperfSocket(reference), size);
        RowPlan::new(Probe::new(Tool::Qperf(test), size), metric).beside(&reference)
    };
    tests.into_iter().map(row).collect()
}

/// Programs over the local wire, beside the UDP wire and other ways through memory.
fn local_wire(quick: bool) -> Vec<RowPlan> {
    let latency = |probe: Probe| RowPlan::new(probe.local(), Metric::Latency);
    let bandwidth = |probe: Probe| RowPlan::new(probe.local(), Metric::Bandwidth);
    let send = perftest("ib_send_lat", LATENCY);
    let write = perftest("ib_write_lat", LATENCY);
    let ucx = Probe::new(Tool::UcxMemory("tag_lat"), LATENCY);
    let pipe = sockets(Sockets::Pipe, LATENCY);
    let events = send.clone().options("-e");
    let mut rows = vec![
        latency(send.clone()).goal(Goal::Most(0.8)).cores(MANY),
        latency(send.clone()).beside(&ucx).goal(Goal::Ratio(1.5)),
        latency(send.clone()).beside(&send),
        latency(write.clone()).goal(Goal::Most(1.0)).cores(MANY),
        latency(write).goal(Goal::Most(3.0)).cores(TWO),
        latency(events).beside(&pipe).goal(Goal::Ratio(1.3)),
    ];
    for name in ["ib_read_lat", "ib_atomic_lat"] {
        rows.push(latency(perftest(name, LATENCY)).goal(Goal::Most(3.0)));
    }
    for name in ["ib_write_bw", "ib_send_bw"] {
        let row = RowPlan::new(perftest(name, SMALL).local(), Metric::Messages);
        let row = |least, cores| row.clone().goal(Goal::Least(least)).cores(cores);
        rows.extend([row(4000.0, MANY), row(2000.0, TWO)]);
    }
    for (size, faster) in [(LARGE, 1.5), (HUGE, 1.3)] {
        let memcpy = sockets(Sockets::Memcpy, size);
        for name in ["ib_write_bw", "ib_read_bw"] {
            let probe = perftest(name, size).mtu(4096);
            let row = |reference| bandwidth(probe.clone()).beside(reference);
            rows.push(row(&probe).goal(Goal::AtLeast(faster)));
            rows.push(row(&memcpy).goal(Goal::AtLeast(0.45)));
        }
    }
    let datagram = send.options("-c UD");
    rows.push(latency(datagram.clone()).beside(&datagram));
    let datagrams = perftest("ib_send_bw", PAGE).mtu(4096).options("-c UD");
    rows.push(bandwidth(datagrams.clone()).beside(&datagrams));
    if !quick {
        let put = |size| Probe::new(Tool::Ucx("ucp_put_bw"), size);
        rows.push(bandwidth(put(LARGE)).beside(&put(LARGE)));
        let tag = Probe::new(Tool::Ucx("tag_lat"), LATENCY);
        rows.push(latency(tag.clone()).beside(&tag));
        rows.push(latency(tag).beside(&ucx));
        let fabric = Probe::new(Tool::Fabric, SMALL);
        let memory = Probe::new(Tool::FabricMemory, SMALL);
        rows.push(latency(fabric.clone()).beside(&fabric));
        rows.push(latency(fabric).beside(&memory));
    }
    rows
}

/// Returns the probes of the plots over message size.
fn sweeps() -> Vec<Group> {
    let mut ucx = group("UCX over size", Vec::new());
    for size in [LATENCY, PAGE, LARGE, HUGE] {
        for test in ["ucp_put_bw", "tag_lat"] {
            ucx.plotted.push(Probe::new(Tool::Ucx(test), size));
            ucx.plotted.push(Probe::new(Tool::UcxTcp(test), size));
        }
    }
    let mut bandwidth = group("bandwidth over size", Vec::new());
    let mut latency = group("latency over size", Vec::new());
    for size in SIZES {
        for mtu in MTUS {
            bandwidth
                .plotted
                .push(perftest("ib_write_bw", size).mtu(mtu));
        }
        for name in ["ib_send_bw", "ib_read_bw"] {
            bandwidth.plotted.push(perftest(name, size).mtu(4096));
        }
        bandwidth.plotted.push(Probe::new(Tool::Iperf, size));
        for name in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
            latency.plotted.push(perftest(name, size));
        }
        let local = perftest("ib_write_bw", size).mtu(4096).local();
        bandwidth.plotted.push(local);
        latency.plotted.push(perftest("ib_send_lat", size).local());
        latency
            .plotted
            .push(Probe::new(Tool::QperfSocket("tcp_lat"), size));
        if size <= LARGEST_DATAGRAM {
            latency.plotted.push(sockets(Sockets::Polling, size));
            latency.plotted.push(sockets(Sockets::Blocking, size));
        }
    }
    for mtu in MTUS {
        bandwidth.plotted.push(sockets(Sockets::Stream, 0).mtu(mtu));
    }
    vec![bandwidth, latency, ucx]
}
