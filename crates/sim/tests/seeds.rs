//! The everyday run: every seed must be free of violations.

use std::sync::Mutex;

use ferroce_sim::run_seeds;

/// Seeds that every test run goes through.
const SEEDS: u64 = 2_500;

#[test]
fn no_seed_shows_a_violation() {
    let failed = Mutex::new(Vec::new());
    run_seeds(0, 2, None, |outcome| {
        let last = outcome.seed + 1 >= SEEDS;
        if outcome.violation.is_some() {
            failed.lock().unwrap().push(outcome);
            return false;
        }
        !last
    });
    let failed = failed.into_inner().unwrap();
    if let Some(outcome) = failed.first() {
        panic!("{}", outcome.report(None));
    }
}

#[test]
fn a_seed_leads_to_the_same_run_each_time() {
    for seed in 0..40 {
        let [one, other] = [0, 1].map(|_| ferroce_sim::run_seed(seed, None));
        assert_eq!((one.steps, one.packets), (other.steps, other.packets), "seed {seed}");
    }
}
