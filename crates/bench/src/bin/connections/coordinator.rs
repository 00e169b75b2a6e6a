//! The coordinator: sets up processes and link, measures, and checks for leaks.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferroce_bench::{Ferroced, Report, RoleProcess, Row, add_link_with, end_with_parent};

use crate::Cli;
use crate::client::{Request, Times};
use crate::usage::Usage;

/// Number of connections before the first check. After them, all one-time allocations are
/// made and all tables have their final size.
const WARM_UP: u32 = 2_000;
/// Most memory that a process may gain, in KiB: allocators retain some freed memory.
const SLACK: usize = 4 << 10;
/// A time longer than connections stay in TIMEWAIT.
const REST: Duration = Duration::from_secs(5);

pub(crate) fn run(cli: &Cli) -> Result<()> {
    end_with_parent()?;
    if cfg!(debug_assertions) {
        eprintln!("Note: built without optimisation; the figures mean little.");
    }
    ferroce_net::enter_private_network().context("a private network")?;
    let ferroced = Ferroced::start(None)?;
    add_link_with("rxe0", "lo", cli.local)?;
    let mut server = RoleProcess::start("server", None)?;
    let port: u16 = server.partner.hear()?;
    let mut client = RoleProcess::start("client", None)?;
    let processes = [
        ("client", client.pid()),
        ("server", server.pid()),
        ("ferroced", ferroced.pid()),
    ];

    let mut request = |request: Request| client.request::<Times>(&request);
    let count = cli.open;
    request(Request::Cycle {
        port,
        times: WARM_UP.min(cli.cycles),
    })?;
    request(Request::Open { port, count })?;
    request(Request::Close)?;
    rest();
    let before = look(&processes)?;

    let times = cli.cycles;
    let mut rows = rows(
        "one after the other",
        request(Request::Cycle { port, times })?,
    );
    rows.extend(self::rows(
        "at once",
        request(Request::Open { port, count })?,
    ));
    request(Request::Close)?;
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
        false => bail!("descriptors or memory leaked in: {}", leaks.join(", ")),
    }
}

fn look(processes: &[(&str, u32)]) -> Result<Vec<Usage>> {
    processes.iter().map(|(_, pid)| Usage::of(*pid)).collect()
}

#[allow(
    clippy::disallowed_methods,
    reason = "no event reports the end of TIMEWAIT"
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
