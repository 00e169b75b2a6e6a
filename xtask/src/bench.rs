//! `cargo xtask bench programs`: unmodified programs beside other transports.

use anyhow::Result;

use crate::library;
use crate::packages;
use crate::step::{cargo, last_step, step};
use crate::tasks::{build_line, run_built};

/// The runner: an executable of the benchmark crate.
const RUNNER: &str = "ferroce-bench";

/// Builds Ferroce and the runner, and measures.
pub(crate) fn programs(args: &[String]) -> Result<()> {
    step("Programs to measure", || {
        if let Err(error) = packages::install(&packages::MEASURED) {
            // The runner reports programs that are missing.
            eprintln!("   {error:#}");
        }
        Ok(())
    })?;
    build()?;
    let mut line = vec!["programs".to_owned()];
    line.extend_from_slice(args);
    last_step("Measure programs", || run_built(RUNNER, &line))
}

fn build() -> Result<()> {
    step("Build ferroce, the libraries and the runner", || {
        cargo(&["build", "--release", "--package", "ferroce-cli"])?;
        library::build(true)?;
        cargo(&build_line("ferroce-bench", RUNNER))
    })
}
