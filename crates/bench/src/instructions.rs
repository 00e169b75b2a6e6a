//! Instructions for each packet, counted by callgrind.
//!
//! Times vary with the load of a machine; instruction counts do not. Callgrind counts the
//! instructions of `sender_work` and `receiver_work`, in which all work of the two sides
//! happens: that of two engines, or of two shards. The counts of shards show the costs of captures,
//! of the flight recorder and of faults, off and on. The engines get the time from a clock that
//! advances by fixed steps, because callgrind is slow and timers would expire.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use ferroce_wire::Mtu;

use crate::pair::Pair;
use crate::seams::Seam;
use crate::shard_pair::ShardPair;
use crate::traffic::{MESSAGES, Op, Setup, Traffic};

/// Part of the names of the functions whose instructions are counted, for each side.
pub const SIDES: [(&str, &str); 2] = [("sender", "sender_work"), ("receiver", "receiver_work")];

/// Number of exchanges of a workload: enough that the first, which allocates, adds little.
const EXCHANGES: usize = 40;

/// A fixed workload.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    /// Name in the file of counts.
    pub name: &'static str,
    part: Part,
    op: Op,
    size: usize,
    mtu: Mtu,
}

/// The part of a program whose instructions are counted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Part {
    /// The engine.
    Engine,
    /// A shard without captures and recorder: the compiler has removed them.
    Shard,
    /// A shard with captures, recorder and faults, of which at most one is on.
    Seam(Seam),
}

/// All workloads.
pub const WORKLOADS: [Workload; 15] = [
    workload("64 B SEND", Op::Send, 64, Mtu::Mtu1024),
    workload("64 KiB WRITE, MTU 1024", Op::Write, 64 << 10, Mtu::Mtu1024),
    workload(
        "256 KiB WRITE, MTU 4096",
        Op::Write,
        256 << 10,
        Mtu::Mtu4096,
    ),
    workload("4 KiB WRITE, MTU 4096", Op::Write, 4 << 10, Mtu::Mtu4096),
    workload("64 KiB READ, MTU 1024", Op::Read, 64 << 10, Mtu::Mtu1024),
    small("shard, 64 B SEND, no taps", Part::Shard),
    small("shard, 64 B SEND, all off", Part::Seam(Seam::Off)),
    small("shard, 64 B SEND, recorder", Part::Seam(Seam::Recorder)),
    small("shard, 64 B SEND, capture", Part::Seam(Seam::Capture)),
    small("shard, 64 B SEND, faults", Part::Seam(Seam::Faults)),
    long("shard, 64 KiB WRITE, no taps", Part::Shard),
    long("shard, 64 KiB WRITE, all off", Part::Seam(Seam::Off)),
    long("shard, 64 KiB WRITE, recorder", Part::Seam(Seam::Recorder)),
    long("shard, 64 KiB WRITE, capture", Part::Seam(Seam::Capture)),
    long("shard, 64 KiB WRITE, faults", Part::Seam(Seam::Faults)),
];

const fn small(name: &'static str, part: Part) -> Workload {
    let engine = workload(name, Op::Send, 64, Mtu::Mtu1024);
    Workload { part, ..engine }
}

const fn long(name: &'static str, part: Part) -> Workload {
    let engine = workload(name, Op::Write, 64 << 10, Mtu::Mtu1024);
    Workload { part, ..engine }
}

const fn workload(name: &'static str, op: Op, size: usize, mtu: Mtu) -> Workload {
    Workload {
        name,
        part: Part::Engine,
        op,
        size,
        mtu,
    }
}

impl Workload {
    /// Runs the workload; returns the number of packets with payload.
    ///
    /// # Errors
    /// If the engines do not move the bytes.
    pub fn run(self) -> Result<usize> {
        let traffic = Traffic {
            op: self.op,
            size: self.size,
            burst: MESSAGES,
        };
        let setup = Setup {
            qps: 1,
            queue: MESSAGES as u32,
            icrc: true,
            mtu: self.mtu,
        };
        match self.part {
            Part::Engine => {
                let mut pair = Pair::new(setup)?;
                pair.use_steps();
                for _ in 0..EXCHANGES {
                    pair.exchange(traffic)?;
                }
                ensure!(pair.arrived(traffic), WRONG_BYTES);
            }
            Part::Shard => run_shards(ShardPair::<false>::new(setup, Seam::Off)?, traffic)?,
            Part::Seam(seam) => run_shards(ShardPair::<true>::new(setup, seam)?, traffic)?,
        }
        // An exchange is one packet for each of its messages, or one message of as many.
        Ok(EXCHANGES * MESSAGES)
    }
}

fn run_shards<const TAPS: bool>(mut pair: ShardPair<TAPS>, traffic: Traffic) -> Result<()> {
    pair.use_steps();
    for _ in 0..EXCHANGES {
        pair.exchange(traffic)?;
    }
    ensure!(pair.arrived(traffic), WRONG_BYTES);
    pair.check_seams()
}

const WRONG_BYTES: &str = "the workload moved the wrong bytes";

/// Runs the sender's work. Callgrind finds it by this name, so it is not inlined, and a number
/// makes it differ from the receiver's, with which the linker would merge it.
#[inline(never)]
pub(crate) fn sender_work<T>(work: impl FnOnce() -> T) -> T {
    core::hint::black_box(0_u8);
    work()
}

/// Runs the receiver's work.
#[inline(never)]
pub(crate) fn receiver_work<T>(work: impl FnOnce() -> T) -> T {
    core::hint::black_box(1_u8);
    work()
}

/// Returns the instructions of all functions whose name contains `part`, with those of the
/// functions that they call, from a file that callgrind has written.
///
/// # Errors
/// If the file has another format, or no such function.
pub fn inclusive(file: &str, part: &str) -> Result<u64> {
    let mut names: BTreeMap<&str, bool> = BTreeMap::new();
    let (mut inside, mut sum, mut found) = (false, 0, false);
    for line in file.lines() {
        // `fn=(7) name` starts a function, and `cfn=(7) name` names one that it calls. The
        // name is there only the first time.
        if let Some(rest) = line.strip_prefix("cfn=").or(line.strip_prefix("fn=")) {
            let (number, name) = rest.split_once(' ').unwrap_or((rest, ""));
            if !name.is_empty() {
                names.insert(number, name.contains(part));
            }
            if line.starts_with("fn=") {
                inside = names.get(number).copied().unwrap_or(false);
                found |= inside;
            }
        } else if inside && line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            // A position and the number of instructions: of the function itself, or after a
            // line `calls=` of the called function.
            let count = line
                .split(' ')
                .nth(1)
                .and_then(|word| word.parse::<u64>().ok());
            sum += count.with_context(|| format!("callgrind: unexpected line {line:?}"))?;
        }
    }
    ensure!(found, "callgrind has seen no function named {part}");
    Ok(sum)
}

/// The verdict about a count.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// At most 5 % from the recorded count.
    Same,
    /// More than 5 % less.
    Fewer,
    /// More than 5 % more.
    More,
    /// Not recorded.
    New,
}

/// Compares a count with the recorded one.
pub fn change(recorded: Option<f64>, counted: f64) -> Change {
    match recorded {
        None => Change::New,
        Some(before) if counted > before * 1.05 => Change::More,
        Some(before) if counted < before * 0.95 => Change::Fewer,
        Some(_) => Change::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of a file of callgrind 3.19, shortened.
    const FILE: &str = "\
# callgrind format
version: 1
positions: line
events: Ir
summary: 158

fl=(1) pair.rs
fn=(1) ferroce_bench::instructions::sender_work
10 5
+2 7
cfn=(2) ferroce_roce::engine::post
calls=3 20
* 100

fn=(2)
20 90
fi=(3) mod.rs
-4 10

fn=(4) main
30 4
cfn=(1)
calls=1 10
+1 112

fn=(1)
* 1
";

    #[test]
    fn called_functions_count_for_the_caller() {
        assert_eq!(inclusive(FILE, "sender_work").expect("found"), 113);
        assert_eq!(inclusive(FILE, "engine::post").expect("found"), 100);
        assert!(inclusive(FILE, "receiver_work").is_err());
    }

    #[test]
    fn five_per_cent_more_is_the_limit() {
        assert_eq!(change(Some(100.0), 105.0), Change::Same);
        assert_eq!(change(Some(100.0), 105.1), Change::More);
        assert_eq!(change(Some(100.0), 94.0), Change::Fewer);
        assert_eq!(change(None, 94.0), Change::New);
    }

    #[test]
    fn every_workload_moves_its_bytes() {
        for workload in WORKLOADS {
            let packets = workload.run();
            assert_eq!(packets.expect(workload.name), EXCHANGES * MESSAGES);
        }
    }
}
