//! Measures unmodified programs over Ferroce, beside other transports.
//!
//! This executable and the programs are all that a measurement needs, so that it also runs
//! on machines without cargo.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ferroce_bench::programs::{
    Cores, LinkType, Machine, Place, Plan, Results, history, measure, page, work_with_sockets,
};
use ferroce_bench::{Report, end_with_parent};
use ferroce_control::temporary;

/// Measure unmodified programs over Ferroce.
#[derive(Debug, Parser)]
#[command(name = "ferroce-bench")]
struct Cli {
    /// Role of one of the benchmark's own processes
    #[arg(long, hide = true)]
    role: Option<Role>,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Sockets,
}

#[derive(Debug, Subcommand)]
enum Command {
    Programs(Programs),
}

/// Measure perftest, UCX, libfabric and qperf beside TCP and UDP.
///
/// Programs run as an ordinary user over a link on loopback, in a private network
/// namespace where that is permitted. Each round runs a program and its references one
/// after the other. Figures are medians over the rounds, and ratios are medians of each
/// round's ratio.
#[derive(Debug, Args)]
// The script of a bundle gives options, and those of its user override them.
#[command(after_help = EXAMPLES, args_override_self = true)]
struct Programs {
    /// Measure fewer rows in three short rounds: under three minutes.
    #[arg(long)]
    quick: bool,

    /// Type of the links. With siw: perftest over iWARP beside iperf3 and a ping-pong over TCP.
    #[arg(long = "type", value_name = "TYPE", value_enum, default_value = "rxe")]
    kind: TypeChoice,

    /// Measure only groups or programs whose name contains TEXT; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,

    /// Processors that the programs may use.
    #[arg(long, value_enum, default_value = "both")]
    cores: CoresChoice,

    /// Number of rounds; 5, or 3 with --quick, if not given.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// The `ferroce` to measure; the one beside this executable if not given.
    #[arg(long, value_name = "PATH")]
    ferroce: Option<PathBuf>,

    /// Folder with the measured programs in `bin` and their libraries in `lib`; the
    /// system's programs if not given.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,

    /// Folder for index.html and history.jsonl.
    #[arg(long, value_name = "DIR", default_value = "target/report")]
    report: PathBuf,

    /// Write the main plots, bandwidth and latency over the message size, to this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// The commit that was built, for the report.
    #[arg(long, value_name = "TEXT", default_value = "unknown")]
    commit: String,

    /// Print comma-separated values instead of a table.
    #[arg(long)]
    csv: bool,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask bench programs                     all rows and plots
  cargo xtask bench programs --quick             a part, under three minutes
  cargo xtask bench programs --only latency      one group of rows
  cargo xtask bench programs --only ib_write_lat --cores 2
  cargo xtask bench programs --type siw          iWARP beside TCP
  cargo xtask bench programs --plot docs/speed.svg
  cargo xtask bench programs --bundle DIR        copy everything to DIR, for a machine
                                                 without cargo; DIR/run.sh measures there

GROUPS
  latency, message rate, bandwidth, queue pairs, UCX, libfabric, qperf,
  bandwidth over size, latency over size, UCX over size
  with --type siw: latency, bandwidth, bandwidth with CRC

OUTPUT
  figure          median over the rounds. Latency is half a round trip: the median if the
                  program prints one (perftest, UCX), else the mean (qperf, libfabric).
                  k/s: thousands of messages per second.
  compared with   the reference, measured in the same rounds:
                  socket floor    UDP ping-pong with the socket settings of a queue pair
                  polling UDP     UDP ping-pong of connected sockets; both ends poll
                  blocking UDP    the same; both ends block in recv
                  plain UDP       segmented sends, a copy and a CRC on either side
                  iperf3          TCP, one stream for each queue pair
                  iperf3 -A 0,1   the same, with a processor for each end
                  polling TCP     TCP ping-pong with TCP_NODELAY; both ends poll
                  blocking TCP    the same; both ends block in recv
  verdict         ok or MISSED if there is a goal

FILES
  target/report/index.html      the table and plots of this run
  target/report/history.jsonl   a line of JSON for each run

EXIT STATUS
  0 if the measurement worked, with any verdicts; 1 if a program failed.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TypeChoice {
    /// RoCE over UDP.
    Rxe,
    /// iWARP over TCP.
    Siw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CoresChoice {
    /// The first two.
    #[value(name = "2")]
    Two,
    /// All.
    All,
    /// First all, then two.
    Both,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match (cli.role, cli.command) {
        (Some(Role::Sockets), _) => work_with_sockets(),
        (None, Some(Command::Programs(arguments))) => arguments.run(),
        (None, None) => Err(anyhow::anyhow!("a command is missing; see --help")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Programs {
    fn run(&self) -> Result<()> {
        end_with_parent()?;
        if cfg!(debug_assertions) {
            eprintln!("Note: built without optimisation; the figures are meaningless.");
        }
        let mut plan = match self.kind {
            TypeChoice::Rxe => Plan::new(self.quick, self.rounds),
            TypeChoice::Siw => Plan::iwarp(self.quick, self.rounds),
        };
        plan.keep(&self.only);
        ensure!(
            !plan.groups.is_empty(),
            "no group or program is named {:?}; --help lists the groups",
            self.only.join(", ")
        );
        let base = std::env::temp_dir();
        let folder = temporary::make(&base, "ferroce-bench-")
            .with_context(|| format!("cannot make a directory in {}", base.display()))?;
        let measured = self.measure(&plan, &folder);
        let removed = std::fs::remove_dir_all(&folder);
        let (machine, all) = measured?;
        removed.with_context(|| format!("cannot remove {}", folder.display()))?;
        self.write(&machine, &all)?;
        self.print(&all)
    }

    fn measure(&self, plan: &Plan, folder: &Path) -> Result<(Machine, Vec<Results>)> {
        let beside = || Ok::<_, anyhow::Error>(std::env::current_exe()?.with_file_name("ferroce"));
        let ferroce = match &self.ferroce {
            Some(path) => path.clone(),
            None => beside()?,
        };
        let kind = match self.kind {
            TypeChoice::Rxe => LinkType::Rxe,
            TypeChoice::Siw => LinkType::Siw,
        };
        let mut place = Place::enter(kind, &ferroce, self.programs.as_deref(), folder)?;
        eprintln!("{}", place.description());
        let choices: &[Cores] = match (self.cores, place.count(Cores::All)) {
            (_, ..=2) => {
                eprintln!("This machine has two cores: \"all\" and \"two\" are the same.");
                &[Cores::Two]
            }
            (CoresChoice::Two, _) => &[Cores::Two],
            (CoresChoice::All, _) => &[Cores::All],
            (CoresChoice::Both, _) => &[Cores::All, Cores::Two],
        };
        let mut all = Vec::new();
        for &cores in choices {
            all.push(measure(plan, &mut place, cores)?);
        }
        let cores = place.count(Cores::All);
        let machine = Machine::here(&self.commit, cores, place.description());
        place.leave()?;
        Ok((machine, all))
    }

    /// Writes the page, the plot and the line of the history.
    fn write(&self, machine: &Machine, all: &[Results]) -> Result<()> {
        let history = self.report.join("history.jsonl");
        history::append(&history, machine, self.quick, all)?;
        let page = self.report.join("index.html");
        let text = page::page(machine, self.quick, all);
        fs::write(&page, text).with_context(|| format!("cannot write {}", page.display()))?;
        eprintln!("Wrote {} and {}.", page.display(), history.display());
        if let (Some(file), Some(results)) = (&self.plot, all.first()) {
            let text = page::main_plot(results).context(
                "too few message sizes for the plot; measure without --quick and --only",
            )?;
            fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
            eprintln!("Wrote {}.", file.display());
        }
        Ok(())
    }

    fn print(&self, all: &[Results]) -> Result<()> {
        let titles = [
            "program",
            "cores",
            "figure",
            "",
            "compared with",
            "ratio",
            "goal",
            "verdict",
        ];
        let rows = all.iter().flat_map(|results| results.rows.clone());
        let report = Report {
            titles,
            rows: rows.collect(),
        };
        match self.csv {
            true => print!("{}", report.csv()),
            false => println!("{report}\n{}", report.summary()),
        }
        let mut failed = 0;
        for results in all {
            let cores = results.cores.name();
            for (probe, why) in &results.skipped {
                eprintln!("\nSKIPPED: {} ({cores} cores): {why}", probe.label());
            }
            for (probe, why) in &results.failed {
                let label = probe.label();
                eprintln!("\nFAILED: {label} ({cores} cores): {why}");
                failed += 1;
            }
        }
        ensure!(failed == 0, "{failed} programs failed, see above");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_user_override_those_of_the_script() {
        let line = "ferroce-bench programs --commit a --report b --commit c --report d";
        let cli = Cli::try_parse_from(line.split(' ')).expect("a valid command line");
        let Some(Command::Programs(arguments)) = cli.command else {
            panic!("another command");
        };
        assert_eq!(arguments.commit, "c");
        assert_eq!(arguments.report, Path::new("d"));
    }
}
