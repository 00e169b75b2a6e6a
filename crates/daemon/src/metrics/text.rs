//! Counters and links in the text format of OpenMetrics 1.0.
//!
//! A family is a name with its type and help; its samples follow without a gap. Counters of
//! a link are `ferroce_link_NAME_total`. Those of a running program have another family,
//! `ferroce_program_NAME_total`, because the link's counters include them.

use std::fmt::Write;

use ferroce_control::{LinkCounters, LinkInfo, PortState};
use ferroce_roce::Counter;

/// The content type of this format.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The state and the counters of links.
    Links,
    /// The counters of running programs.
    Programs,
    /// Both.
    All,
}

/// Returns links and their counters as OpenMetrics text. `counters` holds those of links
/// and those of programs.
pub fn open_metrics(scope: Scope, links: &[LinkInfo], counters: &[LinkCounters]) -> String {
    let mut text = Text::default();
    if scope != Scope::Programs {
        write_links(&mut text, links, counters);
    }
    if scope != Scope::Links {
        write_programs(&mut text, counters);
    }
    text.0.push_str("# EOF\n");
    text.0
}

fn write_links(text: &mut Text, links: &[LinkInfo], counters: &[LinkCounters]) {
    text.family("ferroce_build", "info", "The version of Ferroce.");
    text.sample(
        "ferroce_build_info",
        &[("version", env!("CARGO_PKG_VERSION"))],
        1,
    );
    text.family("ferroce_link", "info", "A link and its netdev.");
    for link in links {
        let labels = [
            ("link", link.name.as_str()),
            ("netdev", &link.netdev),
            ("type", &link.kind),
        ];
        text.sample("ferroce_link_info", &labels, 1);
    }
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&LinkInfo) -> u64| {
        text.family(name, "gauge", help);
        for link in links {
            text.sample(name, &[("link", &link.name)], value(link));
        }
    };
    gauge(
        "ferroce_link_active",
        "1 if the port is active, 0 if it is down.",
        &|link| u64::from(link.state() == PortState::Active),
    );
    gauge(
        "ferroce_link_faulty",
        "1 if faults are in force on the link.",
        &|link| u64::from(!link.faults.is_empty()),
    );
    gauge(
        "ferroce_link_mtu_bytes",
        "The largest payload of a packet.",
        &|link| link.active_mtu.into(),
    );
    gauge(
        "ferroce_link_speed_bytes_per_second",
        "The speed that programs see.",
        &|link| u64::from(link.speed_mbps.unwrap_or(0)) * 1_000_000 / 8,
    );
    gauge(
        "ferroce_link_programs",
        "Running programs that have slots on the link.",
        &|link| {
            let programs = counters.iter().filter(|c| c.process.is_some());
            programs.filter(|c| c.link == link.name).count() as u64
        },
    );
    let of_links: Vec<&LinkCounters> = counters.iter().filter(|c| c.process.is_none()).collect();
    write_counters(text, "ferroce_link", &of_links);
}

fn write_programs(text: &mut Text, counters: &[LinkCounters]) {
    let of_programs: Vec<&LinkCounters> = counters.iter().filter(|c| c.process.is_some()).collect();
    write_counters(text, "ferroce_program", &of_programs);
}

/// Writes one family for each counter, with a sample for each link or program.
fn write_counters(text: &mut Text, prefix: &str, counters: &[&LinkCounters]) {
    for (at, counter) in Counter::ALL.iter().enumerate() {
        let family = format!("{prefix}_{}", counter.name());
        text.family(&family, "counter", counter.help());
        let name = family + "_total";
        for counted in counters {
            // ferroced sends the values in the order of `Counter::ALL`.
            let Some((_, value)) = counted.values.get(at).filter(|v| v.0 == counter.name()) else {
                continue;
            };
            let mut labels = vec![("link", counted.link.as_str())];
            let pid;
            if let Some(process) = &counted.process {
                pid = process.pid.to_string();
                labels.extend([("pid", pid.as_str()), ("program", &process.program)]);
            }
            text.sample(&name, &labels, *value);
        }
    }
}

/// Text in the format of OpenMetrics.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Starts a family: its samples follow.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = escaped(help);
        // Writing to a string does not fail.
        let _ = write!(self.0, "# TYPE {name} {kind}\n# HELP {name} {help}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels = labels.iter().map(|(label, value)| {
            let value = escaped(value);
            format!("{label}=\"{value}\"")
        });
        let labels = labels.collect::<Vec<_>>().join(",");
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }
}

/// Escapes the characters that end a label's value or a line.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
