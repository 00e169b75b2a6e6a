//! Sets everything up, has it measured, and looks what is left over.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferroce_bench::{Ferroced, Player, Report, Row, add_link, end_with_parent};

use crate::Cli;
use crate::client::{Order, Times};
use crate::traces::Traces;

/// Connections before anything is looked at: what is made once is made by then, and the
/// tables have grown as far as they do.
const WARM_UP: u32 = 2_000;
/// Memory that a process may have gained, in KiB: allocators keep some.
const SLACK: usize = 4 << 10;
/// How long connections rest in TIMEWAIT, and some more.
const REST: Duration = Duration::from_secs(5);

pub(crate) fn run(cli: &Cli) -> Result<()> {
    end_with_parent()?;
    if cfg!(debug_assertions) {
        eprintln!("Note: built without optimisation, the figures mean little.");
    }
    ferroce_net::enter_private_network().context("a private network")?;
    let ferroced = Ferroced::start(None)?;
    add_link("rxe0", "lo")?;
    let mut server = Player::start("server", None)?;
    let port: u16 = server.partner.hear()?;
    let mut client = Player::start("client", None)?;
    let processes = [
        ("client", client.pid()),
        ("server", server.pid()),
        ("ferroced", ferroced.pid()),
    ];

    let mut tell = |order: Order| client.tell::<Times>(&order);
    let count = cli.open;
    tell(Order::Cycle {
        port,
        times: WARM_UP.min(cli.cycles),
    })?;
    tell(Order::Open { port, count })?;
    tell(Order::Close)?;
    rest();
    let before = look(&processes)?;

    let times = cli.cycles;
    let mut rows = rows("one after the other", tell(Order::Cycle { port, times })?);
    rows.extend(self::rows("at once", tell(Order::Open { port, count })?));
    tell(Order::Close)?;
    rest();
    let after = look(&processes)?;

    let titles = ["connections", "where", "figure", "", "", "", "", ""];
    println!("{}", Report { titles, rows });
    let mut leaks = Vec::new();
    for (((name, _), before), after) in processes.iter().zip(&before).zip(&after) {
        let gained = after.memory.saturating_sub(before.memory);
        println!(
            "{name}: {} descriptors before, {} after; {} KiB before, {} KiB after",
            before.descriptors, after.descriptors, before.memory, after.memory
        );
        if after.descriptors > before.descriptors || gained > SLACK {
            leaks.push(*name);
        }
    }
    match leaks.is_empty() {
        true => Ok(()),
        false => bail!("something was left over in: {}", leaks.join(", ")),
    }
}

fn look(processes: &[(&str, u32)]) -> Result<Vec<Traces>> {
    processes.iter().map(|(_, pid)| Traces::of(*pid)).collect()
}

#[allow(
    clippy::disallowed_methods,
    reason = "nobody tells when TIMEWAIT is over"
)]
fn rest() {
    std::thread::sleep(REST);
}

fn rows(how: &str, mut times: Times) -> Vec<Row> {
    times.each.sort_by(f64::total_cmp);
    let count = times.each.len();
    let at = |share: f64| times.each[((count - 1) as f64 * share) as usize];
    let row = |what: String, value, unit| Row {
        what,
        side: "loopback",
        value,
        fastest: None,
        unit,
        against: None,
        goal: None,
    };
    let rate = count as f64 / (times.whole / 1e6);
    vec![
        row(format!("{count} {how}: rate"), rate, "/s"),
        row(format!("{count} {how}: set-up, p50"), at(0.5), "us"),
        row(format!("{count} {how}: set-up, p99"), at(0.99), "us"),
    ]
}
