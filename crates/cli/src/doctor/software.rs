//! Our libraries, and an actual transfer.

use std::process::{Command, Stdio};

use super::{Finding, State};
use crate::daemon;
use crate::run::libraries;

pub(super) fn findings() -> Vec<Finding> {
    let Some(folder) = libraries::folder() else {
        let text = "no libibverbs.so.1 of Ferroce's beside this executable";
        let remedy = "cargo xtask build makes it; FERROCE_LIB_DIR says where it is otherwise";
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
            format!("{shown}, which programs started here load"),
        ),
        false => Finding::ok("library", format!("{shown}; programs load it under"))
            .remedy("ferroce run -- PROGRAM, or ferroce shell (they set LD_LIBRARY_PATH)"),
    });
    for (name, what) in [
        ("librdmacm.so.1", "programs that connect through rdma_cm"),
        (
            "libferroce-preload.so",
            "programs that look into /sys/class/infiniband",
        ),
    ] {
        if !folder.join(name).exists() {
            let text = format!("no {name}: {what} do not find Ferroce");
            findings.push(Finding::new("library", State::Note, text));
        }
    }
    findings
}

/// Two processes on a private link, every byte checked.
pub(super) fn transfer() -> Finding {
    let output = Command::new(daemon::OURSELVES)
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
