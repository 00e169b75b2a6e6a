//! Long runs under bad conditions: ferroced is killed, stopped and starved while programs
//! work, and at the end nothing may be left behind.
//!
//! ```text
//!   main: a runtime directory, removed at the end
//!    '- coordinator: a private network, a small disk, the order of disturbances, the checks
//!        |- ferroced, again and again
//!        |- two workers, which write to each other all the time
//!        '- visitors, which open and close devices
//! ```
//!
//! All processes are this executable.

mod coordinator;
mod disturbance;
mod traces;
mod worker;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// Disturb ferroced and its programs for some minutes, and look for remains.
///
/// Two programs write to each other and check every byte, while ferroced is killed and
/// restarted, stopped, and left without disk space, other programs open devices and are
/// killed, and network namespaces come and go. At the end there must be no process, socket,
/// descriptor, mapping or file more than before.
#[derive(Debug, Parser)]
#[command(name = "soak", after_help = EXAMPLES)]
struct Cli {
    /// How long to disturb.
    #[arg(long, value_name = "N", default_value_t = 5.0)]
    minutes: f64,

    /// Decides the order of disturbances; random if not given.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,

    /// The part of one of the processes
    #[arg(long, hide = true)]
    role: Option<Role>,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask soak                     five minutes
  cargo xtask soak --minutes 0.5       a first impression
  cargo xtask soak --seed 7            the same disturbances again

EXIT STATUS
  0 if all programs went on and nothing was left behind, 1 otherwise.";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Coordinator,
    Worker,
}

fn main() -> ExitCode {
    ferroce_bench::run_roles("soak", |cli: &Cli| {
        Some(match cli.role? {
            Role::Coordinator => coordinator::run(cli),
            Role::Worker => worker::run(),
        })
    })
}
