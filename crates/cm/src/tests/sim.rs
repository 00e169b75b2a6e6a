//! Whole networks of connection managers, from a seed.
//!
//! Hosts connect, accept, reject, disconnect and die at random while the network
//! loses, repeats, delays and forges messages, and hosts pause. A run is a
//! function of its seed. The oracle judges every event when it happens, and at
//! the end nothing may be left.

mod network;
mod oracle;
mod program;
mod rng;
mod world;

use crate::bugs::Bug;
use world::{Run, run};

const SEEDS: u64 = 3000;

/// One seed, message by message:
/// `SEED=7 cargo test -p ferroce-cm --lib one_seed_can_be_watched -- --nocapture`
#[test]
fn one_seed_can_be_watched() {
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().expect("a number"));
    let result = run(seed, None, true);
    println!("{result:?}");
    assert!(result.is_ok(), "seed {seed}");
}

fn replay(seed: u64, bug: Option<Bug>) -> Result<Run, String> {
    let result = std::panic::catch_unwind(|| run(seed, bug, false));
    result.unwrap_or_else(|_| Err("panicked".into()))
}

#[test]
fn networks_keep_all_rules() {
    let mut total = Run::default();
    for seed in 0..SEEDS {
        match run(seed, None, false) {
            Ok(run) => total.add(&run),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{SEEDS} seeds: {total:?}");
    // What never happened was not tested.
    let Run {
        attempts,
        connected,
        rejected,
        unreachable,
        data_before_rtu,
        delivered,
        lost,
        repeated,
        forged,
        resolved,
        ..
    } = total;
    let counts = [
        attempts,
        connected,
        rejected,
        unreachable,
        data_before_rtu,
        delivered,
        lost,
        repeated,
        forged,
        resolved,
    ];
    assert!(counts.iter().all(|n| *n > 100), "{counts:?}");
}

#[test]
fn a_seed_replays() {
    for seed in 0..20 {
        assert_eq!(
            run(seed, None, false),
            run(seed, None, false),
            "seed {seed}"
        );
    }
    assert_ne!(run(1, None, false), run(2, None, false));
}

#[test]
fn every_deliberate_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let finding = |seed| Some((seed, replay(seed, Some(*bug)).err()?));
        match (0..SEEDS).find_map(finding) {
            Some((seed, violation)) => println!("{bug:?}: seed {seed}: {violation:.60}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "missed: {missed:?}");
}
