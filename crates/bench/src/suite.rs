//! What is measured, and what it should be.

use anyhow::{Result, ensure};

use crate::baseline::baseline;
use crate::clock::Stage;
use crate::heap::{Heap, bytes_per_qp};
use crate::pair::Pair;
use crate::report::{Goal, Row};
use crate::traffic::{Cost, MESSAGES, Op, Setup, Traffic};
use crate::turns::{Figures, Part, median, turns};

/// How long to measure.
#[derive(Copy, Clone, Debug)]
pub struct Effort {
    /// Rounds whose median is taken.
    pub rounds: usize,
    /// Exchanges of a round.
    pub exchanges: usize,
}

/// Queue pairs of "many".
pub const MANY: usize = 10_000;

const ONE: Setup = Setup {
    qps: 1,
    queue: MESSAGES as u32,
    icrc: true,
};
const SENDER: Part = |cost| cost.sender;
const RECEIVER: Part = |cost| cost.receiver;
const BOTH: Part = Cost::both;
const LARGE: usize = 4096;
const SMALL: usize = 64;

fn traffic(op: Op, size: usize, burst: usize) -> Traffic {
    Traffic { op, size, burst }
}

/// 4 KiB messages beside copying and checksumming them.
pub fn large(effort: Effort, op: Op) -> Result<Vec<Row>> {
    let traffic = traffic(op, LARGE, MESSAGES);
    let mut pair = Pair::new(ONE)?;
    // The same kind of buffers, in other memory.
    let mut other = Pair::new(ONE)?;
    let figures = turns(
        effort.rounds,
        effort.exchanges,
        || pair.exchange(traffic),
        || Ok(baseline(&mut other, LARGE)),
        [SENDER, RECEIVER],
    )?;
    ensure!(pair.arrived(traffic), "the benchmark moved the wrong bytes");
    let (name, sides, goal) = match op {
        Op::Send => ("SEND", ["sender", "receiver"], None),
        Op::Write => ("WRITE", ["sender", "receiver"], Some(Goal::Ratio(1.5))),
        Op::Read => ("READ", ["requester", "responder"], None),
    };
    let row = |side, figures: Figures| Row {
        what: format!("4 KiB {name}"),
        side,
        value: figures.ns,
        unit: "ns",
        against: Some(("memcpy + CRC", figures.against, figures.ratio)),
        goal,
    };
    Ok(vec![row(sides[0], figures[0]), row(sides[1], figures[1])])
}

/// 64-byte SENDs, with and without the ICRC, and what they allocate.
pub fn small(effort: Effort, heap: Heap) -> Result<Vec<Row>> {
    let traffic = traffic(Op::Send, SMALL, MESSAGES);
    let mut bare = Pair::new(Setup { icrc: false, ..ONE })?;
    let mut checked = Pair::new(ONE)?;
    let [both, sender, receiver] = turns(
        effort.rounds,
        effort.exchanges,
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
    let row = |what: &str, side, value, goal| Row {
        what: what.into(),
        side,
        value,
        unit: "ns",
        against: None,
        goal,
    };
    let (without, with) = ("64 B SEND without ICRC", "64 B SEND");
    let goal = Some(Goal::Most(250.0));
    let allocated = Row {
        unit: "",
        ..row(
            "64 B SEND, allocations per message",
            "both",
            allocations as f64 / MESSAGES as f64,
            None,
        )
    };
    Ok(vec![
        row(without, "both", both.ns, goal),
        row(without, "sender", sender.ns, None),
        row(without, "receiver", receiver.ns, None),
        row(with, "both", both.against, None),
        allocated,
    ])
}

/// Ten thousand queue pairs in turn beside one.
pub fn many(effort: Effort) -> Result<Vec<Row>> {
    let small = |burst| traffic(Op::Send, SMALL, burst);
    let goal = Some(Goal::Ratio(1.3));
    Ok(vec![
        many_against_one(effort, "64 B SEND, bursts of 16", small(16), false, goal)?,
        many_against_one(effort, "64 B SEND, one at a time", small(1), false, None)?,
        many_against_one(
            effort,
            "4 KiB WRITE",
            traffic(Op::Write, LARGE, 1),
            true,
            goal,
        )?,
    ])
}

fn many_against_one(
    effort: Effort,
    what: &str,
    traffic: Traffic,
    icrc: bool,
    goal: Option<Goal>,
) -> Result<Row> {
    let mut one = Pair::new(Setup { icrc, ..ONE })?;
    let mut many = Pair::new(Setup {
        qps: MANY,
        queue: 16,
        icrc,
    })?;
    // Everyone has had a turn: what is measured is not the first touch.
    for _ in 0..(MANY * traffic.burst).div_ceil(MESSAGES) {
        many.exchange(traffic)?;
    }
    let [figures] = turns(
        effort.rounds,
        effort.exchanges,
        || many.exchange(traffic),
        || one.exchange(traffic),
        [BOTH],
    )?;
    Ok(Row {
        what: format!("{what}, {MANY} QPs"),
        side: "both",
        value: figures.ns,
        unit: "ns",
        against: Some(("1 QP", figures.against, figures.ratio)),
        goal,
    })
}

/// Where the time goes, side by side and stage by stage.
pub fn stages(effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, traffic, icrc) in [
        (
            "64 B SEND without ICRC",
            traffic(Op::Send, SMALL, MESSAGES),
            false,
        ),
        ("4 KiB WRITE", traffic(Op::Write, LARGE, MESSAGES), true),
        ("4 KiB READ", traffic(Op::Read, LARGE, MESSAGES), true),
    ] {
        let mut pair = Pair::new(Setup { icrc, ..ONE })?;
        let samples = (0..effort.rounds * effort.exchanges)
            .map(|_| pair.stages(traffic))
            .collect::<Result<Vec<_>>>()?;
        for (side, side_name) in ["sender", "receiver"].into_iter().enumerate() {
            rows.extend(Stage::ALL.map(|stage| {
                let ns = samples.iter().map(|s| s[side][stage as usize] as f64);
                Row {
                    what: format!("{name}: {}", stage.name()),
                    side: side_name,
                    value: median(ns) / MESSAGES as f64,
                    unit: "ns",
                    against: None,
                    goal: None,
                }
            }));
        }
    }
    Ok(rows)
}

/// Memory of idle queue pairs.
pub fn memory(heap: Heap) -> Result<Vec<Row>> {
    Ok(vec![Row {
        what: "idle RC QP, queues aside".into(),
        side: "each",
        value: bytes_per_qp(heap, MANY)?,
        unit: "B",
        against: None,
        goal: Some(Goal::Most(2048.0)),
    }])
}
