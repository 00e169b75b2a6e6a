//! The journal of a program: the last records of each queue pair, in shared memory that outlives
//! the program.
//!
//! A queue pair has a ring of cells of 64 bytes. A packet takes one cell: time, length and
//! headers. A uniform run of packets takes one, too. Texts and the addresses of datagrams are in
//! further cells. The addresses of a connection are in front of its ring.
//!
//! The writer takes no lock for a packet. A reader may look while the program writes: it leaves
//! out cells that were overwritten meanwhile.

mod cell;
mod qp_ring;
mod reader;
mod writer;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::file;

pub use cell::{PacketRecord, PathRecord};
pub use qp_ring::QpRing;
pub use reader::{JournalReader, QpStory};
pub use writer::JournalWriter;

/// Most packets and decisions of a queue pair that a reader returns.
pub const STORY: usize = 256;

/// Queue pairs with records.
const RINGS: usize = 512;
/// Of these rings, the last are for failures of queue pairs that found no ring.
const SPARE_RINGS: usize = 16;
/// Cells of a ring.
const CELLS: usize = 512;
/// Bytes of a cell.
const CELL: usize = 64;
/// Bytes in front of the rings, and of each ring's cells.
const FRONT: usize = 4096;
const RING_FRONT: usize = 128;
const RING: usize = RING_FRONT + CELLS * CELL;
const SIZE: usize = FRONT + RINGS * RING;

/// Offsets in front of the rings: nonzero after the first record, and after the first failure.
const WRITTEN: usize = 0;
const FAILED: usize = 8;
/// Offsets in front of a ring: the queue pair, the number of cells that were ever written, and the
/// paths of sent and received packets.
const QPN: usize = 0;
const COUNT: usize = 8;
const PATHS: [usize; 2] = [16, 64];

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
        !self.is_set(WRITTEN)
    }

    /// Returns true if a failure was written.
    pub fn has_failure(&self) -> bool {
        self.is_set(FAILED)
    }

    fn is_set(&self, offset: usize) -> bool {
        let mut word = [0; 8];
        let read = rustix::io::pread(&self.0, &mut word, offset as u64);
        read.is_ok() && word != [0; 8]
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

/// Returns the offset of a ring's front.
const fn front(ring: usize) -> usize {
    FRONT + ring * RING
}

/// Returns the offset of a cell.
const fn cell(ring: usize, number: u64) -> usize {
    front(ring) + RING_FRONT + (number % CELLS as u64) as usize * CELL
}

#[cfg(test)]
mod tests;
