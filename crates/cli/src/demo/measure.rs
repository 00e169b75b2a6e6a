//! Measurements for a first impression: one queue pair, one message size at a time.

use std::time::{Duration, Instant};

use anyhow::Result;
use ferroce_device::transport::SendOp;
use ferroce_endpoint::{Endpoint, Partner};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::Step;

/// Outstanding work requests.
const WINDOW: usize = 32;
const KIB: u32 = 1024;

/// A measurement, as the client announces it to the server.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Round {
    operation: Operation,
    size: u32,
    count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Operation {
    Send,
    Write,
    Read,
    PingPong,
}

/// The measurements: operation, message size, number of messages.
const ROUNDS: [(Operation, u32, usize); 7] = [
    (Operation::Send, 64 * KIB, 4000),
    (Operation::Write, 64 * KIB, 4000),
    (Operation::Write, 1024 * KIB, 400),
    (Operation::Read, 64 * KIB, 4000),
    (Operation::Read, 1024 * KIB, 400),
    (Operation::Send, 64, 100_000),
    (Operation::PingPong, 8, 10_000),
];

/// Runs the client: measures, and prints the table.
pub(super) fn client(end: &Endpoint, partner: &mut Partner, quick: bool) -> Result<()> {
    let style = ProgressStyle::with_template("  measuring [{bar:40}] {pos}/{len}")?;
    let bar = ProgressBar::new(ROUNDS.len() as u64).with_style(style);
    let mut lines = Vec::new();
    for (operation, size, count) in ROUNDS {
        let count = if quick { count / 20 } else { count };
        let round = Round {
            operation,
            size,
            count,
        };
        partner.say(&Some(round))?;
        partner.expect(Step::Ready)?;
        let time = timed(|| perform(end, round))?;
        partner.expect(Step::Done)?;
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
    println!(
        "\nRDMA works on this machine. To run a program with it: ferroce run -- ibv_devinfo\n\
         To add a link on a network interface: ferroce link add rxe0 type rxe netdev eth0"
    );
    Ok(())
}

fn line(round: Round, time: Duration) -> String {
    let each = time.as_secs_f64() / round.count as f64;
    let (name, each, rate) = match round.operation {
        Operation::PingPong => ("ping-pong", each / 2.0, None),
        Operation::Send => ("SEND", each, Some(each)),
        Operation::Write => ("WRITE", each, Some(each)),
        Operation::Read => ("READ", each, Some(each)),
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

#[allow(clippy::disallowed_methods)] // measuring time is the purpose of this module
fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}

fn perform(end: &Endpoint, round: Round) -> Result<()> {
    let (remote_addr, rkey) = end.remote(0);
    let op = || match round.operation {
        Operation::Send | Operation::PingPong => SendOp::Send { imm: None },
        Operation::Write => end.write_to(0),
        Operation::Read => SendOp::Read { remote_addr, rkey },
    };
    if round.operation == Operation::PingPong {
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

/// Runs the server: answers until the client has no more measurements.
pub(super) fn server(end: &Endpoint, partner: &mut Partner) -> Result<()> {
    while let Some(round) = partner.hear::<Option<Round>>()? {
        match round.operation {
            Operation::Send => receive(end, partner, round)?,
            Operation::PingPong => {
                end.receive(0, 0, round.size)?;
                partner.say(&Step::Ready)?;
                for left in (0..round.count).rev() {
                    end.succeed(1)?;
                    if left > 0 {
                        end.receive(0, 0, round.size)?;
                    }
                    end.post(0, SendOp::Send { imm: None }, 4096, round.size)?;
                    end.succeed(1)?;
                }
            }
            // RDMA operations need no work from the program at this end.
            Operation::Write | Operation::Read => partner.say(&Step::Ready)?,
        }
        partner.say(&Step::Done)?;
    }
    Ok(())
}

fn receive(end: &Endpoint, partner: &mut Partner, round: Round) -> Result<()> {
    let mut posted = 0;
    for _ in 0..(4 * WINDOW).min(round.count) {
        end.receive(0, 0, round.size)?;
        posted += 1;
    }
    partner.say(&Step::Ready)?;
    for _ in 0..round.count {
        end.succeed(1)?;
        if posted < round.count {
            end.receive(0, 0, round.size)?;
            posted += 1;
        }
    }
    Ok(())
}
