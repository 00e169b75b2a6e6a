//! Random sequences of verbs calls in one process, checked against a simple model.
//!
//! [`calls`] turns bytes into calls, here and for the fuzzer in `fuzz/`. Here a seed generates
//! the bytes. A sequence that fails prints its seed and its calls. `FERROCE_SEED` repeats one
//! sequence, and `FERROCE_CALLS` prints each call before it is made.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod watchdog;

use common::with_device;

/// Number of sequences in everyday tests.
const SEQUENCES: u64 = 1000;
/// Maximum number of bytes of a sequence; a call takes about ten.
const LONGEST: u64 = 4000;

/// Results that must occur in that many sequences: of calls, and of completions.
const REACHED: [&str; 16] = [
    "dealloc_pd 16",
    "destroy_cq 16",
    "destroy_srq 16",
    "destroy_comp_channel 16",
    "destroy_qp 16",
    "modify_qp 0",
    "modify_qp 22",
    "modify_qp 95",
    "post_recv 12",
    "post_send 0",
    "post_send 12",
    "rereg_mr 0",
    "get_cq_event 0",
    "completed 0",
    "completed 1",
    "failed 5",
];

/// The random number generator SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Returns the sequence of a seed.
fn sequence(seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let length = 100 + numbers.next() % (LONGEST - 100);
    (0..length).map(|_| numbers.next() as u8).collect()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_calls_agree_with_the_model() {
    with_device("random_calls_agree_with_the_model", |context| {
        let count = number("FERROCE_SEQUENCES").unwrap_or(SEQUENCES);
        let seeds = match number("FERROCE_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..count,
        };
        let mut tally = calls::Tally::new();
        for seed in seeds {
            watchdog::watch(seed);
            for (what, times) in calls::play(context, &sequence(seed), &format!("seed {seed}")) {
                *tally.entry(what).or_default() += times;
            }
        }
        watchdog::dismiss();
        if std::env::var_os("FERROCE_CALLS").is_some() {
            eprintln!("{tally:#?}");
        }
        for what in REACHED {
            let all = number("FERROCE_SEED").is_none() && count >= SEQUENCES;
            assert!(!all || tally.contains_key(what), "never: {what}");
        }
    });
}
