//! `rdma statistic`: counters of links, and of the queue pairs of each program.

use anyhow::{Context, Result, bail};
use ferroce_control::LinkCounters;

use super::row::{self, Row};
use super::words::Words;
use super::{Manner, links};
use crate::link::show::{PORT, link_name};
use crate::{daemon, output, stat};

const USAGE: &str = "\
Usage: rdma statistic [ show ] [ link DEV/PORT_INDEX ]
       rdma statistic qp show [ link DEV/PORT_INDEX ]
       rdma statistic qp mode [ link DEV/PORT_INDEX ]
";

pub(super) fn run(mut words: Words<'_>, manner: Manner) -> Result<()> {
    let commands = ["show", "list", "link", "qp", "mode", "help"];
    match words.command("statistic command", &commands, Some("show"))? {
        Some("help") => output::write(USAGE),
        Some("qp") => of_queue_pairs(words, manner),
        Some("mode") => bail!("Operation not supported: counters are always on, and count all"),
        Some("link") => show(words.next(), words, manner),
        _ => {
            words.one_of(&["link"]);
            show(words.next(), words, manner)
        }
    }
}

fn show(link: Option<&str>, rest: Words<'_>, manner: Manner) -> Result<()> {
    rest.end()?;
    stat::show(link.map(link_name).transpose()?, false, manner.format)
}

/// All queue pairs of a program share its counters: what iproute2 calls a counter that
/// they are bound to.
fn of_queue_pairs(mut words: Words<'_>, manner: Manner) -> Result<()> {
    let commands = ["show", "list", "mode", "set", "bind", "unbind"];
    let command = words.command("parameter", &commands, Some("show"))?;
    if matches!(command, Some("set" | "bind" | "unbind")) {
        bail!("Operation not supported: queue pairs are bound to the counters of their program");
    }
    let link = match words.one_of(&["link", "dev"]) {
        Some(_) => Some(words.next().context("a link is missing")?),
        None => None,
    };
    words.end()?;
    let links = links(link)?;
    let Some(mut connection) = daemon::connect()? else {
        return row::show(&[], manner.format);
    };
    let mut rows = Vec::new();
    for link in links {
        if command == Some("mode") {
            let names = [
                ("ifindex", link.index.into()),
                ("ifname", link.name.clone().into()),
                ("port", PORT.into()),
            ];
            let head = format!("{}/{PORT}: {}/{PORT}: ", link.index, link.name);
            rows.push(Row::new(head, names).with("qp", "auto pid on"));
            continue;
        }
        let (programs, _) = connection.resources(Some(&link.name))?;
        let mut queue_pairs = Vec::new();
        for program in programs {
            let slots = program.process.slots.clone();
            queue_pairs.push((slots, program.read().unwrap_or_default().qps));
        }
        for counters in connection.counters(Some(&link.name), true)? {
            let Some(process) = &counters.process else {
                continue;
            };
            let of = queue_pairs
                .iter()
                .find(|(slots, _)| *slots == process.slots);
            let numbers = of.map(|(_, qps)| qps.iter().map(|qp| qp.lqpn).collect());
            rows.push(counter(link.index, &counters, numbers.unwrap_or_default()));
        }
    }
    row::show(&rows, manner.format)
}

fn counter(index: u32, counters: &LinkCounters, numbers: Vec<u32>) -> Row {
    let process = counters.process.as_ref();
    let mut row = Row::of_port(index, &counters.link, PORT)
        .with_some("cntn", process.and_then(|p| p.slots.first().copied()))
        .with_some("pid", process.map(|p| p.pid))
        .with_some("comm", process.map(|p| p.program.clone()));
    for (name, value) in &counters.values {
        if let Some(name) = stat::known_name(name) {
            row = row.with(name, *value);
        }
    }
    let list: Vec<String> = numbers.iter().map(u32::to_string).collect();
    let text = match &list[..] {
        [] => String::new(),
        list => format!("\n    LQPN: <{}>", list.join(", ")),
    };
    row.with_tail("lqpn", numbers, &text)
}
