//! The table of queue pairs by number.
//!
//! Numbers are assigned in ascending order and reused only after the range has wrapped.

use core::ops::Range;

use ferroce_objects::VerbsError;

use crate::qp::Qp;

/// The table of queue pairs.
#[derive(Debug)]
pub(crate) struct QpTable {
    range: Range<u32>,
    slots: Vec<Option<Box<Qp>>>,
    next: u32,
    used: usize,
}

impl QpTable {
    /// Creates an empty table for numbers in `range`.
    pub(crate) fn new(range: Range<u32>) -> QpTable {
        QpTable {
            next: range.start,
            range,
            slots: Vec::new(),
            used: 0,
        }
    }

    /// Adds the queue pair that `make` creates with its number. Returns the number.
    pub(crate) fn insert(
        &mut self,
        make: impl FnOnce(u32) -> Result<Qp, VerbsError>,
    ) -> Result<u32, VerbsError> {
        if self.used >= self.range.len() {
            return Err(VerbsError::NoMemory(format!(
                "all {} queue pair numbers are in use",
                self.used
            )));
        }
        while self.get(self.next).is_some() {
            self.advance();
        }
        let qpn = self.next;
        let qp = Box::new(make(qpn)?);
        let index = (qpn - self.range.start) as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(qp);
        self.used += 1;
        self.advance();
        Ok(qpn)
    }

    fn advance(&mut self) {
        self.next += 1;
        if self.next >= self.range.end {
            self.next = self.range.start;
        }
    }

    /// Removes a queue pair.
    pub(crate) fn remove(&mut self, qpn: u32) {
        let slot = self.index(qpn).and_then(|index| self.slots.get_mut(index));
        if slot.and_then(Option::take).is_some() {
            self.used -= 1;
        }
    }

    fn index(&self, qpn: u32) -> Option<usize> {
        Some(qpn.checked_sub(self.range.start)? as usize)
    }

    /// Returns the queue pair with this number.
    pub(crate) fn get(&self, qpn: u32) -> Option<&Qp> {
        self.slots.get(self.index(qpn)?)?.as_deref()
    }

    /// Returns the queue pair with this number.
    pub(crate) fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        let index = self.index(qpn)?;
        self.slots.get_mut(index)?.as_deref_mut()
    }

    /// Returns the queue pair with this number, or the error of a verbs call.
    pub(crate) fn verb(&mut self, qpn: u32) -> Result<&mut Qp, VerbsError> {
        self.get_mut(qpn).ok_or_else(|| no_qp(qpn))
    }

    /// Returns the numbers of all queue pairs.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let numbers = self.range.clone().zip(&self.slots);
        numbers.filter_map(|(qpn, slot)| slot.as_ref().map(|_| qpn))
    }
}

/// Returns the error for a queue pair that does not exist.
pub(crate) fn no_qp(qpn: u32) -> VerbsError {
    VerbsError::NotFound(format!("queue pair {qpn:#x} does not exist"))
}
