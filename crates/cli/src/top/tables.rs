//! The tables of queue pairs, programs and links, made of two samples.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferroce_control::PortState;

use super::sample::{QpSample, Sample, Values};
use super::table::{Cell, Column, Row, bytes, duration};
use crate::stat::{ERRORS, RETRIES};

/// PSNs have 24 bits.
const PSN_MASK: u32 = 0xff_ffff;
/// A difference of PSNs from here on is negative: the requester has gone back.
const PSN_HALF: u32 = 0x80_0000;

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    QueuePairs,
    Programs,
    Links,
}

const fn text(title: &'static str, width: usize) -> Column {
    Column {
        title,
        width,
        is_number: false,
        is_extra: false,
    }
}

const fn number(title: &'static str, width: usize) -> Column {
    Column {
        title,
        width,
        is_number: true,
        is_extra: false,
    }
}

const fn extra(column: Column) -> Column {
    Column {
        is_extra: true,
        ..column
    }
}

/// Columns of queue pairs: 79 characters with the spaces between them, without the extra ones.
const QP_COLUMNS: [Column; 17] = [
    text("QPN", 8),
    number("PID", 7),
    text("PROGRAM", 9),
    text("TYP", 3),
    text("STATE", 5),
    number("TX/S", 5),
    number("RX/S", 5),
    number("RETRY", 5),
    number("RNR", 4),
    number("WIN", 5),
    number("RTT", 5),
    number("OLDEST", 6),
    extra(text("LINK", 8)),
    extra(text("PEER", 8)),
    extra(text("WIRE", 5)),
    extra(number("SQ", 5)),
    extra(number("RQ", 5)),
];

const PROGRAM_COLUMNS: [Column; 10] = [
    number("PID", 7),
    text("PROGRAM", 15),
    text("LINK", 8),
    number("QPS", 4),
    number("TX/S", 5),
    number("RX/S", 5),
    number("TX Gb/s", 7),
    number("RX Gb/s", 7),
    number("RETRY/S", 7),
    number("ERRORS", 6),
];

const LINK_COLUMNS: [Column; 10] = [
    text("LINK", 10),
    text("NETDEV", 10),
    text("STATE", 6),
    number("PROGS", 5),
    number("TX/S", 5),
    number("RX/S", 5),
    number("TX Gb/s", 7),
    number("RX Gb/s", 7),
    number("RETRY/S", 7),
    number("ERRORS", 6),
];

impl View {
    pub(super) const ALL: [View; 3] = [View::QueuePairs, View::Programs, View::Links];

    pub(super) fn title(self) -> &'static str {
        match self {
            View::QueuePairs => "queue pairs",
            View::Programs => "programs",
            View::Links => "links",
        }
    }

    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            View::QueuePairs => &QP_COLUMNS,
            View::Programs => &PROGRAM_COLUMNS,
            View::Links => &LINK_COLUMNS,
        }
    }

    /// Returns the column that rows are ordered by at first: packets sent.
    pub(super) fn first_order(self) -> usize {
        let mut columns = self.columns().iter();
        columns.position(|c| c.title == "TX/S").unwrap_or(0)
    }
}

/// Link, process and number of a queue pair.
type QpKey = (String, u32, u32);

/// Two successive samples, and the age of unacknowledged packets.
#[derive(Debug, Default)]
pub(super) struct History {
    last: Option<Sample>,
    before: Option<Sample>,
    /// The oldest unacknowledged PSN of a queue pair, and since when it is the oldest.
    oldest: BTreeMap<QpKey, (u32, Instant)>,
}

impl History {
    pub(super) fn add(&mut self, sample: Sample) {
        let mut oldest = BTreeMap::new();
        for of in &sample.qps {
            let activity = of.qp.activity;
            if activity.unacked > 0 {
                let key = key(of);
                let known = self
                    .oldest
                    .get(&key)
                    .filter(|known| known.0 == activity.una);
                let since = known.map_or(sample.at, |known| known.1);
                oldest.insert(key, (activity.una, since));
            }
        }
        self.oldest = oldest;
        self.before = self.last.replace(sample);
    }

    pub(super) fn last(&self) -> Option<&Sample> {
        self.last.as_ref()
    }

    pub(super) fn rows(&self, view: View) -> Vec<Row> {
        let Some(last) = &self.last else {
            return Vec::new();
        };
        match view {
            View::QueuePairs => last.qps.iter().map(|qp| self.qp(last, qp)).collect(),
            View::Programs => self.programs(last),
            View::Links => self.links(last),
        }
    }

    /// Returns the seconds between both samples.
    fn seconds(&self, last: &Sample) -> Option<f64> {
        let before = self.before.as_ref()?;
        let passed = last.at.saturating_duration_since(before.at).as_secs_f64();
        (passed > 0.0).then_some(passed)
    }

    fn qp(&self, last: &Sample, of: &QpSample) -> Row {
        let (qp, activity) = (&of.qp, of.qp.activity);
        let before = self.before.as_ref().and_then(|before| {
            let same = |other: &&QpSample| key(other) == key(of);
            before.qps.iter().find(same)
        });
        let rate = |psn: u32, earlier: Option<u32>| {
            let passed = match earlier.map(|earlier| psn.wrapping_sub(earlier) & PSN_MASK) {
                Some(passed) if passed < PSN_HALF => passed,
                _ => 0,
            };
            self.seconds(last).map_or(0.0, |s| f64::from(passed) / s)
        };
        let sent = rate(qp.sq_psn, before.map(|before| before.qp.sq_psn));
        let received = match qp.rq_psn {
            Some(psn) => Cell::count(rate(psn, before.and_then(|before| before.qp.rq_psn))),
            // The PSNs of datagrams follow no order.
            None => Cell::number("-".into(), 0.0),
        };
        let oldest = self.oldest.get(&key(of));
        let oldest = oldest.map(|(_, since)| last.at.saturating_duration_since(*since));
        let time = |time: Option<Duration>| match time {
            Some(time) => Cell::number(duration(time), time.as_secs_f64()),
            None => Cell::number("-".into(), -1.0),
        };
        let rtt = Duration::from_nanos(activity.rtt_ns.into());
        let kind = match qp.kind.as_str() {
            "XRC_INI" => "XI",
            "XRC_TGT" => "XT",
            other => other,
        };
        let rnr = activity.rnr_rcvd.wrapping_add(activity.rnr_sent);
        let peer = qp.rqpn.map_or("-".into(), |peer| format!("{peer:#08x}"));
        Row {
            key: key(of),
            is_bad: matches!(qp.state.as_str(), "ERR" | "SQE"),
            cells: vec![
                Cell::text(format!("{:#08x}", qp.lqpn)),
                Cell::number(of.pid.to_string(), of.pid.into()),
                Cell::text(of.program.clone()),
                Cell::text(kind),
                Cell::text(qp.state.clone()),
                Cell::count(sent),
                received,
                Cell::count(activity.retries.into()),
                Cell::count(rnr.into()),
                Cell::number(bytes(activity.window), activity.window.into()),
                time((activity.rtt_ns > 0).then_some(rtt)),
                time(oldest),
                Cell::text(of.link.clone()),
                Cell::text(peer),
                Cell::text(qp.wire.clone().unwrap_or("-".into())),
                Cell::count(qp.sends.into()),
                Cell::count(qp.receives.into()),
            ],
        }
    }

    fn programs(&self, last: &Sample) -> Vec<Row> {
        let rows = last.programs.iter().map(|program| {
            let same = |link: &str, pid| link == program.link && pid == program.pid;
            let before = self.before.as_ref().and_then(|before| {
                let mut programs = before.programs.iter();
                programs.find(|other| same(&other.link, other.pid))
            });
            let qps = last.qps.iter().filter(|qp| same(&qp.link, qp.pid)).count();
            let mut cells = vec![
                Cell::number(program.pid.to_string(), program.pid.into()),
                Cell::text(program.name.clone()),
                Cell::text(program.link.clone()),
                Cell::count(qps as f64),
            ];
            cells.extend(self.rates(last, &program.values, before.map(|before| &before.values)));
            Row {
                key: (program.link.clone(), program.pid, 0),
                cells,
                is_bad: false,
            }
        });
        rows.collect()
    }

    fn links(&self, last: &Sample) -> Vec<Row> {
        let rows = last.links.iter().map(|link| {
            let info = &link.info;
            let before = self.before.as_ref().and_then(|before| {
                let mut links = before.links.iter();
                links.find(|other| other.info.index == info.index)
            });
            let programs = last.programs.iter().filter(|p| p.link == info.name);
            let is_active = info.state() == PortState::Active;
            let mut cells = vec![
                Cell::text(info.name.clone()),
                Cell::text(info.netdev.clone()),
                Cell::text(if is_active { "ACTIVE" } else { "DOWN" }),
                Cell::count(programs.count() as f64),
            ];
            cells.extend(self.rates(last, &link.values, before.map(|before| &before.values)));
            Row {
                key: (info.name.clone(), 0, 0),
                cells,
                is_bad: !is_active || !info.faults.is_empty(),
            }
        });
        rows.collect()
    }

    /// Returns the cells of packets, Gb/s, retries and errors.
    fn rates(&self, last: &Sample, values: &Values, before: Option<&Values>) -> Vec<Cell> {
        let value = |values: &Values, name: &str| values.get(name).copied().unwrap_or(0);
        let seconds = self.seconds(last);
        let rate = |name: &str| match (before, seconds) {
            (Some(before), Some(seconds)) => {
                let passed = value(values, name).saturating_sub(value(before, name));
                passed as f64 / seconds
            }
            _ => 0.0,
        };
        let gigabits = |name: &str| {
            let rate = rate(name) * 8e-9;
            Cell::number(format!("{rate:.3}"), rate)
        };
        let errors: u64 = ERRORS.iter().map(|name| value(values, name)).sum();
        vec![
            Cell::count(rate("sent_pkts")),
            Cell::count(rate("rcvd_pkts")),
            gigabits("sent_bytes"),
            gigabits("rcvd_bytes"),
            Cell::count(RETRIES.iter().map(|name| rate(name)).sum()),
            Cell::count(errors as f64),
        ]
    }
}

fn key(of: &QpSample) -> QpKey {
    (of.link.clone(), of.pid, of.qp.lqpn)
}

#[cfg(test)]
#[path = "tables_tests.rs"]
pub(super) mod tests;
