//! `rdma statistic`: shows the counters of links, and of the queue pairs of each program.

use anyhow::{Context, Result, bail};
use ferroce_control::LinkCounters;
use ferroce_control::resources::QpResource;

use super::filter::Filter;
use super::row::{self, Row};
use super::words::Words;
use super::{SharedOptions, links, resource};
use crate::link::show::{PORT, link_name};
use crate::{daemon, output, stat};

pub(super) const USAGE: &str = "\
Usage: rdma statistic [ show ] [ link DEV/PORT_INDEX ]
       rdma statistic qp [ show ] [ link DEV/PORT_INDEX ] [ FILTER_NAME FILTER_VALUE ]
       rdma statistic qp mode [ link DEV/PORT_INDEX ]
       rdma statistic mr [ show ] [ dev DEV ] [ mrn N ]
       rdma statistic mode [ supported ] [ link DEV/PORT_INDEX ]
where  FILTER_NAME := { cntn | lqpn | pid | qp-type }
";

pub(super) fn run(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    let commands = [
        "show", "list", "link", "qp", "mr", "mode", "set", "unset", "help",
    ];
    match words.command("statistic command", &commands, Some("show"))? {
        Some("help") => output::write(USAGE),
        Some("qp") => of_queue_pairs(words, options),
        Some("mr") => of_regions(words, options),
        Some("mode") => optional_counters(words, options),
        Some(change @ ("set" | "unset")) => change_optional(change, words),
        Some("link") => show(words.next(), words, options),
        // iproute2 accepts `statistic show mr` for `statistic mr show`.
        _ => match words.one_of(&["link", "qp", "mr"]) {
            Some("qp") => of_queue_pairs(words, options),
            Some("mr") => of_regions(words, options),
            _ => show(words.next(), words, options),
        },
    }
}

fn show(link: Option<&str>, rest: Words<'_>, options: SharedOptions) -> Result<()> {
    rest.end()?;
    stat::show(link.map(link_name).transpose()?, false, options.format)
}

/// Parses `link NAME` or `dev NAME`, if one of them comes next.
fn named_link<'a>(words: &mut Words<'a>) -> Result<Option<&'a str>> {
    match words.one_of(&["link", "dev"]) {
        Some(_) => Ok(Some(words.next().context("the name of a link is missing")?)),
        None => Ok(None),
    }
}

/// Shows optional counters, which a driver can switch on. Like the kernel's rxe, Ferroce has
/// none, so the output is empty.
fn optional_counters(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    words.one_of(&["supported"]);
    let only = named_link(&mut words)?;
    words.end()?;
    links(only)?;
    row::show(&[], options.format)
}

fn change_optional(change: &str, mut words: Words<'_>) -> Result<()> {
    let Some(only) = named_link(&mut words)? else {
        bail!("`rdma statistic {change}` needs `link DEV/PORT_INDEX`\n{USAGE}");
    };
    links(Some(only))?;
    if words.next() != Some("optional-counters") {
        bail!("`optional-counters` must follow `link {only}`\n{USAGE}");
    }
    bail!(
        "Operation not supported: {only} has no optional counters; \
         `rdma statistic show link {only}` shows its counters, which are always on"
    );
}

/// Shows memory regions. Like those of the kernel's rxe, they have no counters.
fn of_regions(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    let commands = ["show", "list", "help"];
    // The command may be missing: a link or a filter may come first.
    if words.one_of(&commands) == Some("help") {
        return output::write(USAGE);
    }
    let only = named_link(&mut words)?;
    let filter = Filter::parse(words, &["mrn", "pid"])?;
    let mut rows = resource::regions(only)?;
    rows.retain(|row| filter.admits(row));
    row::show(&rows, options.format)
}

/// Shows the counters of queue pairs. All queue pairs of a program share its counters, which
/// iproute2 calls a counter that they are bound to.
fn of_queue_pairs(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    let commands = ["show", "list", "mode", "set", "bind", "unbind", "help"];
    // The command may be missing: a link or a filter may come first.
    let command = words.one_of(&commands);
    if command == Some("help") {
        return output::write(USAGE);
    }
    if matches!(command, Some("set" | "bind" | "unbind")) {
        bail!(
            "Operation not supported: all queue pairs of a program are bound to the counters of \
             that program"
        );
    }
    let link = named_link(&mut words)?;
    let filter = Filter::parse(words, &["cntn", "lqpn", "pid", "qp-type"])?;
    let links = links(link)?;
    let Some(mut connection) = daemon::connect()? else {
        return row::show(&[], options.format);
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
            let devices = program.read().unwrap_or_default().into_iter();
            let qps: Vec<QpResource> = devices.flat_map(|device| device.qps).collect();
            queue_pairs.push((slots, qps));
        }
        for counters in connection.counters(Some(&link.name), true)? {
            let Some(process) = &counters.process else {
                continue;
            };
            let of = queue_pairs
                .iter()
                .find(|(slots, _)| *slots == process.slots);
            let qps = of.map_or(&[][..], |(_, qps)| qps);
            rows.push(counter(link.index, &counters, qps));
        }
    }
    rows.retain(|row| command == Some("mode") || filter.admits(row));
    row::show(&rows, options.format)
}

fn counter(index: u32, counters: &LinkCounters, qps: &[QpResource]) -> Row {
    let numbers: Vec<u32> = qps.iter().map(|qp| qp.lqpn).collect();
    let kinds: Vec<String> = qps.iter().map(|qp| qp.kind.clone()).collect();
    let process = counters.process.as_ref();
    let mut row = Row::of_port(index, &counters.link, PORT)
        .with_some("cntn", process.and_then(|p| p.slots.first().copied()))
        .with_some("pid", process.map(|p| p.pid))
        .with_some("comm", process.map(|p| p.program.clone()))
        .with_key("qp-type", Some(kinds));
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
