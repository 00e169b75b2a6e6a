//! Queue pairs by number.
//!
//! Numbers are given out in turn: one that was freed is not used again until
//! the range has wrapped, so that stray packets of its past meet nobody.

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
    slots: Vec<Option<Box<Qp>>>,
    gsi: Option<Box<Qp>>,
    next: u32,
    used: u32,
}

impl QpTable {
    pub(crate) fn new(range: Range<u32>) -> QpTable {
        let range = range.start.max(FIRST_QPN)..range.end.min(0xff_ffff);
        QpTable {
            next: range.start,
            range,
            slots: Vec::new(),
            gsi: None,
            used: 0,
        }
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
        let index = (qpn - self.range.start) as usize;
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
        let index = qpn.wrapping_sub(self.range.start) as usize;
        if self.slots.get_mut(index).and_then(Option::take).is_some() {
            self.used -= 1;
        }
    }

    pub(crate) fn get(&self, qpn: u32) -> Option<&Qp> {
        if qpn == GSI_QPN {
            return self.gsi.as_deref();
        }
        let index = qpn.wrapping_sub(self.range.start) as usize;
        self.slots.get(index)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        if qpn == GSI_QPN {
            return self.gsi.as_deref_mut();
        }
        let index = qpn.wrapping_sub(self.range.start) as usize;
        self.slots.get_mut(index)?.as_deref_mut()
    }

    /// As `get_mut`, for a verbs call.
    #[inline]
    pub(crate) fn verb(&mut self, qpn: u32) -> Result<&mut Qp, VerbsError> {
        self.get_mut(qpn).ok_or_else(|| no_qp(qpn))
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let gsi = self.gsi.iter().map(|_| GSI_QPN);
        let others = (self.range.start..)
            .zip(&self.slots)
            .filter_map(|(qpn, slot)| slot.as_ref().map(|_| qpn));
        gsi.chain(others)
    }
}
