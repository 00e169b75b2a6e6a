//! The everyday run: no seed shows a violation, and together they leave nothing
//! untried.

use std::sync::Mutex;

use ferroce_sim::{Coverage, DROPS, EVENTS, STATUSES, run_seed, run_seeds};
use ferroce_wire::{Opcode, Transport};

/// Seeds that every test run goes through.
const SEEDS: u64 = 6_000;

/// Things that scenarios are meant to reach.
const MARKS: &[&str] = &[
    "completion queue notified",
    "completion queue overflowed",
    "connected again",
    "deregistered",
    "destroyed",
    "drained and resumed",
    "foreign window used",
    "requests ordered by fence",
    "reset",
    "retries counted exactly",
    "send queue recovered",
    "shared receive queue ran low",
    "stale window key used",
    "window used",
];

#[test]
fn no_seed_shows_a_violation_and_nothing_is_left_untried() {
    let total = Mutex::new((0, Coverage::default(), Vec::new()));
    run_seeds(0, 2, None, |outcome| {
        let mut total = total.lock().unwrap();
        total.0 += 1;
        total.1.add(&outcome.coverage);
        if outcome.violation.is_some() {
            total.2.push(outcome);
        }
        total.0 < SEEDS && total.2.is_empty()
    });
    let (_, coverage, failed) = total.into_inner().unwrap();
    if let Some(outcome) = failed.first() {
        panic!("{}", outcome.report(None));
    }
    println!("{coverage}");
    check_coverage(&coverage);
}

fn check_coverage(coverage: &Coverage) {
    for opcode in (0..=255).filter_map(Opcode::from_byte) {
        let used = opcode.transport() != Transport::Rd;
        assert!(!used || coverage.packets(opcode) > 0, "no packet {opcode}");
    }
    for &status in STATUSES {
        assert!(coverage.sends(status) > 0, "no send ended with: {status}");
    }
    for &why in DROPS {
        assert!(coverage.drops(why) > 0, "no packet was dropped as {why:?}");
    }
    for &event in EVENTS {
        assert!(coverage.events(event) > 0, "no event {event:?}");
    }
    for mark in MARKS {
        assert!(coverage.marks(mark) > 0, "never: {mark}");
    }
}

#[test]
fn a_seed_leads_to_the_same_run_each_time() {
    for seed in 0..40 {
        let [one, other] = [0, 1].map(|_| run_seed(seed, None));
        assert_eq!(
            (one.steps, one.packets, one.coverage.to_string()),
            (other.steps, other.packets, other.coverage.to_string()),
            "seed {seed}"
        );
    }
}
