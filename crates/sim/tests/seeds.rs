//! Runs thousands of seeds: none shows a violation, and together they reach every
//! opcode, status, drop reason and event.

use std::sync::Mutex;

use ferroce_sim::{Coverage, DROPS, EVENTS, Family, Options, STATUSES, run_seed, run_seeds};
use ferroce_wire::{Opcode, Transport};

/// Number of seeds in every test run.
const SEEDS: u64 = 6_000;

/// Situations that scenarios are meant to reach.
const MARKS: &[&str] = &[
    "RC through memory",
    "UC through memory",
    "UD through memory",
    "XRC through memory",
    "channel closed",
    "channel sabotaged",
    "completion queue notified",
    "completion queue overflowed",
    "connected again",
    "dead process left packets",
    "deregistered",
    "destroyed",
    "drained and resumed",
    "foreign window used",
    "header predicted",
    "host woken by memory",
    "intruder wrote to memory",
    "no retry allowed",
    "packet waited for a receive",
    "packet without a receive expired",
    "packets prepared while a thread sent",
    "poller deferred ACKs",
    "posts waited for more",
    "process died",
    "requests ordered by fence",
    "reset",
    "retries counted exactly",
    "run given up in memory",
    "run predicted",
    "run waited for room in memory",
    "send queue recovered",
    "sender gave up waiting for credits",
    "sender waited for credits",
    "shared receive queue ran low",
    "stale window key used",
    "throughput checked",
    "window used",
];

#[test]
fn no_seed_shows_a_violation_and_all_marks_are_covered() {
    let total = Mutex::new((0, Coverage::default(), Vec::new()));
    run_seeds(0, 2, Options::default(), |outcome| {
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
        panic!("{}", outcome.report(Options::default()));
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
fn same_seed_gives_the_same_run() {
    for seed in 0..40 {
        let [one, other] = [0, 1].map(|_| run_seed(seed, Options::default()));
        assert_eq!(
            (one.steps, one.packets, one.coverage.to_string()),
            (other.steps, other.packets, other.coverage.to_string()),
            "seed {seed}"
        );
    }
}

/// A queue pair that is destroyed delivers datagrams that have arrived: the oracle took one for
/// a datagram that never did.
#[test]
fn datagram_that_waits_is_delivered_before_its_queue_pair_ends() {
    let outcome = run_seed(15_638, Options::default());
    assert!(
        outcome.violation.is_none(),
        "{}",
        outcome.report(Options::default())
    );
}

/// The end of a READ's response arrived while the requester went back for its beginning, and probes
/// followed: the oracle took two parts of one READ for two READs.
#[test]
fn probes_of_one_read_are_not_two_reads() {
    let outcome = run_seed(1_060_465, Options::default());
    assert!(
        outcome.violation.is_none(),
        "{}",
        outcome.report(Options::default())
    );
}

/// Unreliable runs to a process that has ended were charged to its credits, which it never gives
/// back: each of them waited, and all other runs behind it.
#[test]
fn runs_that_the_local_wire_drops_cost_no_credits() {
    for seed in [2_669, 4_555] {
        let options = Options {
            family: Some(Family::LocalWire),
            ..Options::default()
        };
        let outcome = run_seed(seed, options);
        assert!(outcome.violation.is_none(), "{}", outcome.report(options));
    }
}

/// A UC queue pair was reset and connected again. Its peer received packets of the old connection:
/// they had waited for room in memory, or had arrived before the peer's RTR.
#[test]
fn uc_connection_receives_no_packet_of_the_one_before() {
    let outcome = run_seed(20_076_420, Options::default());
    assert!(
        outcome.violation.is_none(),
        "{}",
        outcome.report(Options::default())
    );
    let mark = "UC connection ended before its packets left";
    assert!(outcome.coverage.marks(mark) > 0, "find another seed");
}
