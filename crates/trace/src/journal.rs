//! The journal of a program: the last records of each queue pair, in shared memory that outlives
//! the program.
//!
//! A queue pair has a ring of cells of equal size. The first record of a queue pair takes the next
//! ring, and the oldest one if all are taken. A reader may look while the program writes: it
//! leaves out cells that were overwritten meanwhile.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::file;
use crate::mapping::Mapping;
use crate::record::{Direction, HEADER_LEN, Record};

/// Records of each queue pair.
pub const CELLS: usize = 256;

/// Queue pairs with records.
const RINGS: usize = 512;
/// Bytes of a record. Longer texts are cut.
const CELL: usize = 256;
/// Most bytes of a packet: all its headers.
const MAX_HEADERS: usize = 64;
/// Bytes in front of the rings, and of each ring's cells.
const FRONT: usize = 4096;
const RING_FRONT: usize = 64;
const RING: usize = RING_FRONT + CELLS * CELL;
const SIZE: usize = FRONT + RINGS * RING;

/// Offset of the number of records that were ever written.
const WRITTEN: usize = 0;
/// Offsets in front of a ring.
const QPN: usize = 0;
const COUNT: usize = 8;

/// Marks the QPN of a ring that is in use.
const IN_USE: u64 = 1 << 32;

/// The file of a journal.
#[derive(Debug)]
pub struct JournalFile(OwnedFd);

impl JournalFile {
    /// Creates an empty journal.
    ///
    /// # Errors
    /// If the kernel has no memory or no descriptor left.
    pub fn new() -> io::Result<JournalFile> {
        Ok(JournalFile(file::create("ferroce-journal", SIZE)?))
    }

    /// Takes a journal that another process passed on.
    ///
    /// # Errors
    /// If the file is no journal.
    pub fn from_fd(fd: OwnedFd) -> io::Result<JournalFile> {
        file::check(&fd, SIZE)?;
        Ok(JournalFile(fd))
    }

    /// Returns true if no record was ever written.
    pub fn is_empty(&self) -> bool {
        let mut word = [0; 8];
        let read = rustix::io::pread(&self.0, &mut word, WRITTEN as u64);
        read.is_err() || word == [0; 8]
    }

    /// Returns another descriptor of the file.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn try_clone(&self) -> io::Result<JournalFile> {
        Ok(JournalFile(self.0.try_clone()?))
    }
}

impl AsFd for JournalFile {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<JournalFile> for OwnedFd {
    fn from(file: JournalFile) -> OwnedFd {
        file.0
    }
}

/// The program's end of a journal.
#[derive(Debug)]
pub struct JournalWriter {
    memory: Mapping,
    /// Ring and number of records of each queue pair.
    rings: HashMap<u32, (usize, u64)>,
    next: usize,
    written: u64,
}

impl JournalWriter {
    /// Opens a journal.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn new(file: &JournalFile) -> io::Result<JournalWriter> {
        Ok(JournalWriter {
            memory: Mapping::new(file, SIZE)?,
            rings: HashMap::new(),
            next: 0,
            written: 0,
        })
    }

    /// Writes a record: the headers of its packet, and as much of its text as there is room for.
    pub fn write(&mut self, record: &Record<'_>) {
        let bytes = &record.bytes[..record.bytes.len().min(MAX_HEADERS)];
        let room = CELL - HEADER_LEN - bytes.len();
        let text = beginning(record.text, room);
        let (ring, count) = self.ring(record.qpn);
        let front = FRONT + ring * RING;
        let mut at = front + RING_FRONT + (count % CELLS as u64) as usize * CELL;
        let cut = Record {
            bytes,
            text,
            ..*record
        };
        for part in [&cut.header()[..], bytes, text.as_bytes()] {
            self.memory.write(at, part);
            at += part.len();
        }
        self.memory
            .word(front + COUNT)
            .store(count + 1, Ordering::Release);
        self.rings.insert(record.qpn, (ring, count + 1));
        self.written += 1;
        self.memory
            .word(WRITTEN)
            .store(self.written, Ordering::Relaxed);
    }

    /// Forgets a queue pair with this number: a new one gets a ring of its own.
    pub fn forget(&mut self, qpn: u32) {
        self.rings.remove(&qpn);
    }

    /// Returns the ring of a queue pair, and the number of its records.
    fn ring(&mut self, qpn: u32) -> (usize, u64) {
        if let Some(known) = self.rings.get(&qpn) {
            return *known;
        }
        let ring = self.next % RINGS;
        self.next += 1;
        self.rings.retain(|_, (taken, _)| *taken != ring);
        let front = FRONT + ring * RING;
        self.memory.word(front + QPN).store(0, Ordering::Release);
        self.memory.word(front + COUNT).store(0, Ordering::Release);
        let word = IN_USE | u64::from(qpn);
        self.memory.word(front + QPN).store(word, Ordering::Release);
        (ring, 0)
    }
}

/// Returns the beginning of a text: at most `room` bytes, and whole characters.
fn beginning(text: &str, room: usize) -> &str {
    let ends = (0..=room.min(text.len())).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// The records of a queue pair, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QpStory {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Number of records that were written, of which the last are here.
    pub total: u64,
    cells: Vec<Vec<u8>>,
}

impl QpStory {
    /// Returns the records.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = Record<'_>> {
        self.cells.iter().filter_map(|cell| Record::parse(cell))
    }

    /// Returns the last failure: its record has no packet, and the code as its length.
    pub fn failure(&self) -> Option<Record<'_>> {
        let mut records = self.records().rev();
        records.find(|record| record.direction == Direction::None && record.length != 0)
    }
}

/// A reader of a journal.
#[derive(Debug)]
pub struct JournalReader(Mapping);

impl JournalReader {
    /// Opens a journal.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn new(file: &JournalFile) -> io::Result<JournalReader> {
        Ok(JournalReader(Mapping::new(file, SIZE)?))
    }

    /// Returns the queue pairs with records, in the order of their rings.
    pub fn stories(&self) -> Vec<QpStory> {
        let fronts = (0..RINGS).map(|ring| FRONT + ring * RING);
        fronts.filter_map(|front| self.story(front)).collect()
    }

    fn story(&self, front: usize) -> Option<QpStory> {
        let (qpn, count) = (self.0.word(front + QPN), self.0.word(front + COUNT));
        let owner = qpn.load(Ordering::Acquire);
        let total = count.load(Ordering::Acquire);
        if owner & IN_USE == 0 || total == 0 {
            return None;
        }
        let mut cells = Vec::new();
        for number in total.saturating_sub(CELLS as u64)..total {
            let mut cell = vec![0; CELL];
            let at = front + RING_FRONT + (number % CELLS as u64) as usize * CELL;
            self.0.read(at, &mut cell);
            // The writer may be one record ahead of the count.
            let now = count.load(Ordering::Acquire);
            if now < CELLS as u64 || number > now - CELLS as u64 {
                cells.push(cell);
            }
        }
        if qpn.load(Ordering::Acquire) != owner {
            return None;
        }
        Some(QpStory {
            qpn: owner as u32,
            total,
            cells,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(qpn: u32, number: u64) -> Record<'static> {
        Record {
            qpn,
            time_ns: number,
            direction: Direction::Sent,
            length: 1044,
            bytes: &[0x2a; 48],
            ..Record::default()
        }
    }

    #[test]
    fn last_records_of_each_queue_pair_are_kept() {
        let file = JournalFile::new().unwrap();
        let mut writer = JournalWriter::new(&file).unwrap();
        assert!(file.is_empty());
        for number in 0..1000 {
            writer.write(&record(7, number));
        }
        writer.write(&record(8, 1));
        assert!(!file.is_empty());
        let again = JournalFile::from_fd(file.try_clone().unwrap().into()).unwrap();
        drop((writer, file));
        let stories = JournalReader::new(&again).unwrap().stories();
        assert_eq!(stories.len(), 2);
        assert_eq!((stories[0].qpn, stories[0].total), (7, 1000));
        let times: Vec<u64> = stories[0].records().map(|r| r.time_ns).collect();
        // The oldest cell could be overwritten right now.
        assert_eq!(times, (745..1000).collect::<Vec<u64>>());
        assert_eq!(stories[1].records().next(), Some(record(8, 1)));
    }

    #[test]
    fn long_texts_are_cut_and_long_packets_have_headers_only() {
        let file = JournalFile::new().unwrap();
        let mut writer = JournalWriter::new(&file).unwrap();
        let text = "ä".repeat(300);
        writer.write(&Record {
            text: &text,
            bytes: &[1; 500],
            ..record(7, 0)
        });
        let stories = JournalReader::new(&file).unwrap().stories();
        let record = stories[0].records().next().unwrap();
        assert_eq!((record.bytes.len(), record.text.len()), (64, 128));
        assert_eq!(record.text, "ä".repeat(64));
    }

    #[test]
    fn oldest_queue_pair_makes_room_for_a_new_one() {
        let file = JournalFile::new().unwrap();
        let mut writer = JournalWriter::new(&file).unwrap();
        for qpn in 0..RINGS as u32 + 1 {
            writer.write(&record(qpn, 0));
        }
        writer.write(&record(1, 1));
        let stories = JournalReader::new(&file).unwrap().stories();
        assert_eq!(stories.len(), RINGS);
        assert!(stories.iter().all(|story| story.qpn != 0));
        let second = stories.iter().find(|story| story.qpn == 1).unwrap();
        assert_eq!(second.total, 2);
    }

    #[test]
    fn failure_is_the_last_record_with_a_code() {
        let file = JournalFile::new().unwrap();
        let mut writer = JournalWriter::new(&file).unwrap();
        for (code, text) in [(0x30, "no answer"), (0x61, "overflow"), (0, "go back")] {
            writer.write(&Record {
                qpn: 9,
                length: code,
                text,
                ..Record::default()
            });
        }
        let stories = JournalReader::new(&file).unwrap().stories();
        let failure = stories[0].failure().unwrap();
        assert_eq!((failure.length, failure.text), (0x61, "overflow"));
    }
}
