//! Project automation: the same commands for developers and CI.
//!
//! Each command is a list of steps. A step prints its title, runs, and prints its duration.
//! The first step that fails ends the run. Titles go to standard error; the output of the
//! steps is unchanged.

mod bench;
mod beside;
mod bundle;
mod check;
mod cli;
mod deb;
mod deny;
mod dist;
mod elf;
mod install;
mod library;
mod packages;
mod roots;
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
        Command::Packages => packages::list(),
        Command::Programs { args } => tasks::programs(&args),
        Command::Interop { args } => tasks::interop(&args),
        Command::Install(args) => install::run(&args),
        Command::Deb { debug } => deb::build(!debug).map(|_package| ()),
        Command::Dist { attempt } => dist::run(attempt),
        Command::PackageTest { debug } => deb::test(!debug),
        Command::Demo { args } => tasks::demo(&args),
        Command::Sim { args } => tasks::sim(&args),
        Command::Soak { args } => tasks::soak(&args),
        Command::Bench(Bench::Engine { beside, args }) => tasks::bench_engine(beside, &args),
        Command::Bench(Bench::Wire { beside, args }) => tasks::bench_wire(beside, &args),
        Command::Bench(Bench::Programs { vm: true, args, .. }) => tasks::bench_vm(&args),
        Command::Bench(Bench::Programs { bundle, args, .. }) => bench::programs(bundle, &args),
        Command::Bench(Bench::Instructions { args }) => bench::instructions(&args),
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
