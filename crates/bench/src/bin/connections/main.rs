//! How connections come and go: rdma_cm's calls, made as a C program makes them.
//!
//! ```text
//!   main: a runtime directory, removed at the end
//!    '- stage: a private network, a link, the order of things, the table
//!        |- ferroced
//!        |- client --- connects, disconnects ---> server
//! ```
//!
//! All processes are this executable.

mod client;
mod ids;
mod server;
mod stage;
mod traces;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// Measure how connections are made and ended, and look what they leave behind.
///
/// A client and a server, two processes on one machine, connect and disconnect over and
/// over; then many connections are open at once. Afterwards neither of them nor ferroced
/// may have more descriptors or noticeably more memory than before.
#[derive(Debug, Parser)]
#[command(name = "connections", after_help = EXAMPLES)]
struct Cli {
    /// Connections that come and go, one after the other.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    cycles: u32,

    /// Connections that are open at once.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    open: u32,

    /// What one of the benchmark's own processes does
    #[arg(long, hide = true)]
    role: Option<Role>,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask bench connections                   20,000 one after the other, 1,000 at once
  cargo xtask bench connections --cycles 1000     a first impression

OUTPUT
  set-up      from rdma_create_id to the ESTABLISHED event: address and route resolved, queue
              pair created, REQ, REP and RTU exchanged
  left over   descriptors and memory of each process that it did not have before

EXIT STATUS
  0 if nothing was left over, 1 if something was or a connection failed.";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Stage,
    Client,
    Server,
}

fn main() -> ExitCode {
    if let Some(code) = ferroce_bench::played() {
        return code;
    }
    let cli = Cli::parse();
    let result = match cli.role {
        None => ferroce_bench::on_stage("connections"),
        Some(Role::Stage) => stage::run(&cli),
        Some(Role::Client) => client::run(),
        Some(Role::Server) => server::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
