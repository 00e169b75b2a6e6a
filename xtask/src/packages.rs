//! Debian packages that tests need: headers to compare with, and programs to run.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Packages that `cargo test` needs, beside those of [`PROGRAMS`].
pub(crate) const FOR_TESTS: [&str; 7] = [
    "gdb",
    "libclang-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "tmux",
    "tshark",
    "valgrind",
];

/// Packages with the programs of `cargo xtask programs`.
pub(crate) const PROGRAMS: [&str; 16] = [
    "rdmacm-utils",
    "iperf3",
    "curl",
    "ibverbs-utils",
    "infiniband-diags",
    "perftest",
    "qperf",
    "ucx-utils",
    "libfabric-bin",
    "openmpi-bin",
    "python3-mpi4py",
    "python3-pyverbs",
    "fio",
    "tgt",
    "libiscsi-bin",
    "qemu-system-x86",
];

/// Packages with the programs of `cargo xtask bench programs`.
pub(crate) const MEASURED: [&str; 5] =
    ["iperf3", "perftest", "qperf", "ucx-utils", "libfabric-bin"];

/// Packages that build and run the virtual machine of `cargo xtask interop`, and decode its
/// packets.
pub(crate) const VIRTUAL_MACHINE: [&str; 7] = [
    "cpio",
    "e2fsprogs",
    "mmdebstrap",
    "python3-minimal",
    "qemu-system-x86",
    "rdmacm-utils",
    "tshark",
];

/// Prints the packages that `cargo xtask test` needs, on one line.
pub(crate) fn list() -> Result<()> {
    println!("{} {}", FOR_TESTS.join(" "), PROGRAMS.join(" "));
    Ok(())
}

/// Installs missing packages with apt-get if the user is root. Otherwise names them; each
/// test that needs one of them reports that it is skipped.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if missing.is_empty() {
        eprintln!("   all installed: {}", packages.join(", "));
        return Ok(());
    }
    if !may_install() {
        eprintln!(
            "   NOT INSTALLED: {}; tests that need them will be skipped. \
             As root on Debian: apt-get install {}",
            missing.join(", "),
            missing.join(" ")
        );
        return Ok(());
    }
    apt_get(&["update", "--quiet"], &[])?;
    let install = ["install", "--yes", "--no-install-recommends", "--quiet"];
    apt_get(&install, &missing)
}

pub(crate) fn is_installed(package: &str) -> bool {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output();
    output.is_ok_and(|output| output.stdout == b"installed")
}

fn may_install() -> bool {
    let silent = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        output.ok().filter(|output| output.status.success())
    };
    let root = silent("id", "-u").is_some_and(|output| output.stdout.trim_ascii() == b"0");
    root && silent("apt-get", "--version").is_some()
}

fn apt_get(arguments: &[&str], packages: &[&str]) -> Result<()> {
    let line = format!("apt-get {} {}", arguments.join(" "), packages.join(" "));
    eprintln!("   $ {line}");
    let status = Command::new("apt-get")
        .args(arguments)
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null())
        .status()
        .context("cannot start apt-get")?;
    if !status.success() {
        bail!("`{line}` reported the errors above ({status})");
    }
    Ok(())
}
