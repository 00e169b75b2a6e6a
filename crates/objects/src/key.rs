//! Memory keys: their allocation, and the mapping from a key to its table slot.
//!
//! A peer that knows a key can access memory, so keys must not be guessable. A counter, or
//! an index with a few random bits, would reveal the next key to the owner of one. A key has
//! 32 bits:
//!
//! ```text
//!   31                              8 7           0
//!  +---------------------------------+-------------+
//!  |  permutation(index, generation) |  low byte   |
//!  +---------------------------------+-------------+
//! ```
//!
//! - *index*, 20 bits: the slot in the table of regions and windows.
//! - *generation*, 4 bits: random at the first use of an index, and incremented at each
//!   reuse. An index is reused only after 1024 others were freed, so an old key stays
//!   invalid for long.
//! - *permutation*: a secret bijection of 24 bits, drawn from the seed. It hides
//!   index and generation; [`Permutation::invert`] recovers them.
//! - *low byte*: random. The program chooses it when it binds a type 2 window. The adapter
//!   changes it at every bind of a type 1 window, by a secret odd step. The step visits all
//!   256 values, so an old key stays invalid for 255 binds.
//!
//! The permutation is a Feistel network of four rounds over two 12-bit halves, with
//! multiply-shift hashing (strongly universal) as the round function. Its inverse takes four
//! multiplications and no table, so a lookup costs a few nanoseconds. It does not have to be
//! a cipher: the lookup compares the whole key, 12 bits of a key are random in any case, and
//! each wrong guess costs the peer its connection.
//!
//! All randomness comes from one seed. Keys are unpredictable if the seed is, and
//! reproducible under the simulator.

use core::fmt;
use std::collections::VecDeque;

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::error::VerbsError;
use crate::room;

/// Number of slots that keys can name.
pub(crate) const INDICES: u32 = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 20;
const GENERATION_MASK: u32 = 0xf;
const HALF_BITS: u32 = 12;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;
/// The largest value of a key's upper 24 bits.
const UPPER_MAX: u32 = 0x00ff_ffff;
/// Number of indices that must be freed after an index before that one is reused, as long
/// as unused indices are left.
const REST: usize = 1024;

/// Returns the upper 24 bits of a key, in place. Only the adapter chooses them.
pub(crate) const fn upper(key: u32) -> u32 {
    key & !0xff
}

/// A secret bijection of 24 bits.
pub(crate) struct Permutation {
    rounds: [Round; 4],
}

#[derive(Copy, Clone)]
struct Round {
    factor: u64,
    addend: u64,
}

impl Round {
    #[inline]
    fn hash(self, half: u32) -> u32 {
        let wide = self.factor.wrapping_mul(u64::from(half));
        (wide.wrapping_add(self.addend) >> (u64::BITS - HALF_BITS)) as u32
    }
}

impl Permutation {
    fn new(rng: &mut ChaCha12Rng) -> Permutation {
        let mut round = || Round {
            factor: rng.next_u64(),
            addend: rng.next_u64(),
        };
        Permutation {
            rounds: [round(), round(), round(), round()],
        }
    }

    fn apply(&self, value: u32) -> u32 {
        debug_assert!(value <= UPPER_MAX);
        let (mut left, mut right) = (value >> HALF_BITS, value & HALF_MASK);
        for round in self.rounds {
            (left, right) = (right, left ^ round.hash(right));
        }
        left << HALF_BITS | right
    }

    #[inline]
    fn invert(&self, value: u32) -> u32 {
        let (mut left, mut right) = (value >> HALF_BITS, value & HALF_MASK);
        for round in self.rounds.iter().rev() {
            (left, right) = (right ^ round.hash(left), left);
        }
        left << HALF_BITS | right
    }

    /// Returns the index that `key` names. Every number names some index, so the caller
    /// compares the whole key with the one in the slot.
    #[inline]
    pub(crate) fn index(&self, key: u32) -> u32 {
        self.invert(key >> 8) >> GENERATION_MASK.count_ones()
    }
}

impl fmt::Debug for Permutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permutation(secret)")
    }
}

/// A slot of the table and its key.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct NewKey {
    pub(crate) index: u32,
    pub(crate) key: u32,
}

/// The allocator of indices and their keys.
pub(crate) struct KeyAllocator {
    rng: ChaCha12Rng,
    /// Step between two low bytes of a window. An odd step visits all 256 values.
    step: u32,
    /// Generation of each index that was ever used. The length is the next unused index.
    generations: Vec<u8>,
    /// Freed indices, oldest first.
    resting: VecDeque<u32>,
}

impl KeyAllocator {
    /// Creates the permutation and the allocator of a seed.
    pub(crate) fn new(seed: [u8; 32]) -> (Permutation, KeyAllocator) {
        let mut rng = ChaCha12Rng::from_seed(seed);
        let permutation = Permutation::new(&mut rng);
        let allocator = KeyAllocator {
            step: rng.next_u32() | 1,
            rng,
            generations: Vec::new(),
            resting: VecDeque::new(),
        };
        (permutation, allocator)
    }

    /// Reserves memory for one more index, and for freeing all indices.
    pub(crate) fn reserve(&mut self) -> Result<(), VerbsError> {
        let count = self.generations.len() + 1;
        let in_use = count - self.resting.len().min(count);
        let reserved = self.generations.try_reserve(1);
        reserved
            .and_then(|()| self.resting.try_reserve(in_use))
            .map_err(|_| room::none(count, "memory keys"))
    }

    /// Allocates an index with a new key. Returns `None` if all indices are in use.
    pub(crate) fn allocate(&mut self, permutation: &Permutation) -> Option<NewKey> {
        let index = self.take_index()?;
        loop {
            let generation = &mut self.generations[index as usize];
            *generation = (*generation + 1) & GENERATION_MASK as u8;
            let upper = permutation.apply(index << 4 | u32::from(*generation));
            // Keys 0 and 0xffffffff must not exist, whatever low byte a program
            // chooses: so their upper bits are never allocated.
            if upper != 0 && upper != UPPER_MAX {
                let key = upper << 8 | self.rng.next_u32() & 0xff;
                return Some(NewKey { index, key });
            }
        }
    }

    /// Frees an index. The caller has removed its key from the table.
    pub(crate) fn release(&mut self, index: u32) {
        debug_assert!((index as usize) < self.generations.len());
        self.resting.push_back(index);
    }

    /// Returns `key` with the next low byte. A key comes again only after 255 others, so
    /// that a peer with an old key does not reach the present memory.
    pub(crate) fn next_low_byte(&self, key: u32) -> u32 {
        upper(key) | key.wrapping_add(self.step) & 0xff
    }

    fn take_index(&mut self) -> Option<u32> {
        let unused = self.generations.len() as u32;
        if self.resting.len() > REST || unused == INDICES {
            return self.resting.pop_front();
        }
        let generation = self.rng.next_u32() & GENERATION_MASK;
        self.generations.push(generation as u8);
        Some(unused)
    }
}

impl fmt::Debug for KeyAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyAllocator")
            .field("used", &self.generations.len())
            .field("resting", &self.resting.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn keys(seed: u8, n: usize) -> Vec<NewKey> {
        let (permutation, mut allocator) = KeyAllocator::new([seed; 32]);
        (0..n)
            .map(|_| allocator.allocate(&permutation).expect("room"))
            .collect()
    }

    #[test]
    fn permutation_is_inverted_for_every_value() {
        for seed in [0, 1, 0xa5] {
            let (permutation, _) = KeyAllocator::new([seed; 32]);
            for value in 0..=UPPER_MAX {
                assert_eq!(permutation.invert(permutation.apply(value)), value);
            }
        }
    }

    #[test]
    fn key_names_its_index_with_any_low_byte() {
        let (permutation, mut allocator) = KeyAllocator::new([7; 32]);
        for _ in 0..10_000 {
            let new = allocator.allocate(&permutation).unwrap();
            for low in [0, 1, 0x80, 0xff] {
                assert_eq!(permutation.index(upper(new.key) | low), new.index);
            }
        }
    }

    #[test]
    fn keys_of_all_indices_differ() {
        let (permutation, mut allocator) = KeyAllocator::new([3; 32]);
        let mut seen = vec![false; 1 << 24];
        for _ in 0..INDICES {
            let new = allocator.allocate(&permutation).unwrap();
            let upper = (new.key >> 8) as usize;
            assert!(!seen[upper], "upper bits {upper:#x} twice");
            seen[upper] = true;
        }
        assert_eq!(allocator.allocate(&permutation), None);
        allocator.release(77);
        assert_eq!(allocator.allocate(&permutation).unwrap().index, 77);
    }

    #[test]
    fn keys_zero_and_all_ones_are_never_allocated() {
        // Upper bits 0 (or all ones) belong to one index and generation. The test allocates
        // that index in all 16 generations.
        for forbidden in [0, UPPER_MAX] {
            let (permutation, mut allocator) = KeyAllocator::new([9; 32]);
            let index = permutation.invert(forbidden) >> 4;
            allocator.generations = vec![0; INDICES as usize];
            for _ in 0..64 {
                allocator.release(index);
                let new = allocator.allocate(&permutation).unwrap();
                assert_eq!(new.index, index);
                assert!(!matches!(new.key >> 8, 0 | UPPER_MAX));
            }
        }
    }

    #[test]
    fn index_is_reused_late_and_with_another_key() {
        let (permutation, mut allocator) = KeyAllocator::new([5; 32]);
        let first = allocator.allocate(&permutation).unwrap();
        allocator.release(first.index);
        let mut old = BTreeSet::from([upper(first.key)]);
        let mut again = 0;
        for round in 0..12 * (REST + 2) {
            let new = allocator.allocate(&permutation).unwrap();
            if new.index == first.index {
                again += 1;
                assert!(round >= REST, "reused after {round} others");
                assert!(old.insert(upper(new.key)), "the same upper bits twice");
            }
            allocator.release(new.index);
        }
        assert!(again >= 10);
    }

    #[test]
    fn keys_are_not_predictable_from_one_another() {
        // No difference between successive keys is frequent, and no bit stays or flips
        // every time.
        let keys = keys(11, 4096);
        let mut steps: Vec<u32> = keys
            .windows(2)
            .map(|pair| (pair[1].key >> 8).wrapping_sub(pair[0].key >> 8) & UPPER_MAX)
            .collect();
        steps.sort_unstable();
        let most = steps.chunk_by(|a, b| a == b).map(<[u32]>::len).max();
        assert!(most < Some(8), "one step occurs {most:?} times in 4095");
        for bit in 0..32 {
            let flips = keys
                .windows(2)
                .filter(|pair| (pair[0].key ^ pair[1].key) >> bit & 1 == 1)
                .count();
            assert!((1024..3072).contains(&flips), "bit {bit}: {flips} flips");
        }
    }

    #[test]
    fn keys_depend_on_the_seed_only() {
        assert_eq!(keys(1, 100), keys(1, 100));
        let (one, other) = (keys(1, 100), keys(2, 100));
        let same = one.iter().zip(&other).filter(|(a, b)| a.key == b.key);
        assert_eq!(same.count(), 0);
    }

    #[test]
    fn low_byte_repeats_after_all_256_values() {
        let mut steps = BTreeSet::new();
        for seed in 0..100 {
            let (_, allocator) = KeyAllocator::new([seed; 32]);
            let first = 0x1234_56ff;
            let mut key = first;
            let mut seen = BTreeSet::new();
            while seen.insert(key) {
                let next = allocator.next_low_byte(key);
                assert_eq!(upper(next), upper(key));
                key = next;
            }
            assert_eq!((key, seen.len()), (first, 256));
            steps.insert(allocator.next_low_byte(first));
        }
        assert!(steps.len() > 50, "only {} different steps", steps.len());
    }

    #[test]
    fn secrets_are_not_printed() {
        let (permutation, allocator) = KeyAllocator::new([1; 32]);
        assert_eq!(format!("{permutation:?}"), "Permutation(secret)");
        assert_eq!(
            format!("{allocator:?}"),
            "KeyAllocator { used: 0, resting: 0, .. }"
        );
    }
}
