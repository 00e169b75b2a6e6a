//! Building, testing, simulating, measuring.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::library;
use crate::packages;
use crate::step::{cargo, last_step, root, step};

/// Packages that are built one by one; see the help of `build`.
const TOOLS: [&str; 2] = ["ferroce-sim", "ferroce-bench"];

pub(crate) fn build(release: bool) -> Result<()> {
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    step("Build what users run", || {
        let mut args = vec!["build", "--workspace"];
        for tool in TOOLS {
            args.extend(["--exclude", tool]);
        }
        args.extend(profile);
        cargo(&args)
    })?;
    step("Link the library that programs load", || {
        library::build(release)
    })?;
    for tool in TOOLS {
        step(&format!("Build {tool}"), || {
            let mut args = vec!["build", "--package", tool];
            args.extend(profile);
            cargo(&args)
        })?;
    }
    let folder = if release { "release" } else { "debug" };
    eprintln!("\nBuilt. The programs are in target/{folder}, the library in target/{folder}/lib.");
    Ok(())
}

pub(crate) fn test() -> Result<()> {
    step("Packages of the distribution", || {
        packages::install(&packages::FOR_TESTS)
    })?;
    step("Link the library that tests load", || library::build(false))?;
    step("Test the workspace", || cargo(&["test", "--workspace"]))?;
    step(
        "Test the transport as users get it, without its deliberate bugs",
        || cargo(&["test", "--package", "ferroce-transport"]),
    )?;
    programs(&[])
}

/// Real programs on what has been built.
pub(crate) fn programs(args: &[String]) -> Result<()> {
    if !have("real programs", &packages::PROGRAMS)? {
        return Ok(());
    }
    runner("Run real programs", "ferroce-programs", "programs", args)
}

/// Real programs, with the kernel's driver at the other end.
pub(crate) fn interop(args: &[String]) -> Result<()> {
    let packages = [&packages::PROGRAMS[..], &packages::VIRTUAL_MACHINE[..]].concat();
    if !have("the kernel at the other end", &packages)? {
        return Ok(());
    }
    let title = "Run against the Linux kernel's Soft-RoCE";
    runner(title, "ferroce-interop-kernel", "interop-kernel", args)
}

/// Installs packages, and tells whether all are there. CI has no excuse.
fn have(what: &str, packages: &[&str]) -> Result<bool> {
    step("Programs of the distribution", || {
        packages::install(packages)
    })?;
    let Some(missing) = packages.iter().find(|p| !packages::is_installed(p)) else {
        return Ok(true);
    };
    eprintln!("\n*** SKIPPED: {what}: {missing} is not installed ***\n");
    if std::env::var_os("CI").is_some() {
        bail!("CI must not skip {what}");
    }
    Ok(false)
}

/// Builds what programs run on, and a runner; runs that.
fn runner(title: &str, package: &str, name: &str, args: &[String]) -> Result<()> {
    step("Build what they run on", || {
        cargo(&["build", "--package", "ferroce-cli", "--package", package])?;
        library::build(false)
    })?;
    last_step(title, || {
        let folder = library::target_dir().join("debug");
        let status = Command::new(folder.join(name))
            .arg("--ferroce")
            .arg(folder.join("ferroce"))
            .args(args)
            .current_dir(root())
            .status()
            .context("cannot start the runner")?;
        ensure!(status.success(), "not all is well, see above");
        Ok(())
    })
}

pub(crate) fn demo(args: &[String]) -> Result<()> {
    let mut line = vec!["demo".to_string()];
    line.extend_from_slice(args);
    tool("Demonstrate", &["ferroce-cli", "--bin", "ferroce"], &line)
}

pub(crate) fn sim(args: &[String]) -> Result<()> {
    tool("Simulate", &["ferroce-sim"], args)
}

pub(crate) fn bench_engine(args: &[String]) -> Result<()> {
    tool(
        "Measure the engine",
        &["ferroce-bench", "--bin", "engine"],
        args,
    )
}

pub(crate) fn bench_connections(args: &[String]) -> Result<()> {
    tool(
        "Measure connections",
        &["ferroce-bench", "--bin", "connections"],
        args,
    )
}

pub(crate) fn bench_wire(args: &[String]) -> Result<()> {
    step("iperf3, to compare with", || {
        if let Err(error) = packages::install(&["iperf3"]) {
            // The benchmark says what it leaves out.
            eprintln!("   {error:#}");
        }
        Ok(())
    })?;
    tool(
        "Measure the network path",
        &["ferroce-bench", "--bin", "wire"],
        args,
    )
}

/// Builds and runs a tool, optimised.
fn tool(title: &str, package: &[&str], args: &[String]) -> Result<()> {
    last_step(title, || {
        let mut line = vec!["run", "--quiet", "--release", "--package"];
        line.extend(package);
        line.push("--");
        line.extend(args.iter().map(String::as_str));
        cargo(&line)
    })
}
