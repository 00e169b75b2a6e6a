//! The measurements, their order and their goals.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::ValueEnum;
use ferroce_bench::{Goal, Report, Row, median};

use crate::coordinator::Network;
use crate::requests::{Figure, MTUS, Task};

const SIZES: [u32; 2] = [64 << 10, 1 << 20];
/// Least bandwidth relative to plain sockets, and to TCP.
const BANDWIDTH: [f64; 2] = [0.7, 0.8];
const LATENCY: f64 = 1.4;
/// Index of the endpoint for latency, which does not depend on the MTU.
const SMALL_END: usize = MTUS.len() - 1;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// WRITEs of 64 KiB and 1 MiB.
    Bandwidth,
    /// WRITEs and SENDs of 8 bytes.
    Latency,
    /// An idle device.
    Idle,
}

/// The extent of the measurements.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Milliseconds of each bandwidth measurement.
    pub(crate) ms: u64,
    /// Round trips of each latency measurement.
    pub(crate) round_trips: u32,
    /// Milliseconds of the idle measurement.
    pub(crate) idle_ms: u64,
    pub(crate) parts: Vec<Part>,
}

/// A measurement of each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sample {
    Write { mtu: usize, size: u32 },
    Stream { mtu: usize },
    Tcp,
    WriteLatency,
    SendLatency,
    FloorLatency,
    BareLatency,
}

impl Plan {
    /// Returns the measurements of a round in a network.
    pub(crate) fn samples(&self, tcp: bool) -> Vec<Sample> {
        let mut samples = Vec::new();
        if self.parts.contains(&Part::Bandwidth) {
            for mtu in 0..MTUS.len() {
                samples.push(Sample::Write {
                    mtu,
                    size: SIZES[0],
                });
                samples.push(Sample::Stream { mtu });
                samples.push(Sample::Write {
                    mtu,
                    size: SIZES[1],
                });
            }
            samples.extend(tcp.then_some(Sample::Tcp));
        }
        if self.parts.contains(&Part::Latency) {
            samples.extend([
                Sample::WriteLatency,
                Sample::BareLatency,
                Sample::SendLatency,
                Sample::FloorLatency,
            ]);
        }
        samples
    }

    /// Runs one measurement; returns gigabits per second or microseconds.
    pub(crate) fn measure(&self, network: &mut Network, sample: Sample) -> Result<f64> {
        let (end, times, ms) = (SMALL_END, self.round_trips, self.ms);
        let task = match sample {
            Sample::Tcp => return Ok(network.tcp()? * 8.0 / 1e9),
            Sample::Write { mtu, size } => Task::Write { end: mtu, size, ms },
            Sample::Stream { mtu } => {
                let payload = MTUS[mtu] as usize;
                Task::BareStream { payload, ms }
            }
            Sample::WriteLatency => Task::WritePingPong { end, times },
            Sample::SendLatency => Task::SendPingPong { end, times },
            Sample::BareLatency => Task::BarePingPong { times },
            Sample::FloorLatency => Task::FloorPingPong { times },
        };
        match network.perform(task)? {
            Figure::Rate(rate) => Ok(rate * 8.0 / 1e9),
            Figure::Latency(seconds) => Ok(seconds * 1e6),
            Figure::Idle { .. } => bail!("a worker returned a figure of another kind"),
        }
    }
}

/// The results of all rounds in one network.
#[derive(Debug, Default)]
pub(crate) struct Series(BTreeMap<Sample, Vec<f64>>);

impl Series {
    pub(crate) fn add(&mut self, sample: Sample, value: f64) {
        self.0.entry(sample).or_default().push(value);
    }

    /// Returns the rows of the report.
    pub(crate) fn rows(&self, place: &'static str) -> Vec<Row> {
        let mut rows = Vec::new();
        for (sample, values) in &self.0 {
            let (what, unit, against, goals): (_, _, &[Sample], &[Option<Goal>]) = match *sample {
                Sample::Write { mtu, size } => (
                    format!("WRITE {} KiB, MTU {}", size >> 10, MTUS[mtu]),
                    "Gb/s",
                    &[Sample::Stream { mtu }, Sample::Tcp],
                    &BANDWIDTH.map(|goal| Some(Goal::AtLeast(goal))),
                ),
                Sample::WriteLatency => (
                    "WRITE 8 B, one way".to_owned(),
                    "us",
                    &[Sample::BareLatency, Sample::FloorLatency],
                    &[Some(Goal::Ratio(LATENCY)), None],
                ),
                Sample::SendLatency => (
                    "SEND 8 B, one way".to_owned(),
                    "us",
                    &[Sample::BareLatency, Sample::FloorLatency],
                    &[Some(Goal::Ratio(LATENCY)), None],
                ),
                Sample::FloorLatency => (
                    "socket floor, one way".to_owned(),
                    "us",
                    &[Sample::BareLatency],
                    &[None],
                ),
                _ => continue,
            };
            for (other, goal) in against.iter().zip(goals) {
                let Some(others) = self.0.get(other) else {
                    continue;
                };
                let ratios = values.iter().zip(others).map(|(a, b)| a / b);
                let name = match other {
                    Sample::Tcp => "iperf3",
                    Sample::FloorLatency => "floor",
                    _ => "bare",
                };
                let other = median(others.iter().copied());
                rows.push(Row {
                    what: what.clone(),
                    side: place,
                    value: median(values.iter().copied()),
                    fastest: None,
                    unit,
                    against: Some((name, other, median(ratios))),
                    goal: *goal,
                });
            }
        }
        rows
    }
}

/// Returns the rows for an idle device.
pub(crate) fn idle_rows(figure: Figure, ms: u64) -> Vec<Row> {
    let Figure::Idle { wakeups, cpu_ns } = figure else {
        return Vec::new();
    };
    let row = |what, value, unit| Row {
        what: format!("idle device, {what} in {} s", ms as f64 / 1e3),
        side: "threads",
        value,
        fastest: None,
        unit,
        against: None,
        goal: Some(Goal::Most(0.0)),
    };
    vec![
        row("wakeups", wakeups as f64, ""),
        row("processor time", cpu_ns as f64 / 1e3, "us"),
    ]
}

/// Returns a report with this benchmark's column titles.
pub(crate) fn report(rows: Vec<Row>) -> Report {
    let titles = [
        "operation",
        "where",
        "figure",
        "",
        "compared with",
        "ratio",
        "goal",
        "verdict",
    ];
    Report { titles, rows }
}
