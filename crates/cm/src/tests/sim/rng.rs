//! Seeded random numbers: one stream for programs, one for the network.

use core::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub(super) struct Rng(ChaCha8Rng);

impl Rng {
    pub(super) fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Rng(rng)
    }

    pub(super) fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.u64() % n
    }

    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a duration between `low` and `high` microseconds.
    pub(super) fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(low + self.below(high - low + 1))
    }

    pub(super) fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
