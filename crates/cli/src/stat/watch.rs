//! `ferroce stat --watch`: prints rates, one line per link and interval.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferroce_control::{Connection, LinkCounters};

use crate::{daemon, output};

const HEADER: &str = "\
link          sent_pkts/s  rcvd_pkts/s  sent_Gb/s  rcvd_Gb/s  retries/s  errors/s\n";
/// Intervals after which the header is printed again.
const SCREEN: u64 = 20;

/// Counters of retransmissions and of their causes.
pub(crate) const RETRIES: [&str; 5] = [
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_seq_err",
    "completer_retry_err",
    "rcvd_rnr_err",
];
/// Counters of errors that ended a work request.
pub(crate) const ERRORS: [&str; 3] = ["retry_exceeded_err", "retry_rnr_exceeded_err", "send_err"];

type Values = BTreeMap<String, u64>;

pub(super) fn run(link: Option<&str>, seconds: f64, count: Option<u64>) -> Result<()> {
    ensure!(
        (0.01..=86_400.0).contains(&seconds),
        "an interval of {seconds} s is not valid; use 0.01 to 86400"
    );
    let mut connection = daemon::connect()?.context(
        "there are no links in this network namespace: no ferroced runs; \
         `ferroce link add NAME type rxe netdev IF` adds one",
    )?;
    let mut before = read(&mut connection, link)?;
    let mut last = now();
    for line in 0.. {
        if count.is_some_and(|count| line >= count) {
            break;
        }
        #[allow(clippy::disallowed_methods)] // the user asked for this interval
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (after, this) = (read(&mut connection, link)?, now());
        let passed = (this - last).as_secs_f64();
        if line % SCREEN == 0 {
            output::write(HEADER)?;
        }
        for (name, values) in &after {
            let nothing = Values::new();
            let old = before.get(name).unwrap_or(&nothing);
            output::write(&rates(name, old, values, passed))?;
        }
        (before, last) = (after, this);
    }
    Ok(())
}

fn read(connection: &mut Connection, link: Option<&str>) -> Result<BTreeMap<String, Values>> {
    let counters = connection.counters(link, false)?;
    let named = |c: LinkCounters| (c.link, c.values.into_iter().collect());
    Ok(counters.into_iter().map(named).collect())
}

fn rates(link: &str, before: &Values, after: &Values, seconds: f64) -> String {
    let rate = |name: &str| {
        let value = |values: &Values| values.get(name).copied().unwrap_or(0);
        value(after).saturating_sub(value(before)) as f64 / seconds
    };
    let sum = |names: &[&str]| names.iter().map(|name| rate(name)).sum::<f64>();
    format!(
        "{link:<12}  {:>11.0}  {:>11.0}  {:>9.3}  {:>9.3}  {:>9.0}  {:>8.0}\n",
        rate("sent_pkts"),
        rate("rcvd_pkts"),
        rate("sent_bytes") * 8e-9,
        rate("rcvd_bytes") * 8e-9,
        sum(&RETRIES),
        sum(&ERRORS),
    )
}

#[allow(clippy::disallowed_methods)] // rates need a clock
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_difference_divided_by_time() {
        let values = |packets, bytes| {
            let pairs = [("sent_pkts", packets), ("sent_bytes", bytes)];
            pairs.map(|(n, v)| (n.to_owned(), v)).into()
        };
        let line = rates("rxe0", &values(10, 0), &values(30, 250_000_000), 2.0);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["rxe0", "10", "0", "1.000", "0.000", "0", "0"]);
        assert_eq!(line.len(), HEADER.len(), "as wide as the header");
    }
}
