//! The ring of a queue pair, for the packets of the thread that writes to it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cell::{DATA, Head, PATH_WORDS, PacketRecord, PathRecord, WORDS, data_words, words};
use super::{CELLS, COUNT, PATHS, RING, RING_FRONT};
use crate::record::Direction;

/// Bytes of a short header: a BTH, and the AETH of an ACK.
const SHORT: usize = 16;

/// The ring of a queue pair.
#[derive(Copy, Clone, Debug)]
pub struct QpRing<'a>(pub(super) &'a [AtomicU64; RING / 8]);

impl QpRing<'_> {
    /// Writes a packet of a connection.
    #[inline(always)]
    pub fn packet(self, packet: &PacketRecord<'_>) {
        let number = self.0[COUNT / 8].load(Ordering::Relaxed);
        self.put(number, packet, 0);
        self.0[COUNT / 8].store(number.wrapping_add(1), Ordering::Release);
    }

    /// Writes a datagram, whose queue pair may have many peers. The addresses of the first peer are
    /// in front of the ring; a datagram of another peer takes a second cell for its addresses.
    pub fn datagram(self, packet: &PacketRecord<'_>, path: &PathRecord) {
        let path = path.words();
        let first = path_of(packet.direction) / 8;
        let mut known = self.0[first..first + PATH_WORDS].iter().zip(path);
        if known.all(|(known, word)| known.load(Ordering::Relaxed) == word) {
            return self.packet(packet);
        }
        let number = self.0[COUNT / 8].load(Ordering::Relaxed);
        self.put(number, packet, 1);
        let cell = self.cell(number.wrapping_add(1));
        cell[0].store(packet.time_ns, Ordering::Relaxed);
        cell[1].store(Head::FURTHER, Ordering::Relaxed);
        for (word, path) in cell[2..].iter().zip(path) {
            word.store(path, Ordering::Relaxed);
        }
        self.0[COUNT / 8].store(number.wrapping_add(2), Ordering::Release);
    }

    /// Fills a cell with a packet. `paths` is the number of further cells, with a path.
    #[inline(always)]
    fn put(self, number: u64, packet: &PacketRecord<'_>, paths: u8) {
        let head = Head {
            direction: packet.direction,
            length: packet.length as u16,
            packets: packet.packets as u16,
            captured: packet.captured.min(DATA) as u8,
            more: paths,
            trouble: false,
            has_path: paths > 0,
        };
        let cell = self.cell(number);
        cell[0].store(packet.time_ns, Ordering::Relaxed);
        cell[1].store(head.word(), Ordering::Relaxed);
        // Readers ignore the words behind a short header.
        match packet.bytes.first_chunk::<SHORT>() {
            Some(short) if packet.captured <= SHORT => {
                let [a, b] = words(short);
                cell[2].store(a, Ordering::Relaxed);
                cell[3].store(b, Ordering::Relaxed);
            }
            _ => put_long(cell, packet.bytes),
        }
    }

    #[inline(always)]
    fn cell(&self, number: u64) -> &[AtomicU64; WORDS] {
        let cells = &self.0[RING_FRONT / 8..];
        let (cells, _) = cells.as_chunks();
        &cells[number as usize % CELLS]
    }
}

/// Writes the first 48 bytes of a packet.
#[inline(never)]
fn put_long(cell: &[AtomicU64; WORDS], bytes: &[u8]) {
    for (word, data) in cell[2..].iter().zip(data_words(bytes)) {
        word.store(data, Ordering::Relaxed);
    }
}

/// Returns the offset of the path of a direction in front of a ring.
#[inline]
pub(super) fn path_of(direction: Direction) -> usize {
    PATHS[usize::from(direction != Direction::Sent)]
}
