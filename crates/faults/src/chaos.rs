//! Chaos: a plan drawn from a seed.

use crate::random::{below, mix};

/// Returns the text of a plan that a seed draws: one to three faults of packets that programs
/// survive, and now and then a failing verb or an event.
pub fn draw(seed: u64) -> String {
    let mut draws = 0;
    let mut number = |end: u64| {
        draws += 1;
        below(mix(&[seed, 0xc4a0_5000, draws]), end)
    };
    let mut parts = vec![format!("seed {seed}")];
    for _ in 0..=number(3) {
        let tenths = 1 + number(30);
        let share = format!("{}.{}%", tenths / 10, tenths % 10);
        let direction = ["", " in", " out"][number(3) as usize];
        let part = match number(10) {
            0 | 1 => format!("loss {share}{direction}"),
            2 => format!("loss {share} burst {}{direction}", 2 + number(8)),
            3 => format!("duplicate {share}{direction}"),
            4 => format!("reorder {share} by {}{direction}", 1 + number(4)),
            5 => format!(
                "delay {}us jitter {}us{direction}",
                100 + number(4000),
                number(1000)
            ),
            6 => format!("corrupt {share}{direction}"),
            7 => format!("rnr {share} times {}", 1 + number(6)),
            8 => format!(
                "partition at {}ms for {}ms",
                50 + number(500),
                5 + number(100)
            ),
            _ => {
                let kind = ["ACK", "SEND", "WRITE", "packet"][number(4) as usize];
                format!(
                    "drop the {} {kind}",
                    crate::words::with_ending(1 + number(40))
                )
            }
        };
        parts.push(part);
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn each_seed_draws_a_valid_plan_and_always_the_same() {
        let mut different = std::collections::BTreeSet::new();
        for seed in 0..500 {
            let text = draw(seed);
            let plan = Plan::parse(&text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((plan.seed, plan.to_string()), (seed, draw(seed)));
            assert!(!plan.is_empty());
            different.insert(text);
        }
        assert_eq!(different.len(), 500);
    }
}
