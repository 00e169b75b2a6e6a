//! The program `ferroce`: runs RDMA programs, manages links, shows state and counters.
//!
//! One executable has several names. Called as `ferroced` it is the daemon, so that
//! `ferroce link add` can start a daemon of the same release without an installation. Called
//! as `rdma`, `rxe_cfg` or `rxe_init.sh` it accepts the commands of Soft-RoCE guides.

mod arguments;
mod capture;
mod cli;
mod command;
mod complete;
mod config;
mod daemon;
mod demo;
mod devinfo;
mod doctor;
mod explain;
mod generate;
mod gids;
mod link;
mod output;
mod ping;
mod rdma;
mod resource;
mod run;
mod rxe_cfg;
mod rxe_init;
mod stat;
mod sudo;
mod top;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().and_then(OsStr::to_str);
    let result = match name {
        Some("ferroced") => return ferroce_daemon::main(),
        Some("rdma") => rdma::run(),
        Some("rxe_cfg") => rxe_cfg::run(),
        Some("rxe_init.sh") => rxe_init::run(),
        Some("sudo") => sudo::run(),
        _ => return exit_code(cli::run()),
    };
    exit_code(result.map(|()| ExitCode::SUCCESS))
}

/// Prints the error of a command that failed, and returns the exit status.
fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
