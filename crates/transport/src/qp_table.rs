//! Queue pairs by number.
//!
//! Numbers are given out in turn: one that was freed is not used again until
//! the range has wrapped, so that stray packets of its past meet nobody. Where the
//! turn begins is for the caller to say: somebody may have had the range before.
//!
//! Queue pairs with neighbouring numbers are neighbours in memory, apart from their
//! queues: ten thousand of them are then on fewer pages, which the processor finds sooner.

use core::ops::Range;

use crate::engine::no_qp;
use crate::error::VerbsError;
use crate::qp::Qp;
use crate::room;

/// The number of the queue pair for management datagrams.
pub(crate) const GSI_QPN: u32 = 1;
/// Numbers below this one are not given out.
const FIRST_QPN: u32 = 16;
/// How many queue pairs are neighbours.
const CHUNK: usize = 16;

/// Some pages of queue pairs. A place that is free holds one without a number; when all
/// are free, the memory is given back.
type Chunk = [Qp; CHUNK];

#[derive(Debug)]
pub(crate) struct QpTable {
    range: Range<u32>,
    /// The number that was given out first.
    first: u32,
    /// By how far a number comes after the first, so many at a time.
    chunks: Vec<Option<Box<Chunk>>>,
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
            chunks: Vec::new(),
            gsi: None,
            used: 0,
        }
    }

    /// Where a queue pair is, if it is anywhere: which chunk, and where in it.
    #[inline]
    fn place(&self, qpn: u32) -> (usize, usize) {
        if !self.range.contains(&qpn) {
            return (usize::MAX, 0);
        }
        let wrapped = match qpn < self.first {
            true => self.range.end - self.range.start,
            false => 0,
        };
        let index = (qpn + wrapped - self.first) as usize;
        (index / CHUNK, index % CHUNK)
    }

    pub(crate) fn insert(&mut self, mut qp: Qp) -> Result<u32, VerbsError> {
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
        let (chunk, place) = self.place(qpn);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        qp.set_number(qpn);
        let chunk = match &mut self.chunks[chunk] {
            Some(chunk) => chunk,
            none => none.insert(free()?),
        };
        chunk[place] = qp;
        self.used += 1;
        Ok(qpn)
    }

    pub(crate) fn insert_gsi(&mut self, mut qp: Qp) -> Result<u32, VerbsError> {
        if self.gsi.is_some() {
            return Err(VerbsError::Busy(
                "the port has its one queue pair 1 already".into(),
            ));
        }
        qp.set_number(GSI_QPN);
        self.gsi = Some(Box::new(qp));
        Ok(GSI_QPN)
    }

    pub(crate) fn remove(&mut self, qpn: u32) {
        if qpn == GSI_QPN {
            self.gsi = None;
            return;
        }
        let Some(qp) = self.get_mut(qpn) else {
            return;
        };
        *qp = Qp::placeholder();
        self.used -= 1;
        let (chunk, _) = self.place(qpn);
        self.chunks[chunk].take_if(|chunk| chunk.iter().all(|qp| qp.number() == 0));
    }

    pub(crate) fn get(&self, qpn: u32) -> Option<&Qp> {
        if qpn == GSI_QPN {
            return self.gsi.as_deref();
        }
        let (chunk, place) = self.place(qpn);
        let qp = &self.chunks.get(chunk)?.as_deref()?[place];
        (qp.number() == qpn).then_some(qp)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        if qpn == GSI_QPN {
            return self.gsi.as_deref_mut();
        }
        let (chunk, place) = self.place(qpn);
        let qp = &mut self.chunks.get_mut(chunk)?.as_deref_mut()?[place];
        (qp.number() == qpn).then_some(qp)
    }

    /// As `get_mut`, for a verbs call.
    #[inline]
    pub(crate) fn verb(&mut self, qpn: u32) -> Result<&mut Qp, VerbsError> {
        self.get_mut(qpn).ok_or_else(|| no_qp(qpn))
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let gsi = self.gsi.iter().map(|_| GSI_QPN);
        let others = self.chunks.iter().flatten();
        let others = others.flat_map(|chunk| chunk.iter().map(Qp::number));
        gsi.chain(others.filter(|&qpn| qpn != 0))
    }
}

/// A chunk of free places, made where it stays: it is large for a stack.
fn free() -> Result<Box<Chunk>, VerbsError> {
    let mut places = room::vec(CHUNK, "queue pairs")?;
    places.extend((0..CHUNK).map(|_| Qp::placeholder()));
    let places = places.into_boxed_slice().try_into();
    Ok(places.expect("there are as many as in a chunk"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(qps: usize) -> QpTable {
        let mut table = QpTable::new(0..1000, 7);
        for _ in 0..qps {
            table.insert(Qp::placeholder()).unwrap();
        }
        table
    }

    #[test]
    fn a_number_leads_to_its_queue_pair_and_no_other() {
        let mut table = table(3 * CHUNK);
        let numbers: Vec<u32> = table.numbers().collect();
        assert_eq!(numbers.len(), 3 * CHUNK);
        for &qpn in &numbers {
            assert_eq!(table.get_mut(qpn).map(|qp| qp.number()), Some(qpn));
        }
        table.remove(numbers[1]);
        assert!(table.get(numbers[1]).is_none());
        assert_eq!(table.numbers().count(), numbers.len() - 1);
        for free in [0, FIRST_QPN, numbers[0] - 1, numbers[0] + 900] {
            assert!(table.get(free).is_none(), "{free}");
        }
    }

    #[test]
    fn numbers_go_on_at_the_start_of_the_range() {
        let range = FIRST_QPN..FIRST_QPN + 3 * CHUNK as u32;
        let first = range.end - 5;
        let mut table = QpTable::new(range.clone(), first - range.start);
        for _ in range.clone() {
            table.insert(Qp::placeholder()).unwrap();
        }
        let expected = (first..range.end).chain(range.start..first);
        assert!(
            table.numbers().eq(expected),
            "{:?}",
            table.numbers().collect::<Vec<_>>()
        );
        for qpn in range {
            assert_eq!(table.get(qpn).map(Qp::number), Some(qpn));
        }
    }

    #[test]
    fn memory_is_given_back_when_all_neighbours_are_gone() {
        let mut table = table(2 * CHUNK);
        let numbers: Vec<u32> = table.numbers().collect();
        let live = |table: &QpTable| table.chunks.iter().flatten().count();
        for &qpn in &numbers[1..] {
            table.remove(qpn);
        }
        assert_eq!(live(&table), 1);
        table.remove(numbers[0]);
        assert_eq!(live(&table), 0);
        assert_eq!(table.used, 0);
    }
}
