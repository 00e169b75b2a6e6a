//! The ring of posted receives, used by queue pairs and shared receive queues.

use crate::error::VerbsError;
use crate::room;
use crate::verbs::{MAX_SGE, RecvWr, Sge};

/// Posted receives, oldest first.
///
/// The first slot is a field of the ring, and an empty ring starts again with that slot: a
/// program with one receive at a time uses one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RecvRing {
    slot_0: Head,
    /// Slot of the oldest receive.
    first: usize,
    /// Number of receives.
    len: usize,
    capacity: usize,
    max_sge: usize,
    /// The slots after the first. The vector grows when a slot is used for the first time.
    slots: Vec<Head>,
    /// Scatter elements after the first, `max_sge - 1` for each slot. The vector grows when a
    /// slot needs them for the first time.
    more_sges: Vec<Sge>,
}

/// A receive with its first scatter element: most receives have only one.
#[derive(Copy, Clone, Debug, Default)]
struct Head {
    wr_id: u64,
    sge: Sge,
    num_sge: u8,
}

/// A receive taken from a ring.
#[derive(Debug, Default)]
#[repr(C)]
pub struct HeldRecv {
    /// The program's id of the receive.
    pub wr_id: u64,
    /// Bytes of all scatter elements.
    pub capacity: u64,
    sge: Sge,
    num_sge: u8,
    /// Scatter elements after the first.
    more_sges: Vec<Sge>,
}

impl HeldRecv {
    /// Returns the scatter list.
    #[inline]
    pub fn sges(&self) -> impl Iterator<Item = &Sge> {
        let first = (self.num_sge > 0).then_some(&self.sge);
        first.into_iter().chain(&self.more_sges)
    }

    /// Returns the scatter element if there is exactly one.
    #[inline]
    pub fn only_sge(&self) -> Option<&Sge> {
        (self.num_sge == 1).then_some(&self.sge)
    }
}

impl RecvRing {
    /// Creates a ring for `capacity` receives of up to `max_sge` scatter elements.
    pub fn new(capacity: u32, max_sge: u32) -> Result<RecvRing, VerbsError> {
        let (capacity, max_sge) = (capacity as usize, max_sge as usize);
        let more = capacity * max_sge.saturating_sub(1);
        Ok(RecvRing {
            slot_0: Head::default(),
            first: 0,
            len: 0,
            capacity,
            max_sge,
            slots: room::vec(capacity.saturating_sub(1), "receives")?,
            more_sges: room::vec(more, "scatter elements")?,
        })
    }

    /// Returns the number of receives.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no receive is posted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a receive.
    #[inline]
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        if wr.sges.len() > self.max_sge || wr.sges.len() > MAX_SGE {
            return Err(VerbsError::invalid(format!(
                "{} scatter elements, the queue was created for {}",
                wr.sges.len(),
                self.max_sge
            )));
        }
        if self.len == self.capacity {
            return Err(VerbsError::NoMemory(format!(
                "{} receives are posted, the queue holds no more",
                self.capacity
            )));
        }
        let slot = self.slot(self.len);
        if let [_, more @ ..] = wr.sges
            && !more.is_empty()
        {
            let at = slot * (self.max_sge - 1);
            if self.more_sges.len() < at + more.len() {
                self.more_sges.resize(at + self.max_sge - 1, Sge::default());
            }
            self.more_sges[at..][..more.len()].copy_from_slice(more);
        }
        let head = Head {
            wr_id: wr.wr_id,
            sge: wr.sges.first().copied().unwrap_or_default(),
            num_sge: wr.sges.len() as u8,
        };
        match slot.checked_sub(1) {
            None => self.slot_0 = head,
            Some(behind) if behind == self.slots.len() => self.slots.push(head),
            Some(behind) => self.slots[behind] = head,
        }
        self.len += 1;
        Ok(())
    }

    /// Moves the oldest receive into `held`. Returns false if the ring is empty.
    #[inline]
    pub fn take(&mut self, held: &mut HeldRecv) -> bool {
        let slot = self.first;
        let Some(head) = self.pop() else {
            return false;
        };
        if held.num_sge > 1 {
            held.more_sges.clear();
        }
        held.wr_id = head.wr_id;
        held.sge = head.sge;
        held.num_sge = head.num_sge;
        held.capacity = u64::from(head.sge.length);
        if head.num_sge > 1 {
            let at = slot * (self.max_sge - 1);
            let more = &self.more_sges[at..][..head.num_sge as usize - 1];
            held.more_sges.extend_from_slice(more);
            held.capacity += more.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
        }
        true
    }

    /// Removes the oldest receive and returns its work request id.
    #[inline]
    pub fn discard(&mut self) -> Option<u64> {
        self.pop().map(|head| head.wr_id)
    }

    /// Removes all receives.
    pub fn clear(&mut self) {
        self.first = 0;
        self.len = 0;
    }

    #[inline]
    fn pop(&mut self) -> Option<Head> {
        if self.len == 0 {
            return None;
        }
        let head = match self.first.checked_sub(1) {
            None => self.slot_0,
            Some(behind) => self.slots[behind],
        };
        self.len -= 1;
        self.first = match self.len {
            0 => 0,
            _ => self.slot(1),
        };
        Some(head)
    }

    /// Moves all receives to a ring of another size. The caller has checked that they fit.
    pub fn resized(&mut self, capacity: u32) -> Result<RecvRing, VerbsError> {
        let mut new = RecvRing::new(capacity, self.max_sge as u32)?;
        let mut held = HeldRecv::default();
        while self.take(&mut held) {
            let sges: Vec<Sge> = held.sges().copied().collect();
            let moved = new.post(&RecvWr {
                wr_id: held.wr_id,
                sges: &sges,
            });
            debug_assert!(moved.is_ok(), "the caller has checked the capacity");
        }
        Ok(new)
    }

    #[inline]
    fn slot(&self, ahead: usize) -> usize {
        let slot = self.first + ahead;
        if slot >= self.capacity {
            slot - self.capacity
        } else {
            slot
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(addr: u64) -> Sge {
        Sge {
            addr,
            length: 10,
            lkey: 1,
        }
    }

    #[test]
    fn receives_are_taken_in_order_across_the_wrap() {
        let mut ring = RecvRing::new(3, 2).unwrap();
        let mut held = HeldRecv::default();
        let mut next = 0;
        for wr_id in 0..20 {
            let sges = [sge(wr_id), sge(wr_id + 100)];
            ring.post(&RecvWr { wr_id, sges: &sges }).unwrap();
            if wr_id % 3 != 0 {
                assert!(ring.take(&mut held));
                assert_eq!(held.wr_id, next);
                assert!(held.sges().eq(&[sge(next), sge(next + 100)]));
                assert_eq!(held.capacity, 20);
                next += 1;
            }
            if ring.len() == 3 {
                assert_eq!(ring.discard(), Some(next));
                next += 1;
            }
        }
    }

    #[test]
    fn empty_ring_restarts_at_slot_0() {
        let mut ring = RecvRing::new(3, 2).unwrap();
        let mut held = HeldRecv::default();
        for wr_id in 0..5 {
            for sges in [&[sge(wr_id), sge(9)][..], &[sge(wr_id)]] {
                ring.post(&RecvWr { wr_id, sges }).unwrap();
                assert!(ring.take(&mut held));
                assert!(held.sges().eq(sges), "no element of the previous receive");
                assert_eq!((ring.first, ring.len()), (0, 0));
            }
        }
    }

    #[test]
    fn full_ring_and_too_many_elements_are_refused() {
        let mut ring = RecvRing::new(1, 1).unwrap();
        let two = [sge(1), sge(2)];
        assert!(matches!(
            ring.post(&RecvWr {
                wr_id: 1,
                sges: &two
            }),
            Err(VerbsError::Invalid(_))
        ));
        ring.post(&RecvWr {
            wr_id: 1,
            sges: &two[..1],
        })
        .unwrap();
        assert!(matches!(
            ring.post(&RecvWr {
                wr_id: 2,
                sges: &[]
            }),
            Err(VerbsError::NoMemory(_))
        ));
    }
}
