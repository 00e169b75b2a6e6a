//! Measures the network path: queue pairs compared with plain sockets and TCP.
//!
//! ```text
//!   main: creates and removes a runtime directory
//!    '- coordinator: private network, links, sequence of measurements, table
//!        |- ferroced, one for each network namespace
//!        |- worker <--- traffic ---> worker      on loopback
//!        |- worker <--- traffic ---> worker      over a veth pair
//!        '- iperf3
//! ```
//!
//! All processes but the last are this executable.

mod coordinator;
mod idle;
mod iperf;
mod plan;
mod queue_pairs;
mod requests;
mod worker;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use plan::Part;

/// Measure the network path: bandwidth, latency and idle activity.
///
/// Two processes communicate over loopback, and over a veth pair between two network
/// namespaces. Each measurement alternates with its references. Figures are medians
/// over the rounds, and ratios are medians of each round's ratio.
#[derive(Debug, Parser)]
#[command(name = "wire", after_help = EXAMPLES)]
struct Cli {
    /// Run few and short rounds, with less precise figures.
    #[arg(long)]
    quick: bool,

    /// Print comma-separated values instead of a table.
    #[arg(long)]
    csv: bool,

    /// Measure only this part; may be given several times.
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,

    /// Measure only over loopback.
    #[arg(long)]
    loopback: bool,

    /// Number of rounds.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// Role of one of the benchmark's own processes
    #[arg(long, hide = true)]
    role: Option<Role>,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask bench wire                     all parts, two minutes
  cargo xtask bench wire --quick             fewer and shorter rounds
  cargo xtask bench wire --only latency      one part
  cargo xtask bench wire --csv > wire.csv    for a spreadsheet

OUTPUT
  figure          median over the rounds
  compared with   the reference:
                  bare       plain UDP sockets with segmentation in both directions, one
                             copy and one CRC on either side, one acknowledgement each
                             256 KiB; or a plain UDP ping-pong. Both ends poll.
                  iperf3     one TCP stream, where iperf3 is installed
                  floor      the socket floor, see below
  ratio           figure divided by the reference; median over the rounds
  verdict         ok or MISSED if there is a goal

  Latency is half a round trip. The socket floor is also a ping-pong of plain sockets,
  but it uses them as a reliable queue pair must: not connected, with an ACK sent along
  with each message, and with addresses and ECN marks reported to the receiver.
  For an idle device, wakeups and processor time of its threads are counted.

EXIT STATUS
  0 if the measurement worked, with any verdicts; 1 if it failed.";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Coordinator,
    Worker,
}

fn main() -> ExitCode {
    ferroce_bench::run_roles("wire", |cli: &Cli| {
        Some(match cli.role? {
            Role::Coordinator => coordinator::run(cli),
            Role::Worker => worker::run(),
        })
    })
}
