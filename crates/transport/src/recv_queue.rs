//! The ring of posted receives, used by queue pairs and shared receive queues.

use crate::error::VerbsError;
use crate::room;
use crate::verbs::{MAX_SGE, RecvWr, Sge};

/// Receives in the order they were posted.
///
/// The first slot stands right here, and an empty ring begins anew with it: whoever has
/// one receive after the other finds all there is to them in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RecvRing {
    slot_0: Head,
    /// The slot of the oldest, and how many there are.
    first: usize,
    len: usize,
    capacity: usize,
    max_sge: usize,
    /// The slots behind the first; those that were never used are not there yet.
    slots: Vec<Head>,
    /// Scatter elements beyond the first, `max_sge - 1` for each slot; those
    /// of slots that were never used are not there yet.
    more_sges: Vec<Sge>,
}

/// A receive; most have one element only, which stands right here.
#[derive(Copy, Clone, Debug, Default)]
struct Head {
    wr_id: u64,
    sge: Sge,
    num_sge: u8,
}

/// A receive taken from a ring.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct HeldRecv {
    pub(crate) wr_id: u64,
    pub(crate) capacity: u64,
    sge: Sge,
    num_sge: u8,
    /// Empty unless there are several elements.
    more_sges: Vec<Sge>,
}

impl HeldRecv {
    /// Its scatter list.
    pub(crate) fn sges(&self) -> impl Iterator<Item = &Sge> {
        let first = (self.num_sge > 0).then_some(&self.sge);
        first.into_iter().chain(&self.more_sges)
    }

    /// Its one scatter element, if it has just one.
    #[inline]
    pub(crate) fn only_sge(&self) -> Option<&Sge> {
        (self.num_sge == 1).then_some(&self.sge)
    }
}

impl RecvRing {
    pub(crate) fn new(capacity: u32, max_sge: u32) -> Result<RecvRing, VerbsError> {
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

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
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

    /// Moves the oldest receive into `held`; false if there is none.
    #[inline]
    pub(crate) fn take(&mut self, held: &mut HeldRecv) -> bool {
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

    /// Takes the oldest receive when only its name matters.
    pub(crate) fn discard(&mut self) -> Option<u64> {
        self.pop().map(|head| head.wr_id)
    }

    pub(crate) fn clear(&mut self) {
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

    /// The same receives in a ring of another size.
    pub(crate) fn resized(&mut self, capacity: u32) -> Result<RecvRing, VerbsError> {
        let mut new = RecvRing::new(capacity, self.max_sge as u32)?;
        let mut held = HeldRecv::default();
        while self.take(&mut held) {
            let sges: Vec<Sge> = held.sges().copied().collect();
            let moved = new.post(&RecvWr {
                wr_id: held.wr_id,
                sges: &sges,
            });
            debug_assert!(moved.is_ok(), "the caller has checked that all fit");
        }
        Ok(new)
    }

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
    fn receives_come_back_in_order_across_the_wrap() {
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
    fn an_empty_ring_begins_anew() {
        let mut ring = RecvRing::new(3, 2).unwrap();
        let mut held = HeldRecv::default();
        for wr_id in 0..5 {
            for sges in [&[sge(wr_id), sge(9)][..], &[sge(wr_id)]] {
                ring.post(&RecvWr { wr_id, sges }).unwrap();
                assert!(ring.take(&mut held));
                assert!(held.sges().eq(sges), "of the last one nothing is left");
                assert_eq!((ring.first, ring.len()), (0, 0));
            }
        }
    }

    #[test]
    fn a_full_ring_and_too_many_elements_are_refused() {
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
