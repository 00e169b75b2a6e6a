//! The measurements of the engine and their goals.

use anyhow::{Result, ensure};
use ferroce_wire::{Bth, Mtu, Reth};

use crate::baseline::baseline;
use crate::clock::Stage;
use crate::comparison::{Figures, Part, measure_alternately, median};
use crate::heap::{Heap, bytes_per_qp};
use crate::pair::Pair;
use crate::report::{Goal, Row};
use crate::seams::Seam;
use crate::shard_pair::ShardPair;
use crate::traffic::{Cost, MESSAGES, Op, Setup, Traffic};

/// The repetitions of a measurement.
#[derive(Copy, Clone, Debug)]
pub struct Repetitions {
    /// Number of rounds; results are medians over them.
    pub rounds: usize,
    /// Number of exchanges in a round.
    pub exchanges: usize,
}

/// Default number of queue pairs for the comparison of many with one.
pub const MANY: usize = 10_000;

const ONE: Setup = Setup {
    qps: 1,
    queue: MESSAGES as u32,
    icrc: true,
    mtu: Mtu::Mtu4096,
};
const SENDER: Part = |cost| cost.sender;
const RECEIVER: Part = |cost| cost.receiver;
const BOTH: Part = Cost::both;
const LARGE: usize = 4096;
const SMALL: usize = 64;

/// Returns a setup whose queues hold an exchange. With few queue pairs, an exchange
/// uses each of them several times. Small messages go without the ICRC, whose cost
/// would hide the rest.
fn setup_of(qps: usize, traffic: Traffic) -> Setup {
    Setup {
        qps,
        queue: MESSAGES.div_ceil(qps).max(traffic.burst).max(16) as u32,
        icrc: traffic.size == LARGE,
        mtu: Mtu::Mtu4096,
    }
}

fn traffic(op: Op, size: usize, burst: usize) -> Traffic {
    Traffic { op, size, burst }
}

/// Measures 4 KiB messages against copying and checksumming their bytes.
pub fn large(repetitions: Repetitions, op: Op) -> Result<Vec<Row>> {
    let (name, goal) = match op {
        Op::Send => ("4 KiB SEND", None),
        Op::Write => ("4 KiB WRITE", Some(Goal::Ratio(1.5))),
        Op::Read => ("4 KiB READ", None),
    };
    beside_baseline(repetitions, name, ONE, traffic(op, LARGE, MESSAGES), goal)
}

/// Measures a message of 64 packets against copying and checksumming its bytes.
pub fn long(repetitions: Repetitions, op: Op) -> Result<Vec<Row>> {
    let name = match op {
        Op::Send => "packet of a 64 KiB SEND",
        Op::Write => "packet of a 64 KiB WRITE",
        Op::Read => "packet of a 64 KiB READ",
    };
    let mtu = Mtu::Mtu1024;
    let traffic = traffic(op, MESSAGES * mtu.bytes(), MESSAGES);
    beside_baseline(repetitions, name, Setup { mtu, ..ONE }, traffic, None)
}

fn beside_baseline(
    repetitions: Repetitions,
    name: &str,
    setup: Setup,
    traffic: Traffic,
    goal: Option<Goal>,
) -> Result<Vec<Row>> {
    let header = match traffic.size > setup.mtu.bytes() {
        true => Bth::LEN,
        false => Bth::LEN + Reth::LEN,
    };
    let mut pair = Pair::new(setup)?;
    // The reference uses buffers of the same kind in other memory.
    let mut other = Pair::new(setup)?;
    let figures = measure_alternately(
        repetitions.rounds,
        repetitions.exchanges,
        || pair.exchange(traffic),
        || Ok(baseline(&mut other, header, setup.mtu.bytes())),
        [SENDER, RECEIVER],
    )?;
    ensure!(pair.arrived(traffic), "the benchmark moved the wrong bytes");
    let sides = match traffic.op {
        Op::Send | Op::Write => ["sender", "receiver"],
        Op::Read => ["requester", "responder"],
    };
    let row = |side, figures: Figures| Row {
        what: name.to_owned(),
        side,
        value: figures.ns,
        fastest: Some(figures.fastest),
        unit: "ns",
        against: Some(("memcpy + CRC", figures.against, figures.ratio)),
        goal,
    };
    Ok(vec![row(sides[0], figures[0]), row(sides[1], figures[1])])
}

/// Measures 64-byte SENDs with and without the ICRC, and counts their allocations.
pub fn small(repetitions: Repetitions, heap: Heap) -> Result<Vec<Row>> {
    let traffic = traffic(Op::Send, SMALL, MESSAGES);
    let mut bare = Pair::new(Setup { icrc: false, ..ONE })?;
    let mut checked = Pair::new(ONE)?;
    let [both, sender, receiver] = measure_alternately(
        repetitions.rounds,
        repetitions.exchanges,
        || bare.exchange(traffic),
        || checked.exchange(traffic),
        [BOTH, SENDER, RECEIVER],
    )?;
    let before = (heap.allocations)();
    bare.exchange(traffic)?;
    let allocations = (heap.allocations)() - before;
    ensure!(
        bare.arrived(traffic) && checked.arrived(traffic),
        "the benchmark moved the wrong bytes"
    );
    let row = |side, figures: Figures, goal| Row {
        what: "64 B SEND without ICRC".into(),
        side,
        value: figures.ns,
        fastest: Some(figures.fastest),
        unit: "ns",
        against: None,
        goal,
    };
    let with_icrc = Row {
        what: "64 B SEND".into(),
        value: both.against,
        fastest: None,
        ..row("both", both, None)
    };
    let allocated = Row {
        what: "64 B SEND, allocations per message".into(),
        value: allocations as f64 / MESSAGES as f64,
        fastest: None,
        unit: "",
        ..row("both", both, None)
    };
    Ok(vec![
        row("both", both, Some(Goal::Most(250.0))),
        row("sender", sender, None),
        row("receiver", receiver, None),
        with_icrc,
        allocated,
    ])
}

/// Measures many queue pairs in turn against one that sends the same bursts.
///
/// In both cases a burst completes before the next is posted, so the patterns differ
/// only in the number of queue pairs. In the last row of each kind, one queue pair or
/// 64 of the many post the whole exchange at once. This row has no goal: one ACK covers
/// the messages of one queue pair, but 64 queue pairs need an ACK each.
pub fn many(repetitions: Repetitions, qps: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, op, size) in [
        ("64 B SEND", Op::Send, SMALL),
        ("4 KiB WRITE", Op::Write, LARGE),
    ] {
        for burst in [MESSAGES, 16, 1] {
            let what = match burst {
                1 => format!("{name}, {qps} QPs, one at a time"),
                _ => format!("{name}, {qps} QPs, bursts of {burst}"),
            };
            let traffic = traffic(op, size, burst);
            let against = ("1 QP", Pair::exchange_by_bursts as Exchange);
            let goal = Some(Goal::Ratio(1.3));
            rows.push(many_against_one(
                repetitions,
                qps,
                what,
                traffic,
                against,
                goal,
            )?);
        }
        let what = format!("{name}, {qps} QPs, one at a time");
        let against = ("1 QP, 64 at once", Pair::exchange as Exchange);
        let traffic = traffic(op, size, 1);
        rows.push(many_against_one(
            repetitions,
            qps,
            what,
            traffic,
            against,
            None,
        )?);
    }
    Ok(rows)
}

type Exchange = fn(&mut Pair, Traffic) -> Result<Cost>;

fn many_against_one(
    repetitions: Repetitions,
    qps: usize,
    what: String,
    traffic: Traffic,
    (name, exchange): (&'static str, Exchange),
    goal: Option<Goal>,
) -> Result<Row> {
    let mut one = Pair::new(setup_of(1, traffic))?;
    let mut many = Pair::new(setup_of(qps, traffic))?;
    // Use each queue pair once before the measurement, to exclude page faults and
    // allocations of its first use.
    for _ in 0..(qps * traffic.burst).div_ceil(MESSAGES) {
        many.exchange(traffic)?;
    }
    let [figures] = measure_alternately(
        repetitions.rounds,
        repetitions.exchanges,
        || exchange(&mut many, traffic),
        || exchange(&mut one, traffic),
        [BOTH],
    )?;
    Ok(Row {
        what,
        side: "both",
        value: figures.ns,
        fastest: Some(figures.fastest),
        unit: "ns",
        against: Some((name, figures.against, figures.ratio)),
        goal,
    })
}

/// Measures a shard with captures, the flight recorder or faults against one with all of them off,
/// and that against one from which the compiler has removed captures and recorder.
pub fn seams(repetitions: Repetitions) -> Result<Vec<Row>> {
    let mtu = Mtu::Mtu1024;
    let setup = Setup { mtu, ..ONE };
    let mut rows = Vec::new();
    for (name, traffic) in [
        ("64 B SEND", traffic(Op::Send, SMALL, MESSAGES)),
        (
            "packet of a 64 KiB WRITE",
            traffic(Op::Write, MESSAGES * mtu.bytes(), MESSAGES),
        ),
    ] {
        let bare = ShardPair::<false>::new(setup, Seam::Off)?;
        let what = format!("{name}, shard, all off");
        rows.extend(beside_shard(
            repetitions,
            what,
            traffic,
            Seam::Off,
            ("no taps", bare),
        )?);
        for (seam, word) in [
            (Seam::Recorder, "recorder"),
            (Seam::Capture, "capture"),
            (Seam::Faults, "faults that hit nothing"),
        ] {
            let off = ShardPair::<true>::new(setup, Seam::Off)?;
            let what = format!("{name}, shard, {word}");
            rows.extend(beside_shard(
                repetitions,
                what,
                traffic,
                seam,
                ("all off", off),
            )?);
        }
    }
    Ok(rows)
}

/// Measures a shard with a seam against another shard.
fn beside_shard<const TAPS: bool>(
    repetitions: Repetitions,
    what: String,
    traffic: Traffic,
    seam: Seam,
    (name, mut other): (&'static str, ShardPair<TAPS>),
) -> Result<Vec<Row>> {
    let mtu = Mtu::Mtu1024;
    let mut pair = ShardPair::<true>::new(Setup { mtu, ..ONE }, seam)?;
    let figures = measure_alternately(
        repetitions.rounds,
        repetitions.exchanges,
        || pair.exchange(traffic),
        || other.exchange(traffic),
        [SENDER, RECEIVER],
    )?;
    ensure!(
        pair.arrived(traffic) && other.arrived(traffic),
        "the benchmark moved the wrong bytes"
    );
    pair.check_seams()?;
    let row = |(side, figures): (&'static str, Figures)| Row {
        what: what.clone(),
        side,
        value: figures.ns,
        fastest: Some(figures.fastest),
        unit: "ns",
        against: Some((name, figures.against, figures.ratio)),
        goal: None,
    };
    let sides = ["sender", "receiver"].into_iter().zip(figures);
    Ok(sides.map(row).collect())
}

/// Measures each stage of the work on each side.
pub fn stages(repetitions: Repetitions, qps: usize) -> Result<Vec<Row>> {
    let large = |op| traffic(op, LARGE, MESSAGES);
    let small = |burst| traffic(Op::Send, SMALL, burst);
    let mut rows = Vec::new();
    for (name, qps, traffic) in [
        ("4 KiB WRITE", 1, large(Op::Write)),
        ("4 KiB READ", 1, large(Op::Read)),
        ("64 B SEND without ICRC", 1, small(MESSAGES)),
        ("the same, many QPs, one at a time", qps, small(1)),
    ] {
        let mut pair = Pair::new(setup_of(qps, traffic))?;
        let samples = (0..repetitions.rounds * repetitions.exchanges)
            .map(|_| pair.stages(traffic))
            .collect::<Result<Vec<_>>>()?;
        for (side, side_name) in ["sender", "receiver"].into_iter().enumerate() {
            rows.extend(Stage::ALL.map(|stage| {
                let ns = samples.iter().map(|s| s[side][stage as usize] as f64);
                Row {
                    what: format!("{name}: {}", stage.name()),
                    side: side_name,
                    value: median(ns) / MESSAGES as f64,
                    fastest: None,
                    unit: "ns",
                    against: None,
                    goal: None,
                }
            }));
        }
    }
    Ok(rows)
}

/// Measures the memory of idle queue pairs.
pub fn memory(heap: Heap) -> Result<Vec<Row>> {
    Ok(vec![Row {
        what: "idle RC QP, queues aside".into(),
        side: "each",
        value: bytes_per_qp(heap, MANY)?,
        fastest: None,
        unit: "B",
        against: None,
        goal: Some(Goal::Most(2048.0)),
    }])
}
