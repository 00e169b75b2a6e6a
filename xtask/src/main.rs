//! Project automation: the same commands for people and CI.
//!
//! Each command is a list of steps; a step announces itself, runs, and says how
//! long it took. The first that fails ends the run. What the steps print goes
//! through unchanged; announcements go to standard error.

mod beside;
mod check;
mod cli;
mod deb;
mod install;
mod library;
mod packages;
mod rules;
mod step;
mod tasks;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Bench, Cli, Command};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Build { release } => tasks::build(release),
        Command::Check => check::run(),
        Command::Test => tasks::test(),
        Command::Programs { args } => tasks::programs(&args),
        Command::Interop { args } => tasks::interop(&args),
        Command::Install(args) => install::run(&args),
        Command::Deb { debug } => deb::build(!debug).map(|_package| ()),
        Command::PackageTest { debug } => deb::test(!debug),
        Command::Demo { args } => tasks::demo(&args),
        Command::Sim { args } => tasks::sim(&args),
        Command::Soak { args } => tasks::soak(&args),
        Command::Bench(Bench::Engine { beside, args }) => tasks::bench_engine(beside, &args),
        Command::Bench(Bench::Wire { beside, args }) => tasks::bench_wire(beside, &args),
        Command::Bench(Bench::Connections { args }) => tasks::bench_connections(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nFAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}
