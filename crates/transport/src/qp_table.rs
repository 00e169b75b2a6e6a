//! Queue pairs by number.
//!
//! Numbers are given out in turn: one that was freed is not used again until
//! the range has wrapped, so that stray packets of its past meet nobody. Where the
//! turn begins is for the caller to say: somebody may have had the range before.

use core::ops::Range;

use crate::engine::no_qp;
use crate::error::VerbsError;
use crate::qp::Qp;

/// The number of the queue pair for management datagrams.
pub(crate) const GSI_QPN: u32 = 1;
/// Numbers below this one are not given out.
const FIRST_QPN: u32 = 16;

#[derive(Debug)]
pub(crate) struct QpTable {
    range: Range<u32>,
    /// The number that was given out first.
    first: u32,
    /// By how far a number comes after the first.
    slots: Vec<Option<Box<Qp>>>,
    gsi: Option<Box<Qp>>,
    next: u32,
    used: u32,
}

impl QpTable {
    /// Numbers are in `range`; the first one comes `skip` after its start.
    pub(crate) fn new(range: Range<u32>, skip: u32) -> QpTable {
        let range = range.start.max(FIRST_QPN)..range.end.min(0xff_ffff);
        let first = range.start + skip % range.end.saturating_sub(range.start).max(1);
        QpTable {
            next: first,
            first,
            range,
            slots: Vec::new(),
            gsi: None,
            used: 0,
        }
    }

    /// Where a queue pair is, if it is anywhere.
    #[inline]
    fn index(&self, qpn: u32) -> usize {
        if !self.range.contains(&qpn) {
            return usize::MAX;
        }
        let wrapped = match qpn < self.first {
            true => self.range.end - self.range.start,
            false => 0,
        };
        (qpn + wrapped - self.first) as usize
    }

    pub(crate) fn insert(&mut self, mut qp: Box<Qp>) -> Result<u32, VerbsError> {
        if self.used as usize == self.range.len() {
            return Err(VerbsError::NoMemory(format!(
                "all {} queue pair numbers are in use",
                self.used
            )));
        }
        let qpn = loop {
            let candidate = self.next;
            self.next += 1;
            if self.next == self.range.end {
                self.next = self.range.start;
            }
            if self.get(candidate).is_none() {
                break candidate;
            }
        };
        let index = self.index(qpn);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        qp.set_number(qpn);
        self.slots[index] = Some(qp);
        self.used += 1;
        Ok(qpn)
    }

    pub(crate) fn insert_gsi(&mut self, mut qp: Box<Qp>) -> Result<u32, VerbsError> {
        if self.gsi.is_some() {
            return Err(VerbsError::Busy(
                "the port has its one queue pair 1 already".into(),
            ));
        }
        qp.set_number(GSI_QPN);
        self.gsi = Some(qp);
        Ok(GSI_QPN)
    }

    pub(crate) fn remove(&mut self, qpn: u32) {
        if qpn == GSI_QPN {
            self.gsi = None;
            return;
        }
        let index = self.index(qpn);
        if self.slots.get_mut(index).and_then(Option::take).is_some() {
            self.used -= 1;
        }
    }

    pub(crate) fn get(&self, qpn: u32) -> Option<&Qp> {
        if qpn == GSI_QPN {
            return self.gsi.as_deref();
        }
        let index = self.index(qpn);
        self.slots.get(index)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        if qpn == GSI_QPN {
            return self.gsi.as_deref_mut();
        }
        let index = self.index(qpn);
        self.slots.get_mut(index)?.as_deref_mut()
    }

    /// As `get_mut`, for a verbs call.
    #[inline]
    pub(crate) fn verb(&mut self, qpn: u32) -> Result<&mut Qp, VerbsError> {
        self.get_mut(qpn).ok_or_else(|| no_qp(qpn))
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let gsi = self.gsi.iter().map(|_| GSI_QPN);
        let others = (self.first..self.range.end)
            .chain(self.range.start..self.first)
            .zip(&self.slots)
            .filter_map(|(qpn, slot)| slot.as_ref().map(|_| qpn));
        gsi.chain(others)
    }
}
