//! Memory keys: how they are made, and how a key leads to its table slot.
//!
//! A peer that knows a key may touch memory, so keys must not be guessable: a
//! counter, or an index with a few random bits, tells whoever holds one key
//! what the next one is. A key here is 32 bits:
//!
//! ```text
//!   31                              8 7           0
//!  +---------------------------------+-------------+
//!  |  permutation(index, generation) |  low byte   |
//!  +---------------------------------+-------------+
//! ```
//!
//! - *index*, 20 bits: the slot in the table of regions and windows.
//! - *generation*, 4 bits: random when an index is first used, one more each
//!   time it is used again. An index is only used again after many others were
//!   given back, so an old key stays dead for long.
//! - *permutation*: a secret bijection of 24 bits, drawn from the seed. It hides
//!   index and generation; [`Permutation::invert`] finds them again.
//! - *low byte*: random. The consumer owns it while a type 2 window is bound,
//!   the adapter changes it whenever it binds a type 1 window: by a secret step that
//!   leads through all 256, so that a key of the past stays dead for 255 binds.
//!
//! The permutation is a Feistel network of four rounds over two 12-bit halves,
//! with multiply-shift hashing (strongly universal) as the round function. It
//! runs backwards as fast as forwards, in four multiplications and without a
//! table, so that a lookup costs a few nanoseconds. It is no cipher, nor need it
//! be one: the whole key is compared after the lookup, 12 of its bits are fresh
//! randomness in any case, and each wrong guess costs the peer its connection.
//!
//! All randomness comes from one seed: unpredictable if the seed is, and the
//! same every time under a simulator.

use core::fmt;
use std::collections::VecDeque;

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::error::VerbsError;
use crate::room;

/// How many slots keys can name.
pub(crate) const INDICES: u32 = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 20;
const GENERATION_MASK: u32 = 0xf;
const HALF_BITS: u32 = 12;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;
/// The largest value of a key's upper 24 bits.
const UPPER_MAX: u32 = 0x00ff_ffff;
/// While unused indices are left, this many must be given back after an index
/// before it is used again.
const REST: usize = 1024;

/// The upper 24 bits of a key, in place: what belongs to the adapter for ever.
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

    /// The index that `key` names, if `key` is one of ours at all: any key
    /// leads to some index, so compare the whole key with what is found there.
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

/// A slot of the table, and the key that leads to it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct NewKey {
    pub(crate) index: u32,
    pub(crate) key: u32,
}

/// Hands out indices with their keys, and takes them back.
pub(crate) struct KeyAllocator {
    rng: ChaCha12Rng,
    /// From one low byte of a window to the next; odd, so that all come up in turn.
    step: u32,
    /// The generation of each index that was ever used; its length is the next unused one.
    generations: Vec<u8>,
    /// Indices given back, oldest first.
    resting: VecDeque<u32>,
}

impl KeyAllocator {
    /// The permutation and the allocator that belong to a seed.
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

    /// Makes room for one more index, and for giving all of them back.
    pub(crate) fn reserve(&mut self) -> Result<(), VerbsError> {
        let count = self.generations.len() + 1;
        let in_use = count - self.resting.len().min(count);
        let reserved = self.generations.try_reserve(1);
        reserved
            .and_then(|()| self.resting.try_reserve(in_use))
            .map_err(|_| room::none(count, "memory keys"))
    }

    /// An index that nobody uses, with a new key. `None` if all are in use.
    pub(crate) fn allocate(&mut self, permutation: &Permutation) -> Option<NewKey> {
        let index = self.take_index()?;
        loop {
            let generation = &mut self.generations[index as usize];
            *generation = (*generation + 1) & GENERATION_MASK as u8;
            let upper = permutation.apply(index << 4 | u32::from(*generation));
            // Keys 0 and 0xffffffff must not exist whatever low byte a
            // consumer chooses, so their upper bits are never given out.
            if upper != 0 && upper != UPPER_MAX {
                let key = upper << 8 | self.rng.next_u32() & 0xff;
                return Some(NewKey { index, key });
            }
        }
    }

    /// Takes an index back. Its key must already be out of the table.
    pub(crate) fn release(&mut self, index: u32) {
        debug_assert!((index as usize) < self.generations.len());
        self.resting.push_back(index);
    }

    /// `key` with another low byte. A key comes again only after all 256: whoever has
    /// one of the past must not reach what is there now.
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
    fn the_permutation_is_inverted_for_every_value() {
        for seed in [0, 1, 0xa5] {
            let (permutation, _) = KeyAllocator::new([seed; 32]);
            for value in 0..=UPPER_MAX {
                assert_eq!(permutation.invert(permutation.apply(value)), value);
            }
        }
    }

    #[test]
    fn a_key_leads_to_its_index_whatever_its_low_byte() {
        let (permutation, mut allocator) = KeyAllocator::new([7; 32]);
        for _ in 0..10_000 {
            let new = allocator.allocate(&permutation).unwrap();
            for low in [0, 1, 0x80, 0xff] {
                assert_eq!(permutation.index(upper(new.key) | low), new.index);
            }
        }
    }

    #[test]
    fn all_indices_can_be_used_at_once_and_their_keys_differ() {
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
    fn keys_zero_and_all_ones_never_appear() {
        // The one index and generation behind upper bits 0 (or all ones) are
        // reached by force: all 16 generations of that index are asked for.
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
    fn an_index_rests_before_it_is_used_again_and_returns_with_another_key() {
        let (permutation, mut allocator) = KeyAllocator::new([5; 32]);
        let first = allocator.allocate(&permutation).unwrap();
        allocator.release(first.index);
        let mut old = BTreeSet::from([upper(first.key)]);
        let mut again = 0;
        for round in 0..12 * (REST + 2) {
            let new = allocator.allocate(&permutation).unwrap();
            if new.index == first.index {
                again += 1;
                assert!(round >= REST, "used again after {round} others");
                assert!(old.insert(upper(new.key)), "the same upper bits again");
            }
            allocator.release(new.index);
        }
        assert!(again >= 10);
    }

    #[test]
    fn keys_are_no_counter() {
        // From one key to the next there is no usual step: not in the key, not
        // in its upper bits, and no bit of it stays or flips every time.
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
    fn keys_depend_on_the_whole_seed_and_on_nothing_else() {
        assert_eq!(keys(1, 100), keys(1, 100));
        let (one, other) = (keys(1, 100), keys(2, 100));
        let same = one.iter().zip(&other).filter(|(a, b)| a.key == b.key);
        assert_eq!(same.count(), 0);
    }

    #[test]
    fn a_low_byte_comes_again_after_all_others() {
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
        assert!(steps.len() > 50, "only {} ways to go on", steps.len());
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
