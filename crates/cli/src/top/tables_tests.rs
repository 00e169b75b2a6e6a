use std::time::{Duration, Instant};

use ferroce_control::LinkInfo;
use ferroce_control::resources::{QpActivity, QpResource};

use super::super::sample::{LinkSample, ProgramSample, QpSample, Sample, Values};
use super::*;

#[allow(clippy::disallowed_methods, reason = "the zero of the samples' clock")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

pub(crate) fn qp(lqpn: u32, program: &str, sq_psn: u32) -> QpSample {
    QpSample {
        link: "rxe0".into(),
        pid: 42,
        program: program.into(),
        qp: QpResource {
            lqpn,
            pdn: Some(1),
            rqpn: Some(0x2_0001),
            kind: "RC".into(),
            state: "RTS".into(),
            rq_psn: Some(0),
            sq_psn,
            srqn: None,
            failure: None,
            sends: 3,
            receives: 4,
            wire: Some("udp".into()),
            activity: QpActivity {
                window: 65_536,
                in_flight: 4096,
                rtt_ns: 12_000,
                una: sq_psn,
                unacked: 0,
                retries: 2,
                rnr_rcvd: 1,
                rnr_sent: 2,
            },
        },
    }
}

pub(crate) fn sample(at: Instant, qps: Vec<QpSample>) -> Sample {
    let values = |packets| Values::from([("sent_pkts".to_owned(), packets)]);
    Sample {
        at,
        links: vec![LinkSample {
            info: LinkInfo::new("rxe0", "lo", 1),
            values: values(1000),
        }],
        programs: vec![ProgramSample {
            link: "rxe0".into(),
            pid: 42,
            name: "writer".into(),
            values: values(500),
        }],
        qps,
        notes: Vec::new(),
    }
}

fn cell(row: &Row, view: View, title: &str) -> String {
    let at = view.columns().iter().position(|c| c.title == title);
    row.cells[at.expect("a column")].text.clone()
}

#[test]
fn rates_of_queue_pairs_follow_their_psns() {
    let (start, mut history) = (start(), History::default());
    let later = start + Duration::from_secs(2);
    history.add(sample(start, vec![qp(0x1_0001, "writer", 0xff_fff0)]));
    history.add(sample(later, vec![qp(0x1_0001, "writer", 0x00_0030)]));
    let rows = history.rows(View::QueuePairs);
    let of = |title| cell(&rows[0], View::QueuePairs, title);
    assert_eq!(
        of("TX/S"),
        "32",
        "64 packets in two seconds, past the end of the PSNs"
    );
    assert_eq!((of("RETRY"), of("RNR")), ("2".into(), "3".into()));
    assert_eq!((of("WIN"), of("RTT")), ("64K".into(), "12us".into()));
    assert_eq!(of("OLDEST"), "-", "all is acknowledged");
}

#[test]
fn rewound_psn_is_no_rate() {
    let (start, mut history) = (start(), History::default());
    let later = start + Duration::from_secs(1);
    history.add(sample(start, vec![qp(0x1_0001, "writer", 100)]));
    history.add(sample(later, vec![qp(0x1_0001, "writer", 90)]));
    let rows = history.rows(View::QueuePairs);
    assert_eq!(cell(&rows[0], View::QueuePairs, "TX/S"), "0");
}

#[test]
fn oldest_packet_ages_until_it_is_acknowledged() {
    let (start, mut history) = (start(), History::default());
    let mut ages = Vec::new();
    for (seconds, una, unacked) in [(0, 5, 2), (1, 5, 2), (3, 5, 7), (4, 6, 6), (5, 12, 0)] {
        let mut qp = qp(0x1_0001, "writer", 12);
        (qp.qp.activity.una, qp.qp.activity.unacked) = (una, unacked);
        history.add(sample(start + Duration::from_secs(seconds), vec![qp]));
        let rows = history.rows(View::QueuePairs);
        ages.push(cell(&rows[0], View::QueuePairs, "OLDEST"));
    }
    assert_eq!(ages, ["0us", "1.0s", "3.0s", "0us", "-"]);
}

#[test]
fn columns_of_each_view_match_its_cells() {
    let mut history = History::default();
    history.add(sample(start(), vec![qp(0x1_0001, "writer", 0)]));
    for view in View::ALL {
        for row in history.rows(view) {
            assert_eq!(row.cells.len(), view.columns().len(), "{view:?}");
        }
        let columns = view.columns().iter().filter(|c| !c.is_extra);
        let width: usize = columns.map(|c| c.width + 1).sum();
        assert!(width <= 81, "{view:?} takes {width} characters");
    }
}
