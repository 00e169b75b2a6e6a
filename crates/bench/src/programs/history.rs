//! The history of measurements: a file with one line of JSON for each.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::machine::Machine;
use super::measure::Results;
use super::sample::Metric;
use crate::report::{Goal, Row};

/// Appends a measurement to a history file.
///
/// # Errors
/// If the file cannot be written.
pub fn append(file: &Path, machine: &Machine, quick: bool, all: &[Results]) -> Result<()> {
    let what = || format!("cannot write {}", file.display());
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(what)?;
    }
    let line = format!("{}\n", entry(machine, quick, all));
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened
        .with_context(what)?
        .write_all(line.as_bytes())
        .with_context(what)
}

/// Returns a measurement as JSON.
pub fn entry(machine: &Machine, quick: bool, all: &[Results]) -> Value {
    let runs: Vec<Value> = all
        .iter()
        .map(|results| {
            let rows: Vec<Value> = results.rows.iter().map(row).collect();
            let probes: Vec<Value> = results
                .samples
                .iter()
                .map(|(probe, samples)| {
                    let values = |metric| -> Vec<f64> {
                        samples.iter().filter_map(|s| s.get(metric)).collect()
                    };
                    json!({
                        "program": probe.label(),
                        "gbps": values(Metric::Bandwidth),
                        "kmps": values(Metric::Messages),
                        "us": values(Metric::Latency),
                        "p99_us": values(Metric::P99),
                    })
                })
                .collect();
            json!({"cores": results.count, "rows": rows, "samples": probes})
        })
        .collect();
    json!({
        "time": machine.time,
        "commit": machine.commit,
        "machine": {
            "cores": machine.cores,
            "processor": machine.processor,
            "kernel": machine.kernel,
        },
        "place": machine.place,
        "quick": quick,
        "runs": runs,
    })
}

fn row(row: &Row) -> Value {
    let goal = row.goal.map(|goal| match goal {
        Goal::Ratio(most) => format!("ratio <= {most}"),
        Goal::AtLeast(least) => format!("ratio >= {least}"),
        Goal::Most(most) => format!("value <= {most}"),
        Goal::Least(least) => format!("value >= {least}"),
    });
    json!({
        "row": row.what,
        "value": row.value,
        "unit": row.unit,
        "reference": row.against.map(|(name, ..)| name),
        "reference_value": row.against.map(|(_, value, _)| value),
        "ratio": row.against.map(|(.., ratio)| ratio),
        "goal": goal,
        "met": row.met(),
    })
}
