//! Which slot is whose.
//!
//! Slots 1 to 255 are for programs; slot 0 is ferroced's. A slot that has been given
//! back rests as long as possible before it is used again, so that peers of its last
//! owner have time to give up. The group of sockets grows only when no slot rests.

use std::collections::VecDeque;

/// How many slots programs can have.
pub(crate) const FOR_PROGRAMS: usize = 255;

/// Identifies an attachment.
pub(crate) type OwnerId = u64;

/// The slots of a network namespace.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// The owner of each slot that exists; index 0 is never owned.
    owners: Vec<Option<OwnerId>>,
    /// Slots without an owner, the one that rested longest first.
    resting: VecDeque<u8>,
}

impl Slots {
    /// How many slots exist.
    pub(crate) fn existing(&self) -> usize {
        self.owners.len()
    }

    /// A slot has come into existence: the next one. It rests until it is taken.
    pub(crate) fn grow(&mut self) -> u8 {
        let slot = u8::try_from(self.owners.len()).expect("256 slots at most");
        self.owners.push(None);
        if slot > 0 {
            self.resting.push_back(slot);
        }
        slot
    }

    /// How many more slots programs could have, existing or not.
    pub(crate) fn available(&self) -> usize {
        FOR_PROGRAMS + 1 - self.owners.len().max(1) + self.resting.len()
    }

    /// How many slots must still come into existence before `count` can be taken.
    pub(crate) fn missing(&self, count: usize) -> usize {
        count.saturating_sub(self.resting.len())
    }

    /// Takes slots that rest. There must be enough of them.
    pub(crate) fn take(&mut self, count: usize, owner: OwnerId) -> Vec<u8> {
        let slots: Vec<u8> = self.resting.drain(..count).collect();
        for slot in &slots {
            self.owners[usize::from(*slot)] = Some(owner);
        }
        slots
    }

    /// Takes one particular slot, if it exists and has no owner.
    pub(crate) fn claim(&mut self, slot: u8, owner: OwnerId) -> bool {
        let Some(at) = self.resting.iter().position(|s| *s == slot) else {
            return false;
        };
        self.resting.remove(at);
        self.owners[usize::from(slot)] = Some(owner);
        true
    }

    /// Gives a slot back.
    pub(crate) fn release(&mut self, slot: u8) {
        if self.owners[usize::from(slot)].take().is_some() {
            self.resting.push_back(slot);
        }
    }

    /// Whether there is such a slot for programs.
    pub(crate) fn exists(&self, slot: u8) -> bool {
        slot > 0 && usize::from(slot) < self.owners.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(existing: usize) -> Slots {
        let mut slots = Slots::default();
        for _ in 0..existing {
            slots.grow();
        }
        slots
    }

    #[test]
    fn slot_0_is_for_nobody() {
        let mut slots = with(1);
        assert_eq!(slots.missing(1), 1);
        assert!(!slots.claim(0, 1));
        assert!(!slots.exists(0));
    }

    #[test]
    fn programs_get_255_and_no_more() {
        let mut slots = Slots::default();
        assert_eq!(slots.available(), 255);
        slots.grow();
        assert_eq!(slots.available(), 255);
        for n in 0..255 {
            assert_eq!(slots.available(), 255 - n);
            for _ in 0..slots.missing(1) {
                slots.grow();
            }
            assert_eq!(slots.take(1, 7), [u8::try_from(n + 1).unwrap()]);
        }
        assert_eq!((slots.available(), slots.existing()), (0, 256));
    }

    #[test]
    fn the_longest_rested_goes_first() {
        let mut slots = with(5);
        assert_eq!(slots.take(4, 1), [1, 2, 3, 4]);
        slots.release(3);
        slots.release(1);
        slots.release(1);
        assert_eq!(slots.missing(3), 1, "released twice counts once");
        assert_eq!(slots.take(2, 2), [3, 1]);
    }

    #[test]
    fn survivors_claim_what_is_theirs() {
        let mut slots = with(4);
        assert!(slots.claim(2, 9));
        assert!(!slots.claim(2, 8), "taken");
        assert!(!slots.claim(9, 8), "does not exist");
        assert_eq!(slots.take(2, 1), [1, 3]);
    }
}
