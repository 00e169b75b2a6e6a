//! Counts of packets and calls, and of what the faults did to them.

use core::fmt::Debug;
use core::sync::atomic::{AtomicU64, Ordering};

/// Most rules of a plan.
pub const MAX_RULES: usize = 64;

/// Counts for each rule. Several threads use them, and several processes may share them.
pub trait Counts: Send + Sync + Debug {
    /// Counts a packet or call that a rule selects. Returns its number, from 1.
    fn select(&self, rule: usize) -> u64;
    /// Counts a packet or call that a rule has changed.
    fn hit(&self, rule: usize);
    /// Returns how many packets or calls a rule has selected, and how many it has changed.
    fn read(&self, rule: usize) -> (u64, u64);
}

/// Counts of one process.
#[derive(Debug)]
pub struct LocalCounts {
    rules: [(AtomicU64, AtomicU64); MAX_RULES],
}

impl Default for LocalCounts {
    fn default() -> LocalCounts {
        LocalCounts {
            rules: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; MAX_RULES],
        }
    }
}

impl Counts for LocalCounts {
    fn select(&self, rule: usize) -> u64 {
        self.rules[rule].0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn hit(&self, rule: usize) {
        self.rules[rule].1.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self, rule: usize) -> (u64, u64) {
        let (selected, hit) = &self.rules[rule];
        (
            selected.load(Ordering::Relaxed),
            hit.load(Ordering::Relaxed),
        )
    }
}
