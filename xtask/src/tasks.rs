//! The commands that build, test, simulate and measure.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::beside;
use crate::library;
use crate::packages;
use crate::step::{cargo, cargo_with, last_step, root, step};

/// Packages that are built one by one. The help of `build` explains why.
const TOOLS: [&str; 2] = ["ferroce-sim", "ferroce-bench"];

pub(crate) fn build(release: bool) -> Result<()> {
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    step("Build the programs for users", || {
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
        // Some tests of the workspace run real programs, too.
        packages::install(&[&packages::FOR_TESTS[..], &packages::PROGRAMS[..]].concat())
    })?;
    step("Link the library that tests load", || library::build(false))?;
    step("Test the workspace", || cargo(&["test", "--workspace"]))?;
    step(
        "Test the RoCE engine, the shard and the wires without injected bugs",
        || {
            let names = ["ferroce-roce", "ferroce-shard", "ferroce-net"];
            let packages = names.iter().flat_map(|name| ["--package", name]);
            cargo(&["test"].into_iter().chain(packages).collect::<Vec<_>>())
        },
    )?;
    step(
        "Test the device over UDP between programs of one host",
        || {
            let line = ["test", "--package", "ferroce-device", "--test", "system"];
            cargo_with(&line, &[("FERROCE_WIRE", "udp")])
        },
    )?;
    step("Test iWARP over TCP between programs of one host", || {
        let packages = [
            "--package",
            "ferroce-rdmacm",
            "--package",
            "ferroce-rsocket",
        ];
        let mut line = vec!["test", "--test", "iwarp"];
        line.extend(packages);
        // These tests need shared memory.
        line.extend(["--", "--skip", "memory::"]);
        cargo_with(&line, &[("FERROCE_WIRE", "tcp")])
    })?;
    step("Run all interleavings of the local wire's ring", || {
        cargo(&["test", "--manifest-path", "loom/Cargo.toml"])
    })?;
    programs(&[])?;
    // All rows run over UDP, as between hosts. A part runs over the default wire of one host.
    programs(&["--wire", "local", "--only", "perftest"].map(String::from))
}

/// Options of the runner that select recipes. Each recipe installs its packages by itself.
const RECIPES: [&str; 5] = ["--wheels", "--mpi", "--storage", "--video", "--suites"];

/// Runs unmodified RDMA programs.
pub(crate) fn programs(args: &[String]) -> Result<()> {
    let recipes = args.iter().any(|word| RECIPES.contains(&word.as_str()));
    if !recipes && !have("real programs", &packages::PROGRAMS)? {
        return Ok(());
    }
    runner("Run real programs", "ferroce-programs", "programs", args)
}

/// Runs unmodified RDMA programs with the kernel's driver at the other end.
pub(crate) fn interop(args: &[String]) -> Result<()> {
    let packages = [&packages::PROGRAMS[..], &packages::VIRTUAL_MACHINE[..]].concat();
    if !have("tests against the kernel", &packages)? {
        return Ok(());
    }
    let title = "Run against the Linux kernel's Soft-RoCE";
    runner(title, "ferroce-interop-kernel", "interop-kernel", args)
}

/// Measures unmodified programs in a virtual machine, beside its kernel's driver.
pub(crate) fn bench_vm(args: &[String]) -> Result<()> {
    step("Programs of the distribution", || {
        packages::install(&packages::VIRTUAL_MACHINE)
    })?;
    step("Build ferroce, the libraries and the runner", || {
        cargo(&["build", "--release", "--package", "ferroce-cli"])?;
        library::build(true)?;
        cargo(&build_line("ferroce-interop-kernel", "interop-kernel"))
    })?;
    let ferroce = library::target_dir().join("release/ferroce");
    let mut line = vec!["--speed".into(), "--ferroce".into()];
    line.push(ferroce.to_string_lossy().into_owned());
    line.extend_from_slice(args);
    last_step("Measure beside the kernel's driver", || {
        run_built("interop-kernel", &line)
    })
}

/// Installs packages. Returns true if all are installed. In CI a missing package is an error.
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

/// Builds ferroce, the libraries and a runner, and runs the runner.
fn runner(title: &str, package: &str, name: &str, args: &[String]) -> Result<()> {
    step("Build ferroce, the libraries and the runner", || {
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
        ensure!(status.success(), "{name} reported failures, see above");
        Ok(())
    })
}

/// Runs the demo. Builds the libraries as well, so that `ferroce run` works afterwards.
pub(crate) fn demo(args: &[String]) -> Result<()> {
    step("Build ferroce and the libraries that programs load", || {
        cargo(&build_line("ferroce-cli", "ferroce"))?;
        library::build(true)
    })?;
    let mut line = vec!["demo".to_string()];
    line.extend_from_slice(args);
    last_step("Run the demo", || run_built("ferroce", &line))?;
    let folder = library::target_dir().join("release");
    let ferroce = folder.join("ferroce");
    let ferroce = ferroce.strip_prefix(root()).unwrap_or(&ferroce);
    eprintln!(
        "\nTo run your own program: {} run -- PROGRAM",
        ferroce.display()
    );
    Ok(())
}

pub(crate) fn sim(args: &[String]) -> Result<()> {
    tool("Simulate", "ferroce-sim", "ferroce-sim", args)
}

pub(crate) fn bench_engine(beside: Option<PathBuf>, args: &[String]) -> Result<()> {
    bench("Measure the engine", "engine", beside, args)
}

/// Builds and runs a benchmark, by turns with the one of that name in the folder `beside`.
fn bench(title: &str, name: &str, beside: Option<PathBuf>, args: &[String]) -> Result<()> {
    let Some(folder) = beside else {
        return tool(title, "ferroce-bench", name, args);
    };
    step(&format!("Build {name}"), || {
        cargo(&build_line("ferroce-bench", name))
    })?;
    last_step(title, || {
        let after = library::target_dir().join("release").join(name);
        print!("{}", beside::compare(&folder.join(name), &after, args)?);
        Ok(())
    })
}

pub(crate) fn bench_connections(args: &[String]) -> Result<()> {
    tool("Measure connections", "ferroce-bench", "connections", args)
}

pub(crate) fn soak(args: &[String]) -> Result<()> {
    let title = "Disturb ferroced and its programs";
    tool(title, "ferroce-bench", "soak", args)
}

pub(crate) fn bench_wire(beside: Option<PathBuf>, args: &[String]) -> Result<()> {
    step("Install iperf3, to compare with", || {
        if let Err(error) = packages::install(&["iperf3"]) {
            // The benchmark reports rows that it leaves out.
            eprintln!("   {error:#}");
        }
        Ok(())
    })?;
    bench("Measure the network path", "wire", beside, args)
}

/// Builds and runs a tool, optimised.
fn tool(title: &str, package: &str, name: &str, args: &[String]) -> Result<()> {
    step(&format!("Build {name}"), || {
        cargo(&build_line(package, name))
    })?;
    last_step(title, || run_built(name, args))
}

/// Returns cargo's arguments for an optimised build of an executable. They do not silence
/// cargo: the first build takes minutes.
pub(crate) fn build_line<'a>(package: &'a str, name: &'a str) -> [&'a str; 6] {
    ["build", "--release", "--package", package, "--bin", name]
}

/// Runs an executable of the optimised build.
pub(crate) fn run_built(name: &str, args: &[String]) -> Result<()> {
    let program = library::target_dir().join("release").join(name);
    let status = Command::new(&program)
        .args(args)
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(
        status.success(),
        "{name} reported the errors above ({status})"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first build takes minutes, and without progress it looks like a hang.
    #[test]
    fn builds_show_their_progress() {
        let config = root().join(".cargo/config.toml");
        let config = std::fs::read_to_string(config).expect("the configuration of cargo");
        let alias = config.lines().find(|line| line.starts_with("xtask ="));
        assert!(!alias.expect("the alias").contains("quiet"), "{alias:?}");
        assert!(!build_line("p", "b").contains(&"--quiet"));
    }
}
