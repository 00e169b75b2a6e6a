//! `cargo xtask bench programs`: unmodified programs beside other transports.
//! `cargo xtask bench instructions`: the engine's instructions for each packet.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

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

/// Counts the engine's instructions, and compares with those in crates/bench/instructions.json.
pub(crate) fn instructions(args: &[String]) -> Result<()> {
    step("valgrind, which counts", || {
        packages::install(&["valgrind"])
    })?;
    step("Build the engine's workloads", build_instructions)?;
    last_step("Count instructions", || run_instructions(args))
}

/// Counts as [`instructions`] does, as a step of `cargo xtask check`. Without valgrind, reports
/// that it is skipped; in CI that is an error.
pub(crate) fn check_instructions() -> Result<()> {
    let in_ci = std::env::var_os("CI").is_some();
    if in_ci {
        packages::install(&["valgrind"])?;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        ensure!(
            !in_ci,
            "CI must not skip the count of instructions: install valgrind"
        );
        eprintln!("   *** SKIPPED: valgrind, which counts instructions, is not installed ***");
        return Ok(());
    }
    build_instructions()?;
    run_instructions(&[])
}

/// Builds without the default features: the workloads need the engine only.
fn build_instructions() -> Result<()> {
    let line = build_line("ferroce-bench", "instructions");
    cargo(&[&line[..], &["--no-default-features"]].concat())
}

fn run_instructions(args: &[String]) -> Result<()> {
    let output = Command::new("rustc").arg("--version").output();
    let output = output.context("cannot start rustc")?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mut line = vec!["--rustc".to_owned(), version];
    line.extend_from_slice(args);
    run_built("instructions", &line)
}
