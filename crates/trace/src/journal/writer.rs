//! The program's end of a journal.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cell::{DATA, Head, MAX_MORE, PathRecord, WORDS, data_words};
use super::qp_ring::{QpRing, path_of};
use super::{
    CELL, COUNT, FAILED, FRONT, IN_USE, JournalFile, PATHS, QPN, RINGS, SIZE, SPARE_RINGS, WRITTEN,
    cell, front,
};
use crate::mapping::Mapping;
use crate::record::{Direction, Record};

/// Entries of the table that finds the ring of a queue pair without a lock.
const TABLE: usize = 2048;

/// Parts of an entry: the queue pair, directions whose path is known, and the offset of the ring.
const QPN_BITS: u64 = 0xff_ffff;
const KNOWS_SENT: u64 = 1 << 24;
const KNOWS_RECEIVED: u64 = 1 << 25;
const VALID: u64 = 1 << 26;
const OFFSET_SHIFT: u32 = 32;
/// The ring of queue pairs that found none.
const NO_RING: usize = usize::MAX;
/// Its offset.
const NO_OFFSET: usize = 0;

/// The program's end of a journal.
///
/// Records of one queue pair are written by one thread at a time: the one that holds the lock of
/// its shard. Threads that write records of different queue pairs do not wait for each other.
#[derive(Debug)]
pub struct JournalWriter {
    memory: Mapping,
    /// Queue pairs and their rings, where `entry_of` says. A queue pair may be missing.
    table: Box<[AtomicU64; TABLE]>,
    rings: Mutex<Rings>,
}

#[derive(Debug, Default)]
struct Rings {
    /// The ring of each queue pair.
    used: HashMap<u32, usize>,
    /// Rings of queue pairs that do not exist any more, oldest first.
    free: VecDeque<usize>,
    /// Number of rings that were ever used.
    begun: usize,
    /// Number of failures in spare rings.
    spared: usize,
}

impl JournalWriter {
    /// Opens a journal.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn new(file: &JournalFile) -> io::Result<JournalWriter> {
        Ok(JournalWriter {
            memory: Mapping::new(file, SIZE)?,
            table: Box::new([const { AtomicU64::new(0) }; TABLE]),
            rings: Mutex::default(),
        })
    }

    /// Goes on with another, empty journal.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn replace(&self, file: &JournalFile) -> io::Result<()> {
        let mut rings = self.lock();
        self.memory.replace(file)?;
        *rings = Rings::default();
        for entry in self.table.iter() {
            entry.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the ring for packets of a queue pair in one direction; none if they are not recorded.
    /// The first call for a queue pair and direction asks `path` for the addresses of the peer, and
    /// `exists` whether the program has the queue pair at all.
    #[inline]
    pub fn ring(
        &self,
        qpn: u32,
        direction: Direction,
        path: impl FnOnce() -> PathRecord,
        exists: impl FnOnce() -> bool,
    ) -> Option<QpRing<'_>> {
        let knows = knows(direction);
        let wanted = VALID | knows | u64::from(qpn);
        let entry = self.entry_of(qpn).load(Ordering::Relaxed);
        let offset = match entry & (VALID | knows | QPN_BITS) == wanted {
            true => (entry >> OFFSET_SHIFT) as usize,
            false => self.begin(qpn, direction, path, exists),
        };
        // One check of the bounds: all other indices are constant, or below the number of cells.
        (offset != NO_OFFSET).then(|| QpRing(self.memory.words(offset)))
    }

    /// Finds the ring of a queue pair, and writes the path of a direction in front of it. Returns the
    /// offset of the ring. The next packets find it in the table.
    #[cold]
    fn begin(
        &self,
        qpn: u32,
        direction: Direction,
        path: impl FnOnce() -> PathRecord,
        exists: impl FnOnce() -> bool,
    ) -> usize {
        let Some(ring) = self.find(qpn, exists) else {
            return NO_OFFSET;
        };
        let mut offset = NO_OFFSET;
        if ring < RINGS {
            self.write_path(ring, direction, &path());
            offset = front(ring);
        }
        let knows = knows(direction);
        let entry = self.entry_of(qpn);
        let (qpn, old) = (u64::from(qpn), entry.load(Ordering::Relaxed));
        let kept = match old & (VALID | QPN_BITS) == VALID | qpn {
            true => old & (KNOWS_SENT | KNOWS_RECEIVED),
            false => 0,
        };
        let new = VALID | kept | knows | qpn | (offset as u64) << OFFSET_SHIFT;
        entry.store(new, Ordering::Relaxed);
        offset
    }

    /// Writes a record: the headers of its packet, and as much of its text as there is room for.
    /// A failure is one of an existing queue pair; for other records `exists` says so.
    pub fn record(&self, record: &Record<'_>, exists: impl FnOnce() -> bool) {
        let is_failure = record.is_failure();
        match self.find(record.qpn, || is_failure || exists()) {
            Some(ring) if ring < RINGS => self.write(ring, record),
            Some(_) if is_failure => {
                let mut rings = self.lock();
                let ring = RINGS - SPARE_RINGS + rings.spared % SPARE_RINGS;
                rings.spared += 1;
                self.open(ring, record.qpn);
                self.write(ring, record);
            }
            _ => return,
        }
        if is_failure {
            self.memory.word(FAILED).store(1, Ordering::Relaxed);
        }
    }

    fn write(&self, ring: usize, record: &Record<'_>) {
        let has_packet = record.direction != Direction::None;
        let path = has_packet.then_some(PathRecord {
            source: record.source,
            destination: record.destination,
            source_port: record.source_port,
            traffic_class: record.traffic_class,
            hop_limit: record.hop_limit,
        });
        let text_cells = MAX_MORE - usize::from(path.is_some());
        let text = beginning(record.text, text_cells * DATA).as_bytes();
        let more = usize::from(path.is_some()) + text.len().div_ceil(DATA);
        let captured = &record.bytes[..record.bytes.len().min(DATA)];
        let head = Head {
            direction: record.direction,
            length: record.length as u16,
            packets: 1,
            captured: captured.len() as u8,
            more: more as u8,
            trouble: record.trouble,
            has_path: path.is_some(),
        };
        let count = self.memory.word(front(ring) + COUNT);
        let number = count.load(Ordering::Relaxed);
        let put = |step: u64, head: u64, data: &[u64]| {
            let words = self
                .memory
                .words::<WORDS>(cell(ring, number.wrapping_add(step)));
            words[0].store(record.time_ns, Ordering::Relaxed);
            words[1].store(head, Ordering::Relaxed);
            for (word, data) in words[2..].iter().zip(data) {
                word.store(*data, Ordering::Relaxed);
            }
        };
        put(0, head.word(), &data_words(captured));
        let mut step = 1;
        if let Some(path) = path {
            put(step, Head::FURTHER, &path.words());
            step += 1;
        }
        for part in text.chunks(DATA) {
            put(step, Head::FURTHER, &data_words(part));
            step += 1;
        }
        count.store(number.wrapping_add(step), Ordering::Release);
    }

    /// Notes that a queue pair gets another peer: its next packets have new paths.
    pub fn path_changes(&self, qpn: u32) {
        let entry = self.entry_of(qpn);
        if entry.load(Ordering::Relaxed) & QPN_BITS == u64::from(qpn) {
            entry.store(0, Ordering::Relaxed);
        }
    }

    /// Forgets a queue pair: a new one with its number gets a ring of its own.
    pub fn forget(&self, qpn: u32) {
        let mut rings = self.lock();
        self.path_changes(qpn);
        if let Some(ring) = rings.used.remove(&qpn)
            && ring < RINGS
        {
            rings.free.push_back(ring);
        }
    }

    /// Returns the ring of a queue pair, and gives it one if it has none. Returns none if the
    /// queue pair does not exist.
    fn find(&self, qpn: u32, exists: impl FnOnce() -> bool) -> Option<usize> {
        if let Some(ring) = self.lock().used.get(&qpn) {
            return Some(*ring);
        }
        if !exists() {
            return None;
        }
        let mut rings = self.lock();
        let fresh = (rings.begun < RINGS - SPARE_RINGS).then_some(rings.begun);
        let ring = match fresh.or_else(|| rings.free.pop_front()) {
            Some(ring) => {
                rings.begun = rings.begun.max(ring + 1);
                self.open(ring, qpn);
                ring
            }
            None => NO_RING,
        };
        rings.used.insert(qpn, ring);
        Some(ring)
    }

    /// Empties a ring for a queue pair.
    fn open(&self, ring: usize, qpn: u32) {
        let front = front(ring);
        self.memory.word(front + QPN).store(0, Ordering::Release);
        self.memory.word(front + COUNT).store(0, Ordering::Release);
        for path in PATHS {
            self.memory
                .word(front + path + 32)
                .store(0, Ordering::Relaxed);
        }
        let word = IN_USE | u64::from(qpn);
        self.memory.word(front + QPN).store(word, Ordering::Release);
        self.memory.word(WRITTEN).store(1, Ordering::Relaxed);
    }

    fn write_path(&self, ring: usize, direction: Direction, path: &PathRecord) {
        let offset = front(ring) + path_of(direction);
        for (number, word) in path.words().into_iter().enumerate() {
            let at = self.memory.word(offset + number * 8);
            at.store(word, Ordering::Relaxed);
        }
    }

    /// Returns the place of a queue pair in the table. The numbers of the queue pairs of a shard
    /// follow each other, and have the shard's slot in their top byte.
    #[inline]
    fn entry_of(&self, qpn: u32) -> &AtomicU64 {
        &self.table[(qpn ^ qpn >> 8) as usize % TABLE]
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const _: () = assert!(CELL == WORDS * 8 && SIZE <= u32::MAX as usize && FRONT > NO_OFFSET);

/// Returns the bit of an entry that says that the path of a direction is known.
#[inline]
fn knows(direction: Direction) -> u64 {
    match direction {
        Direction::Sent => KNOWS_SENT,
        _ => KNOWS_RECEIVED,
    }
}

/// Returns the beginning of a text: at most `room` bytes, and whole characters.
fn beginning(text: &str, room: usize) -> &str {
    let ends = (0..=room.min(text.len())).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
