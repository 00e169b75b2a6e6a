//! Deterministic numbers: a function of the seed and of the place where they are used.

use crate::selector::Direction;

/// Returns a number that depends on all of `parts` (splitmix64 after each part).
pub(crate) fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |state, &part| {
        let mut z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Returns a number below `end`, which is not 0.
pub(crate) fn below(number: u64, end: u64) -> u64 {
    ((u128::from(number) * u128::from(end)) >> 64) as u64
}

/// A probability, in units of 2^-32.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) const CERTAIN: Chance = Chance(1 << 32);
    pub(crate) const NEVER: Chance = Chance(0);

    /// Returns the probability for a share between 0 and 1.
    pub(crate) fn new(share: f64) -> Chance {
        Chance((share.clamp(0.0, 1.0) * 4_294_967_296.0).round() as u64)
    }

    pub(crate) fn share(self) -> f64 {
        self.0 as f64 / 4_294_967_296.0
    }

    /// Decides by the upper half of a random number.
    pub(crate) fn decide(self, number: u64) -> bool {
        number >> 32 < self.0
    }
}

/// Returns the random numbers of a rule for the packets of a flow: a number for each part of the
/// decision about the packet with this count.
pub(crate) fn randomness(
    seed: u64,
    rule: usize,
    direction: Direction,
    flow: u64,
) -> impl Fn(u64, u64) -> u64 + Copy {
    move |part, count| mix(&[seed, rule as u64, direction as u64, flow, count, part])
}
