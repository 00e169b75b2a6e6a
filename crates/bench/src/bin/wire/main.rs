//! What the network path costs: our queue pairs beside plain sockets and TCP.
//!
//! ```text
//!   main: a runtime directory, removed at the end
//!    '- stage: a private network, links, the order of things, the table
//!        |- ferroced, one for each network
//!        |- worker <--- what is measured ---> worker      on loopback
//!        |- worker <--- what is measured ---> worker      with a virtual cable between them
//!        '- iperf3
//! ```
//!
//! All processes but the last are this executable.

mod bare;
mod framed;
mod idle;
mod iperf;
mod orders;
mod ours;
mod plan;
mod stage;
mod worker;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use plan::Part;

/// Measure the network path: bandwidth, latency and idleness.
///
/// Two processes talk to each other over loopback, and over a virtual cable (veth)
/// between two network namespaces. What we do is measured in turns with what it is
/// compared with; figures are medians over the rounds, and ratios are medians of the
/// ratios round by round.
#[derive(Debug, Parser)]
#[command(name = "wire", after_help = EXAMPLES)]
struct Cli {
    /// Few and short rounds: rougher figures.
    #[arg(long)]
    quick: bool,

    /// Print comma-separated values instead of a table.
    #[arg(long)]
    csv: bool,

    /// Measure only this; may be given several times.
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,

    /// Measure only over loopback.
    #[arg(long)]
    loopback: bool,

    /// Rounds.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// What one of the benchmark's own processes does
    #[arg(long, hide = true)]
    role: Option<Role>,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask bench wire                     everything, two minutes
  cargo xtask bench wire --quick             a first impression
  cargo xtask bench wire --only latency      one part
  cargo xtask bench wire --csv > wire.csv    for a spreadsheet

OUTPUT
  figure          median over the rounds
  compared with   what was measured in turns with it:
                  bare       plain UDP sockets with segmentation in both directions, one
                             copy and one CRC on either side, one acknowledgement each
                             256 KiB; or a plain UDP ping-pong. Both ends poll.
                  iperf3     one TCP stream, where iperf3 is installed
                  least      'the least', see below
  ratio           the first divided by the second; median over the rounds
  verdict         ok or MISSED where there is a goal

  Latency is half a round trip. 'The least' is a ping-pong of plain sockets too, used
  the way a reliable queue pair must: not connected, an acknowledgement along with each
  message, addresses and marks shown to the receiver.
  An idle device counts wakeups and processor time of its threads.

EXIT STATUS
  0 if the measurement worked, whatever the verdicts; 1 if it did not.";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Stage,
    Worker,
}

fn main() -> ExitCode {
    if let Some(code) = ferroce_bench::played() {
        return code;
    }
    let cli = Cli::parse();
    let result = match cli.role {
        None => ferroce_bench::on_stage("wire"),
        Some(Role::Stage) => stage::run(&cli),
        Some(Role::Worker) => worker::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
