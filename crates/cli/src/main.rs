//! The program `ferroce`: RDMA links, counters, and everything else from the command line.
//!
//! One executable has several names. Called as `ferroced` it is the daemon, so that
//! `ferroce link add` can start one of its own release and nothing has to be installed. As
//! `rdma`, `rxe_cfg` and `rxe_init.sh` it does what guides tell people to type.

mod cli;
mod command;
mod complete;
mod config;
mod daemon;
mod demo;
mod devinfo;
mod doctor;
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
        _ => return ended(cli::run()),
    };
    ended(result.map(|()| ExitCode::SUCCESS))
}

fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
