//! `ferroce-sim`: runs seeds of the network simulation.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use clap::Parser;
use ferroce_sim::{
    Bug, Coverage, Family, Options, Outcome, run_seed, run_seed_with_trace, run_seeds,
};

/// Simulates whole networks of channel adapters, one for each seed.
#[derive(Parser)]
struct Args {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Run this one seed only.
    #[arg(long, conflicts_with_all = ["seeds", "start", "steps"])]
    seed: Option<u64>,
    /// Print packets, timers, completions and events of the one seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run seeds until this many events have been simulated.
    #[arg(long, conflicts_with = "seeds")]
    steps: Option<u64>,
    /// List all violations instead of stopping at the first one.
    #[arg(long)]
    keep_going: bool,
    /// Print counts of the opcodes, statuses, drops and events that occurred.
    #[arg(long)]
    coverage: bool,
    /// Enable one injected bug in all hosts.
    #[arg(long, value_parser = parse_bug)]
    bug: Option<Bug>,
    /// Run scenarios of this family only, such as LocalWire.
    #[arg(long, value_parser = parse_family)]
    family: Option<Family>,
}

impl Args {
    fn options(&self) -> Options {
        Options {
            bug: self.bug,
            family: self.family,
        }
    }
}

fn parse_family(name: &str) -> Result<Family, String> {
    let all = || Family::all().map(|family| format!("{family:?}"));
    match all().position(|known| known == name) {
        Some(at) => Ok(Family::all().nth(at).expect("as many as names")),
        None => Err(format!(
            "no such family; known families: {}",
            all().collect::<Vec<_>>().join(", ")
        )),
    }
}

fn parse_bug(name: &str) -> Result<Bug, String> {
    let names: Vec<String> = Bug::all().map(|bug| bug_name(&bug)).collect();
    match names.iter().position(|known| known == name) {
        Some(at) => Ok(Bug::all().nth(at).expect("as many as names")),
        None => Err(format!("no such bug; known bugs: {}", names.join(", "))),
    }
}

/// Returns a bug's name. Not inlined: the optimiser takes minutes when it
/// unrolls the formatting code over all bugs.
#[inline(never)]
fn bug_name(bug: &Bug) -> String {
    format!("{bug:?}")
}

/// Prints a line. Ignores a closed pipe, as with `ferroce-sim | head`.
fn print_line(text: &str) {
    let _closed = writeln!(io::stdout(), "{text}");
}

fn main() -> ExitCode {
    let args = Args::parse();
    let failed = match args.seed {
        Some(seed) => run_one(seed, &args),
        None => run_many(&args),
    };
    match failed {
        None => ExitCode::SUCCESS,
        Some(outcome) => {
            print_line(&format!("\nVIOLATION\n{}", outcome.report(args.options())));
            ExitCode::FAILURE
        }
    }
}

fn run_one(seed: u64, args: &Args) -> Option<Outcome> {
    let run = if args.trace {
        run_seed_with_trace
    } else {
        run_seed
    };
    let outcome = run(seed, args.options());
    print_line(&format!(
        "seed {seed} ({:?}): {} steps, {} packets",
        outcome.family, outcome.steps, outcome.packets
    ));
    outcome.violation.is_some().then_some(outcome)
}

/// Sums over all seeds of a run.
#[derive(Default)]
struct Total {
    seeds: u64,
    steps: u64,
    packets: u64,
    coverage: Coverage,
    failed: Option<Outcome>,
}

// The clock is used for the printed rate only; no run depends on it.
#[allow(clippy::disallowed_methods)]
fn run_many(args: &Args) -> Option<Outcome> {
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let total = Mutex::new(Total::default());
    run_seeds(args.start, threads, args.options(), |outcome| {
        let mut total = total
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        total.seeds += 1;
        total.steps += outcome.steps;
        total.packets += outcome.packets;
        total.coverage.add(&outcome.coverage);
        if let Some(violation) = &outcome.violation {
            if args.keep_going {
                print_line(&format!(
                    "seed {} ({:?}): {violation}",
                    outcome.seed, outcome.family
                ));
            }
            total.failed.get_or_insert(outcome);
        }
        let enough = match args.steps {
            Some(steps) => total.steps >= steps,
            None => total.seeds >= args.seeds,
        };
        !enough && (args.keep_going || total.failed.is_none())
    });
    let total = total
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let seconds = begun.elapsed().as_secs_f64();
    print_line(&format!(
        "{} seeds from {}, {} steps, {} packets in {seconds:.1} s ({:.0} seeds/s)",
        total.seeds,
        args.start,
        total.steps,
        total.packets,
        total.seeds as f64 / seconds
    ));
    if args.coverage {
        print_line(&total.coverage.to_string());
    }
    total.failed
}
