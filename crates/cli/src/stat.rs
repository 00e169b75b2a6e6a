//! `ferroce stat`: prints counters in the format of `rdma statistic`.

mod watch;

pub(crate) use watch::{ERRORS, RETRIES};

use anyhow::{Result, bail};
use clap::Args;
use ferroce_control::{LinkCounters, LinkInfo};
use ferroce_daemon::{Scope, open_metrics};
use ferroce_device::transport::Counter;
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::daemon;
use crate::link::show::{PORT, link_name};
use crate::output::{self, Format};

/// Show the counters of links.
#[derive(Debug, Args)]
#[command(
    long_about = "\
Shows the counters of one link, or of all links. The counters have the names of the kernel's rxe; \
Ferroce adds some of its own. They count from the time the link was added, and include programs \
that have ended. Reading them does not slow running programs down.",
    after_long_help = "\
EXAMPLES
    ferroce stat rxe0
        link rxe0/1 sent_pkts 7 rcvd_pkts 5 duplicate_request 0 ...
    ferroce stat --watch 2
        rates per second, every two seconds
    ferroce stat --prometheus
        links and counters in the format OpenMetrics; `ferroced --metrics ADDRESS:PORT` serves
        the same to Prometheus
    ferroce stat --processes
        also the counters of each running program
    ferroce -j stat | jq '.[].rx_socket_overflow'
        datagrams dropped by the kernel because a socket buffer was full
    ferroce -j stat rxe0 | jq '.[0].sent_pkts'"
)]
pub(crate) struct StatArgs {
    /// Show only this link: NAME or NAME/PORT. The words `show` and `link` of `rdma
    /// statistic` may precede it
    #[arg(value_name = "LINK", num_args = 0..=3)]
    words: Vec<String>,

    /// Show rates every SECONDS until interrupted
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<f64>,

    /// With --watch: stop after this number of intervals
    #[arg(short, long, requires = "watch")]
    count: Option<u64>,

    /// Also show the counters of each running program
    #[arg(short = 'P', long)]
    processes: bool,

    /// Print OpenMetrics, the text format that Prometheus reads
    #[arg(long, conflicts_with_all = ["watch", "json", "pretty"])]
    prometheus: bool,
}

impl StatArgs {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        let link = link_of(&self.words)?;
        if self.prometheus {
            return show_metrics(link, self.processes);
        }
        match self.watch {
            Some(seconds) => watch::run(link, seconds, self.count),
            None => show(link, self.processes, format),
        }
    }
}

/// Prints the counters of one link, or of all links.
pub(crate) fn show(link: Option<&str>, processes: bool, format: Format) -> Result<()> {
    let (links, counters) = read(link, processes)?;
    if format.json || format.pretty {
        let shown = counters.iter().map(|counters| Shown {
            counters,
            faults: faults_on(&links, counters),
        });
        return format.write_json(&shown.collect::<Vec<_>>());
    }
    let lines = counters
        .iter()
        .map(|counters| text(counters, faults_on(&links, counters)));
    output::write(&lines.collect::<String>())
}

/// Prints links and their counters as OpenMetrics.
fn show_metrics(link: Option<&str>, processes: bool) -> Result<()> {
    let scope = match processes {
        true => Scope::All,
        false => Scope::Links,
    };
    // The number of programs is a metric of links.
    let (mut links, counters) = read(link, true)?;
    links.retain(|info| link.is_none_or(|name| name == info.name));
    output::write(&open_metrics(scope, &links, &counters))
}

/// Reads all links, and the counters of one link or of all.
fn read(link: Option<&str>, processes: bool) -> Result<(Vec<LinkInfo>, Vec<LinkCounters>)> {
    match (daemon::connect()?, link) {
        (Some(mut connection), _) => {
            let links = connection.links()?;
            Ok((links, connection.counters(link, processes)?))
        }
        (None, Some(name)) => bail!(
            "link {name} does not exist: no ferroced runs in this network namespace; \
             `ferroce link add {name} type rxe netdev IF` starts it"
        ),
        (None, None) => Ok((Vec::new(), Vec::new())),
    }
}

/// Returns the static name of a counter, and `None` if this release does not know it.
pub(crate) fn known_name(name: &str) -> Option<&'static str> {
    let mut known = Counter::ALL.iter().map(|counter| counter.name());
    known.find(|known| *known == name)
}

/// Returns the link in `[show] [link] [NAME[/PORT]]`.
fn link_of(words: &[String]) -> Result<Option<&str>> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let rest = words.strip_prefix(&["show"]).unwrap_or(&words);
    let rest = rest.strip_prefix(&["link"]).unwrap_or(rest);
    match rest {
        [] => Ok(None),
        [link] => Ok(Some(link_name(link)?)),
        [_, other, ..] => bail!("unexpected word `{other}`; usage: ferroce stat [LINK]"),
    }
}

/// Returns the faults in force on the link that was counted.
fn faults_on<'a>(links: &'a [LinkInfo], counters: &LinkCounters) -> &'a str {
    let link = links.iter().find(|link| link.name == counters.link);
    link.filter(|_| counters.process.is_none())
        .map_or("", |link| &link.faults)
}

fn text(counters: &LinkCounters, faults: &str) -> String {
    let mut text = format!("link {}/{PORT} ", counters.link);
    if let Some(process) = &counters.process {
        text += &format!("pid {} comm {} ", process.pid, process.program);
    }
    for (name, value) in &counters.values {
        text += &format!("{name} {value} ");
    }
    if !faults.is_empty() {
        text += &format!("\n    faults {faults} ");
    }
    text + "\n"
}

/// Counters as one JSON object, in the order of the text.
struct Shown<'a> {
    counters: &'a LinkCounters,
    faults: &'a str,
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ifname", &self.counters.link)?;
        map.serialize_entry("port", &PORT)?;
        if let Some(process) = &self.counters.process {
            map.serialize_entry("pid", &process.pid)?;
            map.serialize_entry("comm", &process.program)?;
            map.serialize_entry("slots", &process.slots)?;
        }
        for (name, value) in &self.counters.values {
            map.serialize_entry(name, value)?;
        }
        if !self.faults.is_empty() {
            map.serialize_entry("faults", self.faults)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_rdma_statistic_are_accepted() {
        let of = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(String::from).collect();
            link_of(&words).map(|link| link.map(String::from))
        };
        assert_eq!(of("").unwrap(), None);
        assert_eq!(of("show").unwrap(), None);
        assert_eq!(of("rxe0").unwrap(), Some("rxe0".into()));
        assert_eq!(of("show link rxe0/1").unwrap(), Some("rxe0".into()));
        assert!(of("rxe0 rxe1").is_err());
    }

    #[test]
    fn counters_are_one_line_of_pairs() {
        let counters = LinkCounters {
            link: "rxe0".into(),
            process: None,
            values: vec![("sent_pkts".into(), 7), ("rcvd_pkts".into(), 0)],
        };
        let line = "link rxe0/1 sent_pkts 7 rcvd_pkts 0 \n";
        assert_eq!(text(&counters, ""), line);
        let faults = "loss 1%";
        let more = format!("{}\n    faults loss 1% \n", line.trim_end_matches('\n'));
        assert_eq!(text(&counters, faults), more);
        let counters = Shown {
            counters: &counters,
            faults: "",
        };
        let expected = r#"{"ifname":"rxe0","port":1,"sent_pkts":7,"rcvd_pkts":0}"#;
        assert_eq!(serde_json::to_string(&counters).unwrap(), expected);
    }
}
