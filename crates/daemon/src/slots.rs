//! The owners of slots.
//!
//! Slots 1 to 255 are for programs; slot 0 is ferroced's. Of the free slots, the one that
//! has been free longest is assigned first, so that peers of its last owner have time to
//! give up. The group of sockets grows only when no slot is free.

use std::collections::VecDeque;

/// Number of slots for programs.
pub(crate) const FOR_PROGRAMS: usize = 255;

/// Number of an owner.
pub(crate) type OwnerId = u64;

/// The slots of a network namespace.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// The owner of each slot that exists; index 0 is never owned.
    owners: Vec<Option<OwnerId>>,
    /// Slots without an owner, the one that has been free longest first.
    free: VecDeque<u8>,
}

impl Slots {
    /// Returns how many slots exist.
    pub(crate) fn existing(&self) -> usize {
        self.owners.len()
    }

    /// Adds the next slot, which is free. Returns its number.
    pub(crate) fn grow(&mut self) -> u8 {
        let slot = u8::try_from(self.owners.len()).expect("256 slots at most");
        self.owners.push(None);
        if slot > 0 {
            self.free.push_back(slot);
        }
        slot
    }

    /// Returns how many more slots programs can have, existing or not.
    pub(crate) fn available(&self) -> usize {
        FOR_PROGRAMS + 1 - self.owners.len().max(1) + self.free.len()
    }

    /// Returns how many slots must be added before `count` can be taken.
    pub(crate) fn missing(&self, count: usize) -> usize {
        count.saturating_sub(self.free.len())
    }

    /// Assigns free slots to an owner. There must be enough.
    pub(crate) fn take(&mut self, count: usize, owner: OwnerId) -> Vec<u8> {
        let slots: Vec<u8> = self.free.drain(..count).collect();
        for slot in &slots {
            self.owners[usize::from(*slot)] = Some(owner);
        }
        slots
    }

    /// Assigns a particular slot to an owner. Returns false if it does not exist or has an
    /// owner.
    pub(crate) fn claim(&mut self, slot: u8, owner: OwnerId) -> bool {
        let Some(at) = self.free.iter().position(|s| *s == slot) else {
            return false;
        };
        self.free.remove(at);
        self.owners[usize::from(slot)] = Some(owner);
        true
    }

    /// Frees a slot.
    pub(crate) fn release(&mut self, slot: u8) {
        if self.owners[usize::from(slot)].take().is_some() {
            self.free.push_back(slot);
        }
    }

    /// Returns true if the slot exists and is for programs.
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
    fn slot_0_is_never_assigned() {
        let mut slots = with(1);
        assert_eq!(slots.missing(1), 1);
        assert!(!slots.claim(0, 1));
        assert!(!slots.exists(0));
    }

    #[test]
    fn programs_get_at_most_255_slots() {
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
    fn slot_that_was_free_longest_is_assigned_first() {
        let mut slots = with(5);
        assert_eq!(slots.take(4, 1), [1, 2, 3, 4]);
        slots.release(3);
        slots.release(1);
        slots.release(1);
        assert_eq!(slots.missing(3), 1, "released twice counts once");
        assert_eq!(slots.take(2, 2), [3, 1]);
    }

    #[test]
    fn free_slot_can_be_claimed_once() {
        let mut slots = with(4);
        assert!(slots.claim(2, 9));
        assert!(!slots.claim(2, 8), "taken");
        assert!(!slots.claim(9, 8), "does not exist");
        assert_eq!(slots.take(2, 1), [1, 3]);
    }
}
