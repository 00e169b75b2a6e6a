//! Figures that programs print.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// A kind of figure.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Metric {
    /// Gigabits of payload per second.
    Bandwidth,
    /// Thousands of messages per second.
    Messages,
    /// Microseconds of half a round trip, as the program prints it: the median if the
    /// program prints one, otherwise the mean. For READs and atomics it is the whole time.
    Latency,
    /// The 99th percentile of the latency in microseconds.
    P99,
}

impl Metric {
    /// Returns the unit.
    pub const fn unit(self) -> &'static str {
        match self {
            Metric::Bandwidth => "Gb/s",
            Metric::Messages => "k/s",
            Metric::Latency | Metric::P99 => "us",
        }
    }
}

/// The figures of one run of a program.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample(BTreeMap<Metric, f64>);

impl Sample {
    /// Returns the sample with one more figure.
    #[must_use]
    pub fn with(mut self, metric: Metric, value: f64) -> Sample {
        self.0.insert(metric, value);
        self
    }

    /// Returns a figure.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.0.get(&metric).copied()
    }
}

/// Parses the output of perftest's latency programs.
///
/// # Errors
/// If the line of figures is missing.
pub fn perftest_latency(text: &str) -> Result<Sample> {
    // Columns: bytes, iterations, min, max, typical, average, deviation, 99 %, 99.9 %.
    let row = row_after(text, "#bytes")?;
    let column = |index| number(&row, index).with_context(|| missing(index, text));
    Ok(Sample::default()
        .with(Metric::Latency, column(4)?)
        .with(Metric::P99, column(7)?))
}

/// Parses the output of perftest's bandwidth programs with `--report_gbits`.
///
/// # Errors
/// If the line of figures is missing, or is in another unit.
pub fn perftest_bandwidth(text: &str) -> Result<Sample> {
    // Columns: bytes, iterations, peak, average, message rate.
    let row = row_after(text, "#bytes")?;
    anyhow::ensure!(text.contains("BW average[Gb/sec]"), "not in Gb/s: {text}");
    let column = |index| number(&row, index).with_context(|| missing(index, text));
    Ok(Sample::default()
        .with(Metric::Bandwidth, column(3)?)
        .with(Metric::Messages, column(4)? * 1e3))
}

/// Parses the JSON of iperf3, with one or both directions.
///
/// # Errors
/// If the sums are missing.
pub fn iperf(text: &str) -> Result<Sample> {
    let report: serde_json::Value = serde_json::from_str(text).context("not JSON")?;
    let sum = |name: &str| report["end"][name]["bits_per_second"].as_f64();
    let there = sum("sum_received").with_context(|| format!("no sum in {text}"))?;
    let back = sum("sum_received_bidir_reverse").unwrap_or(0.0);
    Ok(Sample::default().with(Metric::Bandwidth, (there + back) / 1e9))
}

/// Parses the output of ucx_perftest.
///
/// # Errors
/// If the line of final figures is missing.
pub fn ucx(text: &str) -> Result<Sample> {
    // Columns after "Final:": iterations; latency: median, mean, overall mean; bandwidth in
    // MiB/s: mean, overall; messages per second: mean, overall.
    let line = text.lines().find_map(|line| line.strip_prefix("Final:"));
    let row: Vec<&str> = line
        .with_context(|| format!("no \"Final:\" in {text}"))?
        .split_whitespace()
        .collect();
    let column = |index| number(&row, index).with_context(|| missing(index, text));
    Ok(Sample::default()
        .with(Metric::Latency, column(1)?)
        .with(Metric::Bandwidth, column(5)? * MEBIBYTE * 8.0 / 1e9)
        .with(Metric::Messages, column(7)? / 1e3))
}

/// Parses the output of fi_pingpong with one size.
///
/// # Errors
/// If the line of figures is missing.
pub fn fabric(text: &str) -> Result<Sample> {
    // Columns: bytes, sent, acknowledged, total, time, MB/s, us per transfer, rate.
    let row = row_after(text, "bytes")?;
    let column = |index| number(&row, index).with_context(|| missing(index, text));
    Ok(Sample::default()
        .with(Metric::Latency, column(6)?)
        .with(Metric::Bandwidth, column(5)? * 8.0 / 1e3))
}

/// Parses the output of qperf for one test.
///
/// # Errors
/// If there is neither a latency nor a bandwidth.
pub fn qperf(text: &str) -> Result<Sample> {
    let mut sample = Sample::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, "=", value, unit] = words[..] else {
            continue;
        };
        let value: f64 = value.parse().with_context(|| format!("qperf: {line}"))?;
        let micros = |factor| (Metric::Latency, value * factor);
        let bits = |factor| (Metric::Bandwidth, value * factor * 8.0);
        let (metric, value) = match (name, unit) {
            ("latency", "ns") => micros(1e-3),
            ("latency", "us") => micros(1.0),
            ("latency", "ms") => micros(1e3),
            // Of a test in one direction qperf prints what was sent and what was received.
            ("send_bw", _) => continue,
            ("bw" | "recv_bw", "GB/sec") => bits(1.0),
            ("bw" | "recv_bw", "MB/sec") => bits(1e-3),
            ("bw" | "recv_bw", "KB/sec") => bits(1e-6),
            _ => continue,
        };
        sample = sample.with(metric, value);
    }
    anyhow::ensure!(!sample.0.is_empty(), "no figure in {text}");
    Ok(sample)
}

const MEBIBYTE: f64 = 1_048_576.0;

/// Returns the words of the line that follows the title line.
fn row_after<'a>(text: &'a str, title: &str) -> Result<Vec<&'a str>> {
    let mut lines = text.lines();
    lines
        .find(|line| line.trim_start().starts_with(title))
        .and_then(|_| lines.next())
        .map(|line| line.split_whitespace().collect())
        .with_context(|| format!("no line of figures in {text}"))
}

fn number(row: &[&str], index: usize) -> Option<f64> {
    row.get(index)?.parse().ok()
}

fn missing(index: usize, text: &str) -> String {
    format!("no number in column {} of {text}", index + 1)
}
