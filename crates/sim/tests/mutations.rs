//! The simulator can fail: every deliberate bug is found within a stated number
//! of seeds.

use std::sync::Mutex;

use ferroce_sim::{Bug, run_seeds};

/// Seeds within which every bug must be found.
const BUDGET: u64 = 400;

#[test]
fn every_deliberate_bug_is_found() {
    let mut missed = Vec::new();
    println!("{:<26} {:>6}  family, violation", "bug", "seeds");
    for &bug in Bug::ALL {
        let found = Mutex::new(None);
        run_seeds(0, 2, Some(bug), |outcome| {
            let last = outcome.seed + 1 >= BUDGET;
            let mut found = found.lock().unwrap();
            if outcome.violation.is_some() {
                let better = |old: &ferroce_sim::Outcome| old.seed > outcome.seed;
                if found.as_ref().is_none_or(better) {
                    *found = Some(outcome);
                }
                return false;
            }
            !last && found.is_none()
        });
        let name = format!("{bug:?}");
        match found.into_inner().unwrap() {
            Some(outcome) => {
                let violation = outcome.violation.unwrap_or_default();
                let line = violation.lines().next().unwrap_or_default();
                println!(
                    "{name:<26} {:>6}  {:?}: {line:.90}",
                    outcome.seed + 1,
                    outcome.family
                );
            }
            None => {
                println!("{name:<26} not found in {BUDGET} seeds");
                missed.push(bug);
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
