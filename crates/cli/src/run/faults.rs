//! The faults of `ferroce run`: from the command line, a scenario file or a seed.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use ferroce_device::faults::CountsPage;
use ferroce_faults::{COUNTS_VARIABLE, Plan, VARIABLE, draw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde::Deserialize;

/// Options about faults.
#[derive(Debug, Args)]
pub(super) struct FaultOptions {
    /// Provoke these faults, separated by `;` (see FAULTS below)
    #[arg(long, value_name = "FAULTS")]
    faults: Option<String>,

    /// Provoke the faults of a TOML file
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,

    /// Draw faults from this seed, print them, and provoke them
    #[arg(long, value_name = "SEED")]
    chaos: Option<u64>,
}

impl FaultOptions {
    /// Returns the faults; none if there are none.
    pub(super) fn plan(&self) -> Result<Option<Plan>> {
        let mut parts = Vec::new();
        if let Some(seed) = self.chaos {
            let drawn = draw(seed);
            eprintln!("chaos: --faults '{drawn}'");
            parts.push(drawn);
        }
        if let Some(path) = &self.scenario {
            parts.push(read(path)?);
        }
        parts.extend(self.faults.clone());
        if parts.is_empty() {
            return Ok(None);
        }
        let plan = Plan::parse(&parts.join("; "))?;
        Ok((!plan.is_empty()).then_some(plan))
    }
}

/// The counts that all programs of a run share.
pub(super) struct RunCounts {
    file: OwnedFd,
}

impl RunCounts {
    pub(super) fn new() -> Result<RunCounts> {
        // Programs inherit the descriptor, so that the counts last as long as the run.
        let file = memfd_create("ferroce-faults", MemfdFlags::ALLOW_SEALING);
        let file = file.context("cannot create shared counts")?;
        ftruncate(&file, CountsPage::LENGTH as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Ok(RunCounts { file })
    }

    /// Returns the environment of programs with these faults.
    pub(super) fn environment(&self, plan: &str) -> [(&'static str, String); 2] {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        [(VARIABLE, plan.to_owned()), (COUNTS_VARIABLE, path)]
    }

    /// Keeps the counts open until the program that replaces this process ends.
    pub(super) fn keep(self) {
        core::mem::forget(self);
    }

    /// Returns how many packets or calls a fault has selected, and how many it has changed.
    pub(super) fn read(&self, fault: usize) -> Result<(u64, u64)> {
        let mut bytes = vec![0; CountsPage::LENGTH];
        rustix::io::pread(&self.file, &mut bytes, 0)?;
        CountsPage::read(&bytes, fault).context("no such fault")
    }
}

/// A scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// The purpose of the scenario, for readers of the file.
    #[serde(default)]
    #[allow(dead_code)] // for readers of the file
    description: String,
    seed: Option<u64>,
    #[serde(default)]
    faults: Vec<String>,
    #[serde(default)]
    step: Vec<Step>,
}

/// Faults that begin later, or end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: String,
    #[serde(rename = "for")]
    lasts: Option<String>,
    faults: Vec<String>,
}

/// Reads a scenario file.
fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read scenario {}", path.display()))?;
    statements(&text).with_context(|| format!("scenario {}", path.display()))
}

/// Returns the faults of a scenario as statements.
fn statements(text: &str) -> Result<String> {
    let scenario: Scenario = toml::from_str(text)?;
    let seed = scenario.seed.map(|seed| format!("seed {seed}"));
    let mut parts: Vec<String> = seed.into_iter().chain(scenario.faults).collect();
    for step in scenario.step {
        let lasts = step.lasts.map(|lasts| format!(" for {lasts}"));
        let window = format!(" at {}{}", step.at, lasts.unwrap_or_default());
        parts.extend(step.faults.into_iter().map(|fault| fault + &window));
    }
    let text = parts.join("; ");
    Plan::parse(&text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_is_a_list_of_faults_and_steps() {
        let text = statements(
            r#"
            description = "a bad cable, unplugged for a second"
            seed = 7
            faults = ["loss 1% burst 4", "delay 2ms"]
            [[step]]
            at = "2s"
            for = "1s"
            faults = ["partition"]
            "#,
        );
        let expected = "seed 7; loss 1% burst 4; delay 2ms; partition at 2s for 1s";
        assert_eq!(text.unwrap(), expected);
    }

    #[test]
    fn mistake_in_a_scenario_names_the_word() {
        let error = statements("faults = ['los 1%']").unwrap_err();
        assert!(format!("{error:#}").contains("`los` is not a fault"));
        let error = statements("fault = ['loss 1%']").unwrap_err();
        assert!(format!("{error:#}").contains("unknown field `fault`"));
    }
}
