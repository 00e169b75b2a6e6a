//! The table of queue pairs by number.
//!
//! Numbers are assigned in ascending order. A freed number is reused only after the range
//! has wrapped, so that late packets of the old queue pair are dropped. The caller chooses
//! the first number, because another process may have used the range before.
//!
//! Queue pairs with successive numbers are contiguous in memory, without their queues. So
//! ten thousand of them use fewer pages, which causes fewer TLB misses.

use core::ops::Range;

use crate::engine::no_qp;
use crate::error::VerbsError;
use crate::qp::Qp;
use crate::room;

/// The number of the GSI queue pair, for management datagrams.
pub(crate) const GSI_QPN: u32 = 1;
/// The lowest number that is assigned.
const FIRST_QPN: u32 = 16;
/// Number of queue pairs in a chunk.
const CHUNK: usize = 16;

/// Contiguous queue pairs. A free place holds a placeholder with number 0. A chunk with free
/// places only is deallocated.
type Chunk = [Qp; CHUNK];

/// The table of queue pairs.
#[derive(Debug)]
pub(crate) struct QpTable {
    range: Range<u32>,
    /// The number that was assigned first.
    first: u32,
    /// Chunks in the order of numbers, from `first` on.
    chunks: Vec<Option<Box<Chunk>>>,
    gsi: Option<Box<Qp>>,
    next: u32,
    used: u32,
}

impl QpTable {
    /// Creates an empty table for numbers in `range`. The first one assigned is `skip` after
    /// the start of the range.
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

    /// Returns the index of the chunk of a number, and the place in that chunk. The chunk may
    /// not exist.
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

    /// Adds a queue pair and returns its number.
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

    /// Adds the GSI queue pair.
    pub(crate) fn insert_gsi(&mut self, mut qp: Qp) -> Result<u32, VerbsError> {
        if self.gsi.is_some() {
            return Err(VerbsError::Busy(
                "the port already has its GSI queue pair (number 1)".into(),
            ));
        }
        qp.set_number(GSI_QPN);
        self.gsi = Some(Box::new(qp));
        Ok(GSI_QPN)
    }

    /// Removes a queue pair.
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

    /// Returns the queue pair with this number.
    pub(crate) fn get(&self, qpn: u32) -> Option<&Qp> {
        if qpn == GSI_QPN {
            return self.gsi.as_deref();
        }
        let (chunk, place) = self.place(qpn);
        let qp = &self.chunks.get(chunk)?.as_deref()?[place];
        (qp.number() == qpn).then_some(qp)
    }

    /// Returns the queue pair with this number.
    #[inline]
    pub(crate) fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        if qpn == GSI_QPN {
            return self.gsi.as_deref_mut();
        }
        let (chunk, place) = self.place(qpn);
        let qp = &mut self.chunks.get_mut(chunk)?.as_deref_mut()?[place];
        (qp.number() == qpn).then_some(qp)
    }

    /// Returns the queue pair with this number, or the error of a verbs call.
    #[inline]
    pub(crate) fn verb(&mut self, qpn: u32) -> Result<&mut Qp, VerbsError> {
        self.get_mut(qpn).ok_or_else(|| no_qp(qpn))
    }

    /// Returns the numbers of all queue pairs: the GSI queue pair first.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let gsi = self.gsi.iter().map(|_| GSI_QPN);
        let others = self.chunks.iter().flatten();
        let others = others.flat_map(|chunk| chunk.iter().map(Qp::number));
        gsi.chain(others.filter(|&qpn| qpn != 0))
    }
}

/// Allocates a chunk of free places. It is built on the heap: 16 queue pairs are large for a
/// stack.
fn free() -> Result<Box<Chunk>, VerbsError> {
    let mut places = room::vec(CHUNK, "queue pairs")?;
    places.extend((0..CHUNK).map(|_| Qp::placeholder()));
    let places = places.into_boxed_slice().try_into();
    Ok(places.expect("the vector has as many elements as a chunk"))
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
    fn number_finds_its_queue_pair_only() {
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
    fn numbers_wrap_to_the_start_of_the_range() {
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
    fn empty_chunk_is_deallocated() {
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
