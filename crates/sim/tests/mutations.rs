//! Tests that the simulator finds every injected bug within a stated number of
//! seeds.
//!
//! `cargo test -p ferroce-sim --test mutations -- --nocapture` prints how many
//! seeds each bug takes.

use std::sync::Mutex;

use ferroce_sim::{Bug, Family, Options, Outcome, run_seeds};

/// Seeds within which a bug must be found.
const BUDGET: u64 = 400;
const FORGET_REFUND: Bug = Bug::Shard(ferroce_shard::Bug::ForgetRefund);
/// Bugs that few scenarios reveal, and the seeds within which each must be found.
const RARE: &[(Bug, u64)] = &[
    (Bug::Engine(ferroce_roce::Bug::SkipRemoteInvalidate), 800),
    (Bug::Engine(ferroce_roce::Bug::ProbeUnseenReadInPart), 2000),
    // Needs a full socket buffer while a datagram goes to the same machine.
    (Bug::Shard(ferroce_shard::Bug::ChargeTwice), 1000),
    // Needs many datagrams to a process that has ended, and others that wait behind them.
    (FORGET_REFUND, 3000),
    // Needs busy hosts, one of them stopped until an ACK timeout, and READs.
    (
        Bug::Engine(ferroce_roce::Bug::ForgetWindowBehindReadDepth),
        1500,
    ),
];

#[test]
fn every_injected_bug_is_found() {
    let mut missed = Vec::new();
    println!(
        "{:<26} {:>6} {:>6}  family: violation",
        "bug", "seeds", "of"
    );
    for bug in Bug::all() {
        let rare = RARE.iter().find(|(rare, _)| *rare == bug);
        let budget = rare.map_or(BUDGET, |(_, budget)| *budget);
        let name = format!("{bug:?}");
        match first_failure(bug, budget) {
            Some(outcome) => {
                let (seeds, family) = (outcome.seed + 1, outcome.family);
                let violation = outcome.violation.unwrap_or_default();
                let line = violation.lines().next().unwrap_or_default();
                println!("{name:<26} {seeds:>6} {budget:>6}  {family:?}: {line:.100}");
            }
            None => {
                println!("{name:<26} not found in {budget} seeds");
                missed.push(bug);
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Returns the outcome of the lowest seed below `budget` that finds the bug.
fn first_failure(bug: Bug, budget: u64) -> Option<Outcome> {
    let found: Mutex<Option<Outcome>> = Mutex::new(None);
    let options = Options {
        bug: Some(bug),
        // Other families have no local wire, and no wire that drops runs.
        family: (matches!(bug, Bug::Wire(_)) || bug == FORGET_REFUND).then_some(Family::LocalWire),
    };
    run_seeds(0, 2, options, |outcome| {
        let mut found = found.lock().unwrap();
        let lower = found.as_ref().is_none_or(|old| outcome.seed < old.seed);
        if outcome.seed < budget && outcome.violation.is_some() && lower {
            *found = Some(outcome);
            return false;
        }
        outcome.seed + 1 < budget && found.is_none()
    });
    found.into_inner().unwrap()
}
