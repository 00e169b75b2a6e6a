//! `sudo` before a command of a guide, under `ferroce run` and `ferroce shell`.
//!
//! The real one forgets PATH and LD_LIBRARY_PATH, so what it starts would not find
//! Ferroce; and Ferroce needs no root. So RDMA's commands are run as they are; all else
//! is left to the real one.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow, bail};

/// Programs that need no root with Ferroce, by how their names begin.
const OURS: [&str; 11] = [
    "ferroce", "rdma", "rxe_", "ib_", "ibv_", "ibstat", "ibping", "rping", "ucmatose", "udaddy",
    "qperf",
];

/// Runs the command, with or without the real sudo.
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
                _ => bail!("sudo is not installed; RDMA's own commands need none here"),
            },
        },
    };
    Err(anyhow!("cannot run it: {error}"))
}

fn is_ours(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    let mut ours = OURS.iter();
    ours.any(|ours| name.as_bytes().starts_with(ours.as_bytes()))
}

/// The first sudo on PATH that is not this executable.
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
    fn rdmas_commands_need_no_root() {
        for ours in ["rdma", "/usr/bin/ibv_devinfo", "ib_send_bw", "rxe_cfg"] {
            assert!(is_ours(OsStr::new(ours)), "{ours}");
        }
        for theirs in ["apt", "ip", "modprobe", "-u", "sh"] {
            assert!(!is_ours(OsStr::new(theirs)), "{theirs}");
        }
    }
}
