//! The reader of a journal.

use std::io;
use std::sync::atomic::Ordering;

use super::cell::{DATA, Head, MAX_MORE, PATH_WORDS, PathRecord, WORDS};
use super::{CELLS, COUNT, IN_USE, JournalFile, PATHS, QPN, RINGS, SIZE, STORY, cell, front};
use crate::mapping::Mapping;
use crate::record::{Direction, Record};

/// Byte offset of the PSN in a packet: the last three bytes of the BTH.
const PSN: core::ops::Range<usize> = 9..12;

/// The records of a queue pair, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QpStory {
    /// Number of the queue pair.
    pub qpn: u32,
    /// True if there were earlier records, which are overwritten.
    pub is_cut: bool,
    entries: Vec<Entry>,
}

/// A record that owns its bytes and text.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    record: Record<'static>,
    bytes: Vec<u8>,
    text: String,
}

impl QpStory {
    /// Returns the records: at most [`STORY`] of them.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = Record<'_>> {
        self.entries.iter().map(|entry| Record {
            bytes: &entry.bytes,
            text: &entry.text,
            ..entry.record
        })
    }

    /// Returns the last failure.
    pub fn failure(&self) -> Option<Record<'_>> {
        self.records().rev().find(Record::is_failure)
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
        (0..RINGS).filter_map(|ring| self.story(ring)).collect()
    }

    fn story(&self, ring: usize) -> Option<QpStory> {
        let owner = self.0.word(front(ring) + QPN);
        let qpn = owner.load(Ordering::Acquire);
        let count = self.0.word(front(ring) + COUNT);
        let total = count.load(Ordering::Acquire);
        if qpn & IN_USE == 0 || total == 0 {
            return None;
        }
        let paths = PATHS.map(|offset| {
            let words = self.0.words::<PATH_WORDS>(front(ring) + offset);
            PathRecord::parse(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
        });
        let first = total.saturating_sub(CELLS as u64);
        let mut cells = Vec::new();
        for number in first..total {
            let words = self.0.words::<WORDS>(cell(ring, number));
            let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
            // The writer may be one record ahead of the count.
            std::sync::atomic::fence(Ordering::Acquire);
            let ahead = count
                .load(Ordering::Relaxed)
                .saturating_add(MAX_MORE as u64 + 1);
            if number.saturating_add(CELLS as u64) >= ahead {
                cells.push(words);
            }
        }
        if owner.load(Ordering::Acquire) != qpn {
            return None;
        }
        let mut entries = Vec::new();
        let mut rest = &cells[..];
        while let Some((words, behind)) = rest.split_first() {
            // The beginning of the first record may be overwritten.
            rest = match Head::parse(words[1]) {
                Some(head) if usize::from(head.more) <= behind.len() => {
                    let (further, behind) = behind.split_at(head.more.into());
                    read(qpn as u32, head, words, further, &paths, &mut entries);
                    behind
                }
                _ => behind,
            };
        }
        let surplus = entries.len().saturating_sub(STORY);
        // The failure stays, however many packets came after it.
        let failure = entries[..surplus]
            .iter()
            .rposition(|e| e.record.is_failure());
        let is_cut = surplus > 0 || cells.len() as u64 != total;
        entries = entries
            .into_iter()
            .enumerate()
            .filter(|(number, _)| *number >= surplus || Some(*number) == failure)
            .map(|(_, entry)| entry)
            .collect();
        Some(QpStory {
            qpn: qpn as u32,
            is_cut,
            entries,
        })
    }
}

/// Reads a record: as many packets as it stands for, of which the last [`STORY`] are enough.
fn read(
    qpn: u32,
    head: Head,
    words: &[u64; WORDS],
    mut further: &[[u64; WORDS]],
    paths: &[Option<PathRecord>; 2],
    entries: &mut Vec<Entry>,
) {
    let mut path = match head.direction {
        Direction::None => None,
        Direction::Sent => paths[0],
        Direction::Received => paths[1],
    };
    if head.has_path
        && let Some((first, rest)) = further.split_first()
    {
        path = first[2..]
            .first_chunk()
            .and_then(|words| PathRecord::parse(*words));
        further = rest;
    }
    let text: Vec<u8> = further.iter().flat_map(bytes_of).collect();
    let end = text.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]);
    let mut record = Record {
        time_ns: words[0],
        direction: head.direction,
        trouble: head.trouble,
        qpn,
        length: head.length.into(),
        ..Record::default()
    };
    if let Some(path) = path {
        (record.source, record.destination) = (path.source, path.destination);
        record.source_port = path.source_port;
        record.traffic_class = path.traffic_class;
        record.hop_limit = path.hop_limit;
    }
    let bytes = bytes_of(words);
    let packets = u32::from(head.packets.max(1));
    for step in packets.saturating_sub(STORY as u32)..packets {
        let mut bytes = bytes[..usize::from(head.captured)].to_vec();
        if let Some([a, b, c]) = bytes.get(PSN).and_then(|psn| psn.first_chunk()) {
            let psn = u32::from_be_bytes([0, *a, *b, *c]).wrapping_add(step);
            bytes[PSN].copy_from_slice(&psn.to_be_bytes()[1..]);
        }
        entries.push(Entry {
            record,
            bytes,
            text: text.clone().into_owned(),
        });
    }
}

/// Returns the headers or the text of a cell.
fn bytes_of(words: &[u64; WORDS]) -> [u8; DATA] {
    let mut bytes = [0; DATA];
    for (bytes, word) in bytes.chunks_mut(8).zip(&words[2..]) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
