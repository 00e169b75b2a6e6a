//! How fast, for a first impression: one queue pair, one message size at a time.

use std::time::{Duration, Instant};

use anyhow::Result;
use ferroce_device::transport::SendOp;
use ferroce_endpoint::{Endpoint, Partner};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::Word;

/// Work requests on their way at a time.
const WINDOW: usize = 32;
const KIB: u32 = 1024;

/// A measurement, as the one that asks tells the one that answers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Round {
    what: What,
    size: u32,
    count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum What {
    Send,
    Write,
    Read,
    PingPong,
}

const ROUNDS: [(What, u32, usize); 7] = [
    (What::Send, 64 * KIB, 4000),
    (What::Write, 64 * KIB, 4000),
    (What::Write, 1024 * KIB, 400),
    (What::Read, 64 * KIB, 4000),
    (What::Read, 1024 * KIB, 400),
    (What::Send, 64, 100_000),
    (What::PingPong, 8, 10_000),
];

pub(super) fn ask(end: &Endpoint, partner: &mut Partner, quick: bool) -> Result<()> {
    let style = ProgressStyle::with_template("  measuring [{bar:40}] {pos}/{len}")?;
    let bar = ProgressBar::new(ROUNDS.len() as u64).with_style(style);
    let mut lines = Vec::new();
    for (what, size, count) in ROUNDS {
        let count = if quick { count / 20 } else { count };
        let round = Round { what, size, count };
        partner.say(&Some(round))?;
        partner.expect(Word::Ready)?;
        let time = timed(|| perform(end, round))?;
        partner.expect(Word::Done)?;
        lines.push(line(round, time));
        bar.inc(1);
    }
    partner.say(&None::<Round>)?;
    bar.finish_and_clear();
    println!(
        "\n  {:<12} {:>10} {:>10} {:>12}",
        "operation", "size", "Gb/s", "us each"
    );
    for line in lines {
        println!("{line}");
    }
    println!("\nIt works. `ferroce link add rxe0 type rxe netdev eth0` makes a link of your own.");
    Ok(())
}

fn line(round: Round, time: Duration) -> String {
    let each = time.as_secs_f64() / round.count as f64;
    let (name, each, rate) = match round.what {
        What::PingPong => ("ping-pong", each / 2.0, None),
        What::Send => ("SEND", each, Some(each)),
        What::Write => ("WRITE", each, Some(each)),
        What::Read => ("READ", each, Some(each)),
    };
    let rate = rate.map_or("-".into(), |each| {
        format!("{:.2}", f64::from(round.size) * 8.0 / each / 1e9)
    });
    format!(
        "  {name:<12} {:>10} {rate:>10} {:>12.2}",
        round.size,
        each * 1e6
    )
}

#[allow(clippy::disallowed_methods)] // measuring is what this is for
fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}

fn perform(end: &Endpoint, round: Round) -> Result<()> {
    let (remote_addr, rkey) = end.remote(0);
    let op = || match round.what {
        What::Send | What::PingPong => SendOp::Send { imm: None },
        What::Write => end.write_to(0),
        What::Read => SendOp::Read { remote_addr, rkey },
    };
    if round.what == What::PingPong {
        for _ in 0..round.count {
            end.receive(0, 0, round.size)?;
            end.post(0, op(), 4096, round.size)?;
            end.succeed(2)?;
        }
        return Ok(());
    }
    let mut sent = 0;
    for _ in 0..WINDOW.min(round.count) {
        end.post(0, op(), 0, round.size)?;
        sent += 1;
    }
    for _ in 0..round.count {
        end.succeed(1)?;
        if sent < round.count {
            end.post(0, op(), 0, round.size)?;
            sent += 1;
        }
    }
    Ok(())
}

pub(super) fn answer(end: &Endpoint, partner: &mut Partner) -> Result<()> {
    while let Some(round) = partner.hear::<Option<Round>>()? {
        match round.what {
            What::Send => receive(end, partner, round)?,
            What::PingPong => {
                end.receive(0, 0, round.size)?;
                partner.say(&Word::Ready)?;
                for left in (0..round.count).rev() {
                    end.succeed(1)?;
                    if left > 0 {
                        end.receive(0, 0, round.size)?;
                    }
                    end.post(0, SendOp::Send { imm: None }, 4096, round.size)?;
                    end.succeed(1)?;
                }
            }
            // The answering end has nothing to do: that is the point of RDMA.
            What::Write | What::Read => partner.say(&Word::Ready)?,
        }
        partner.say(&Word::Done)?;
    }
    Ok(())
}

fn receive(end: &Endpoint, partner: &mut Partner, round: Round) -> Result<()> {
    let mut posted = 0;
    for _ in 0..(4 * WINDOW).min(round.count) {
        end.receive(0, 0, round.size)?;
        posted += 1;
    }
    partner.say(&Word::Ready)?;
    for _ in 0..round.count {
        end.succeed(1)?;
        if posted < round.count {
            end.receive(0, 0, round.size)?;
            posted += 1;
        }
    }
    Ok(())
}
