//! Checks of Ferroce's libraries, and of a data transfer.

use std::process::{Command, Stdio};

use super::{Finding, State};
use crate::daemon;
use crate::run::libraries;

pub(super) fn findings() -> Vec<Finding> {
    let Some(folder) = libraries::folder() else {
        let text = "Ferroce's libibverbs.so.1 is not beside this executable";
        let remedy = "Build it with `cargo xtask build`, or set FERROCE_LIB_DIR to its directory.";
        return vec![Finding::new("library", State::Fails, text).remedy(remedy)];
    };
    let mut findings = Vec::new();
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path);
    let used = dirs.any(|dir| dir.canonicalize().is_ok_and(|dir| dir == folder));
    let shown = folder.display();
    findings.push(match used {
        true => Finding::ok(
            "library",
            format!("{shown}; programs started from this shell load it"),
        ),
        false => Finding::ok(
            "library",
            format!("{shown}; programs load it if started with"),
        )
        .remedy("ferroce run -- PROGRAM, or from ferroce shell (they set LD_LIBRARY_PATH)"),
    });
    for (name, what) in [
        ("librdmacm.so.1", "programs that use rdma_cm"),
        (
            "libferroce-preload.so",
            "programs that read /sys/class/infiniband",
        ),
    ] {
        if !folder.join(name).exists() {
            let text = format!("{name} is missing: {what} will not find Ferroce's links");
            findings.push(Finding::new("library", State::Note, text));
        }
    }
    findings
}

/// Runs `ferroce demo --brief`: two processes on a private link, every byte checked.
pub(super) fn transfer() -> Finding {
    let output = Command::new(daemon::THIS_EXECUTABLE)
        .args(["demo", "--brief"])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout);
            let lines = said.lines().filter(|line| line.starts_with("  "));
            let lines: Vec<&str> = lines.map(str::trim).collect();
            Finding::ok(
                "transfer",
                format!("two processes over loopback:\n{}", lines.join("\n")),
            )
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Finding::new("transfer", State::Fails, said.trim())
        }
        Err(error) => Finding::new("transfer", State::Fails, error.to_string()),
    }
}
