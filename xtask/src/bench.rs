//! `cargo xtask bench programs`: unmodified programs beside other transports.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::bundle;
use crate::library;
use crate::packages;
use crate::step::{cargo, last_step, root, step};
use crate::tasks::{build_line, run_built};

/// The runner: an executable of the benchmark crate.
const RUNNER: &str = "ferroce-bench";

/// Builds Ferroce and the runner, and measures. With `bundle`, copies all of it to that folder
/// instead.
pub(crate) fn programs(bundle: Option<PathBuf>, args: &[String]) -> Result<()> {
    step("Programs to measure", || {
        if let Err(error) = packages::install(&packages::MEASURED) {
            // The runner reports programs that are missing.
            eprintln!("   {error:#}");
        }
        Ok(())
    })?;
    build()?;
    if let Some(folder) = bundle {
        step("Copy the programs and their libraries", || {
            bundle::write(&folder, &commit())
        })?;
        eprintln!("\nTo measure: {}/run.sh --quick", folder.display());
        return Ok(());
    }
    let mut line: Vec<String> = ["programs", "--commit"].map(String::from).into();
    line.push(commit());
    line.extend_from_slice(args);
    last_step("Measure programs", || run_built(RUNNER, &line))
}

/// Returns the current commit, marked if files differ from it.
fn commit() -> String {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude=*"])
        .current_dir(root())
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok()
        .filter(|text| !text.is_empty())
        .unwrap_or("unknown".into())
}

fn build() -> Result<()> {
    step("Build ferroce, the libraries and the runner", || {
        cargo(&["build", "--release", "--package", "ferroce-cli"])?;
        library::build(true)?;
        cargo(&build_line("ferroce-bench", RUNNER))
    })
}
