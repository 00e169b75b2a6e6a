//! Measures connection setup and teardown with rdma_cm's calls, as a C program makes them.
//!
//! ```text
//!   main: creates and removes a runtime directory
//!    '- coordinator: private network, link, sequence of measurements, table
//!        |- ferroced
//!        |- client --- connects, disconnects ---> server
//! ```
//!
//! All processes are this executable.

mod client;
mod coordinator;
mod ids;
mod server;
mod usage;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// Measure connection setup and teardown, and check for resource leaks.
///
/// A client and a server, two processes on one machine, connect and disconnect
/// repeatedly; then they open many connections concurrently. Afterwards neither
/// they nor ferroced may have more descriptors or 4 MiB more memory than before.
#[derive(Debug, Parser)]
#[command(name = "connections", after_help = EXAMPLES)]
struct Cli {
    /// Number of connections made one after the other.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    cycles: u32,

    /// Number of connections open at the same time.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    open: u32,

    /// Give the link the option `local`, the default of links: packets and messages between the
    /// two programs stay on the machine and take no UDP.
    #[arg(long)]
    local: bool,

    /// Role of one of the benchmark's own processes
    #[arg(long, hide = true)]
    role: Option<Role>,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask bench connections                   20,000 one after the other, 1,000 at once
  cargo xtask bench connections --cycles 1000     fewer connections
  cargo xtask bench connections --local           without UDP between the two programs

OUTPUT
  set-up      from rdma_create_id to the ESTABLISHED event: address and route resolved, queue
              pair created, REQ, REP and RTU exchanged
  left over   descriptors and memory that each process gained

EXIT STATUS
  0 if there are no leaks; 1 if there is a leak or a connection failed.";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Coordinator,
    Client,
    Server,
}

fn main() -> ExitCode {
    ferroce_bench::run_roles("connections", |cli: &Cli| {
        Some(match cli.role? {
            Role::Coordinator => coordinator::run(cli),
            Role::Client => client::run(),
            Role::Server => server::run(),
        })
    })
}
