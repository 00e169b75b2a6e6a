//! Measures the groups of a plan.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use super::place::{Cores, Place};
use super::plan::{Group, Plan, RowPlan};
use super::probe::{Device, Probe, RunLength};
use super::run;
use super::sample::{Metric, Sample};
use crate::comparison::median;
use crate::report::Row;

/// The results of a plan with one choice of processors.
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    /// The processors.
    pub cores: Cores,
    /// Their number.
    pub count: u32,
    /// The rows of the table.
    pub rows: Vec<Row>,
    /// The samples of each probe, from all its rounds.
    pub samples: BTreeMap<Probe, Vec<Sample>>,
    /// Probes that cannot run on this machine, each with the reason.
    pub skipped: BTreeMap<Probe, String>,
    /// Probes that failed, each with the reason.
    pub failed: BTreeMap<Probe, String>,
}

impl Results {
    /// Returns the median of a probe's figures.
    pub fn median(&self, probe: &Probe, metric: Metric) -> Option<f64> {
        let figures = figures(self.samples.get(probe)?, metric);
        (!figures.is_empty()).then(|| median(figures.into_iter()))
    }

    /// Adds the results of a group.
    pub fn add(&mut self, group: &Group, samples: BTreeMap<Probe, Vec<Sample>>) {
        let rows = group.rows.iter().filter(|r| r.cores.contains(&self.count));
        let rows = rows.filter_map(|row| judge(row, &samples, self.cores));
        self.rows.extend(rows);
        for (probe, more) in samples {
            self.samples.entry(probe).or_default().extend(more);
        }
    }
}

/// Runs all groups with a choice of processors.
///
/// # Errors
/// If the kernel refuses the choice.
pub fn measure(plan: &Plan, place: &mut Place, cores: Cores) -> Result<Results> {
    place.pin(cores)?;
    let count = place.count(cores);
    let mut results = Results {
        cores,
        count,
        rows: Vec::new(),
        samples: BTreeMap::new(),
        skipped: BTreeMap::new(),
        failed: BTreeMap::new(),
    };
    let runs = |group: &Group| group.rounds * group.probes(count).len();
    let total: usize = plan.groups.iter().map(runs).sum();
    let style = ProgressStyle::with_template("measuring [{bar:40}] {pos}/{len} {msg}")?;
    let bar = ProgressBar::new(total as u64).with_style(style);
    for group in &plan.groups {
        let mut samples: BTreeMap<Probe, Vec<Sample>> = BTreeMap::new();
        let mut broken = BTreeSet::new();
        for _ in 0..group.rounds {
            for probe in group.probes(count) {
                bar.set_message(format!("{}: {}", group.title, probe.label()));
                bar.inc(1);
                if broken.contains(&probe) {
                    continue;
                }
                if let Some(why) = place.lacks(&probe) {
                    results.skipped.insert(probe, why);
                    continue;
                }
                match attempt(place, &probe, plan.run_length) {
                    Ok(sample) => samples.entry(probe).or_default().push(sample),
                    Err(why) => {
                        broken.insert(probe.clone());
                        samples.remove(&probe);
                        results.failed.insert(probe, format!("{why:#}"));
                    }
                }
            }
        }
        results.add(group, samples);
    }
    bar.finish_and_clear();
    place.pin(Cores::All)?;
    Ok(results)
}

/// Runs a probe, more than once if need be: an unmodified program may fail by itself. The
/// clients of perftest with `-R` connect twice, and do not wait for the second listener.
fn attempt(place: &mut Place, probe: &Probe, run_length: RunLength) -> Result<Sample> {
    let again = match probe.device {
        Device::Rxe => 1,
        Device::Siw | Device::SiwCrc => 9,
    };
    let mut sample = run::run(place, probe, run_length);
    for _ in 0..again {
        sample = sample.or_else(|_| run::run(place, probe, run_length));
    }
    sample
}

/// Compares the samples of a row's probes; returns `None` if one of them failed.
fn judge(plan: &RowPlan, samples: &BTreeMap<Probe, Vec<Sample>>, cores: Cores) -> Option<Row> {
    let of = |probe| Some(figures(samples.get(probe)?, plan.metric));
    let ours = of(&plan.probe).filter(|figures| !figures.is_empty())?;
    let against = match &plan.against {
        None => None,
        Some(reference) => {
            let theirs = of(&reference.probe).filter(|figures| !figures.is_empty())?;
            let ratios = ours.iter().zip(&theirs).map(|(a, b)| a / b);
            let ratio = median(ratios);
            Some((reference.name, median(theirs.into_iter()), ratio))
        }
    };
    let mut what = plan.probe.label();
    if plan.metric == Metric::P99 {
        what += ", 99 %";
    }
    Some(Row {
        what,
        side: cores.name(),
        value: median(ours.into_iter()),
        fastest: None,
        unit: plan.metric.unit(),
        against,
        goal: plan.goal,
    })
}

fn figures(samples: &[Sample], metric: Metric) -> Vec<f64> {
    samples
        .iter()
        .filter_map(|sample| sample.get(metric))
        .collect()
}
