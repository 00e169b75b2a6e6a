//! The program `ferroce`: RDMA links, counters, and everything else from the command line.
//!
//! One executable has several names. Called as `ferroced` it is the daemon, so that
//! `ferroce link add` can start one of its own release and nothing has to be installed.

mod cli;
mod command;
mod daemon;
mod demo;
mod link;
mod output;
mod run;
mod stat;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    if Path::new(&name).file_name() == Some(OsStr::new("ferroced")) {
        return ferroce_daemon::main();
    }
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
