//! `sudo` under `ferroce run` and `ferroce shell`, for guides that put it before commands.
//!
//! The real sudo resets PATH and LD_LIBRARY_PATH, so a program that it starts would not load
//! Ferroce's libraries; and Ferroce needs no root. This sudo therefore runs RDMA commands as
//! the present user and hands all other commands to the real sudo.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow, bail};

/// Prefixes of the names of programs that need no root with Ferroce.
const OURS: [&str; 11] = [
    "ferroce", "rdma", "rxe_", "ib_", "ibv_", "ibstat", "ibping", "rping", "ucmatose", "udaddy",
    "qperf",
];

/// Replaces this process with the command, started with or without the real sudo.
pub(crate) fn run() -> Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let error = match arguments.split_first() {
        Some((program, rest)) if is_ours(program) => Command::new(program).args(rest).exec(),
        _ => match real() {
            Some(sudo) => Command::new(sudo).args(&arguments).exec(),
            None => match arguments.split_first() {
                Some((program, rest)) if rustix::process::geteuid().is_root() => {
                    Command::new(program).args(rest).exec()
                }
                _ => bail!(
                    "sudo is not installed, and this command needs it; RDMA commands (rdma, \
                     ibv_*, ib_* ...) run without it under Ferroce"
                ),
            },
        },
    };
    let program = arguments.first().map(|program| program.display());
    let program = program.map_or_else(|| "sudo".into(), |program| program.to_string());
    Err(anyhow!("cannot run {program}: {error}"))
}

fn is_ours(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    let mut ours = OURS.iter();
    ours.any(|ours| name.as_bytes().starts_with(ours.as_bytes()))
}

/// Returns the first sudo on PATH that is not this executable.
fn real() -> Option<PathBuf> {
    let ourselves = std::env::current_exe().ok()?.canonicalize().ok()?;
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join("sudo"))
        .find(|file| file.canonicalize().is_ok_and(|file| file != ourselves))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_commands_run_without_the_real_sudo() {
        for ours in ["rdma", "/usr/bin/ibv_devinfo", "ib_send_bw", "rxe_cfg"] {
            assert!(is_ours(OsStr::new(ours)), "{ours}");
        }
        for theirs in ["apt", "ip", "modprobe", "-u", "sh"] {
            assert!(!is_ours(OsStr::new(theirs)), "{theirs}");
        }
    }
}
