//! Measures the cost of a packet in the protocol engine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use ferroce_bench::suite::{self, Repetitions};
use ferroce_bench::{Heap, Op, Report};

/// Measure the cost of a packet in the protocol engine.
///
/// Two engines exchange packets in memory, without a network. Each measurement
/// alternates with a reference. Figures are medians over the rounds, and ratios
/// are medians of each round's ratio, so that load on the machine affects a
/// comparison little. Nanoseconds are per message, which here is one packet.
#[derive(Parser)]
#[command(name = "engine", after_help = EXAMPLES)]
struct Cli {
    /// Run few rounds: takes a second or two, with less precise figures.
    #[arg(long)]
    quick: bool,

    /// Print comma-separated values instead of a table.
    #[arg(long)]
    csv: bool,

    /// Measure only this part; may be given several times.
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,

    /// Number of queue pairs in the comparison of many with one.
    #[arg(long, value_name = "N", default_value_t = suite::MANY, value_parser = at_least_one)]
    qps: usize,

    /// Number of rounds per measurement.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask bench engine                      all parts, about ten seconds
  cargo xtask bench engine --quick              fewer rounds
  cargo xtask bench engine --csv > engine.csv   for a spreadsheet
  cargo xtask bench engine --only write         one part
  cargo xtask bench engine --only seams         cost of captures, recorder and faults
  cargo xtask bench engine --only stages        time of each stage
  valgrind --tool=callgrind target/release/engine --only send --rounds 2
                                                instructions of each function

OUTPUT
  cost            median per message (or per queue pair), on the side named
  fastest 10 %    the same in the fastest tenth of the rounds, as on an idle
                  machine
  compared with   the reference: copying and checksumming the same bytes once,
                  the same traffic over one queue pair, or through a shard without
                  captures, recorder and faults
  ratio           cost divided by the reference; median over the rounds
  verdict         ok or MISSED if there is a goal

EXIT STATUS
  0 if the measurement worked, with any verdicts; 1 if it failed.";

#[derive(Copy, Clone, PartialEq, Eq, ValueEnum)]
enum Part {
    /// 4 KiB RDMA WRITEs.
    Write,
    /// 4 KiB RDMA READs.
    Read,
    /// Packets of 64 KiB RDMA WRITEs and READs, 1 KiB each.
    Long,
    /// 64-byte SENDs.
    Send,
    /// Many queue pairs against one.
    Many,
    /// Memory of an idle queue pair.
    Memory,
    /// Captures, the flight recorder and faults of a shard, off and on.
    Seams,
    /// Time of each stage; only measured with `--only stages`.
    Stages,
}

#[global_allocator]
static COUNTING: Counting = Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

const HEAP: Heap = Heap {
    live: || LIVE.load(Ordering::Relaxed),
    allocations: || ALLOCATIONS.load(Ordering::Relaxed),
};

fn main() -> Result<()> {
    let cli = Cli::parse();
    let repetitions = Repetitions {
        rounds: cli
            .rounds
            .unwrap_or(if cli.quick { 15 } else { 301 })
            .max(1),
        exchanges: 40,
    };
    if cfg!(debug_assertions) {
        eprintln!("Note: built without optimisation; the figures are meaningless.");
    }
    let mut report = Report::default();
    for part in Part::value_variants() {
        let wanted = match cli.only.is_empty() {
            true => *part != Part::Stages,
            false => cli.only.contains(part),
        };
        if wanted {
            report.rows.extend(match part {
                Part::Write => suite::large(repetitions, Op::Write),
                Part::Read => suite::large(repetitions, Op::Read),
                Part::Long => suite::long(repetitions, Op::Write).and_then(|mut rows| {
                    rows.extend(suite::long(repetitions, Op::Read)?);
                    Ok(rows)
                }),
                Part::Send => suite::small(repetitions, HEAP),
                Part::Many => suite::many(repetitions, cli.qps),
                Part::Memory => suite::memory(HEAP),
                Part::Seams => suite::seams(repetitions),
                Part::Stages => suite::stages(repetitions, cli.qps),
            }?);
        }
    }
    if cli.csv {
        print!("{}", report.csv());
    } else {
        println!("{report}\n{}", report.summary());
    }
    Ok(())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("must be a number of at least 1".into()),
    }
}

/// The system's allocator with counters.
struct Counting;

// SAFETY: every call is passed to the system's allocator unchanged, which fulfils the
// contract. Counting does not touch allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}
