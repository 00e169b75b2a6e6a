//! cargo-deny: licences, duplicates and sources of the crates that Ferroce depends on.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::library::target_dir;
use crate::step::{cargo_with, root};

/// The version that deny.toml is written for.
const VERSION: &str = "0.20.2";

/// Applies deny.toml without its advisories, whose database must be downloaded.
pub(crate) fn run() -> Result<()> {
    let tool = match find() {
        Some(tool) => tool,
        None => install()?,
    };
    let status = Command::new(&tool)
        .args(["check", "licenses", "bans", "sources"])
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot start {}", tool.display()))?;
    ensure!(
        status.success(),
        "dependencies violate deny.toml, see above"
    );
    Ok(())
}

/// Returns the folder in which [`install`] puts the tool.
fn folder() -> PathBuf {
    target_dir().join("tools")
}

/// Finds cargo-deny of this version, in target/tools or on PATH.
fn find() -> Option<PathBuf> {
    let tools = [folder().join("bin/cargo-deny"), "cargo-deny".into()];
    tools.into_iter().find(|tool| {
        let output = Command::new(tool).arg("--version").output();
        output.is_ok_and(|output| {
            String::from_utf8_lossy(&output.stdout)
                .split_whitespace()
                .last()
                == Some(VERSION)
        })
    })
}

/// Installs cargo-deny into target/tools. The build has no optimisation and no optional features:
/// it takes a minute on two cores. An optimised build takes five times as long, and the check
/// takes a second with either.
fn install() -> Result<PathBuf> {
    eprintln!("   cargo-deny {VERSION} is not installed: building it takes a minute");
    let (root, build) = (folder(), folder().join("build"));
    let package = format!("cargo-deny@{VERSION}");
    cargo_with(
        &[
            "install",
            "--quiet",
            "--locked",
            "--debug",
            "--no-default-features",
            "--root",
            root.to_str()
                .context("the target folder's name is not text")?,
            "--target-dir",
            build
                .to_str()
                .context("the target folder's name is not text")?,
            &package,
        ],
        &[
            ("CARGO_PROFILE_DEV_DEBUG", "false"),
            ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
        ],
    )?;
    let _large_and_not_needed_again = fs::remove_dir_all(build);
    Ok(root.join("bin/cargo-deny"))
}
