//! `cargo xtask check`: static checks of the sources.

use anyhow::{Result, bail};

use crate::deny;
use crate::rules::{self, Rule};
use crate::step::{cargo, cargo_with, root, step};

const FUZZ: &str = "fuzz/Cargo.toml";

/// Runs all checks and stops at the first that fails.
pub(crate) fn run() -> Result<()> {
    step("Formatting", || {
        cargo(&["fmt", "--all", "--check"])?;
        cargo(&["fmt", "--manifest-path", FUZZ, "--check"])
    })?;
    step("Source rules", source_rules)?;
    step("Dependencies", deny::run)?;
    step("Lints", || {
        clippy(&["--workspace", "--all-targets"])?;
        // The simulator enables the feature `bugs` for the whole workspace, so check the
        // RoCE engine, the wires and the shard again without it.
        let packages = ["ferroce-roce", "ferroce-net", "ferroce-shard"];
        let without_bugs = packages.iter().flat_map(|name| ["--package", name]);
        let line: Vec<&str> = without_bugs.chain(["--all-targets"]).collect();
        clippy(&line)?;
        clippy(&["--package", "ferroce-wire", "--no-default-features"])
    })?;
    step("Documentation", || {
        cargo_with(
            &["doc", "--workspace", "--no-deps"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        )
    })?;
    step("Fuzz targets", fuzz_targets)?;
    step("Instructions per packet", crate::bench::check_instructions)?;
    eprintln!("\nAll checks passed.");
    Ok(())
}

fn clippy(packages: &[&str]) -> Result<()> {
    let mut args = vec!["clippy", "--quiet"];
    args.extend(packages);
    args.extend(["--", "-D", "warnings"]);
    cargo(&args)
}

/// Checks the fuzz targets without linking them. Building libfuzzer needs a C++ compiler;
/// naming a library file in its place avoids that, and the file need not exist.
fn fuzz_targets() -> Result<()> {
    cargo_with(
        &["check", "--manifest-path", FUZZ],
        &[("CUSTOM_LIBFUZZER_PATH", "unused/libunused.a")],
    )
}

fn source_rules() -> Result<()> {
    let files = rules::files(&root())?;
    let mut broken = 0;
    for Rule { name, check } in rules::ALL {
        let complaints: Vec<String> = check(&files);
        let verdict = if complaints.is_empty() {
            "ok"
        } else {
            "BROKEN"
        };
        eprintln!("   {name}: {verdict}");
        for complaint in &complaints {
            eprintln!("      {complaint}");
        }
        broken += complaints.len();
    }
    if broken > 0 {
        bail!("the sources break the rules above in {broken} places");
    }
    eprintln!("   {} files checked", files.len());
    Ok(())
}
