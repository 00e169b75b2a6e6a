//! A ring of records in shared memory, with one writer and one reader.
//!
//! The first page has the positions of both as numbers of bytes since the beginning, which never
//! wrap in practice. Data follow. Each side checks the numbers of the other: a process that
//! writes wrong ones harms the capture only.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::net::{RecvFlags, SendFlags};

use crate::file;
use crate::mapping::Mapping;
use crate::record::{HEADER_LEN, Record};

/// Bytes for records. Pages that no record has reached take no memory.
const CAPACITY: usize = 16 << 20;
/// Bytes in front of the records.
const FRONT: usize = 4096;
/// Longest record.
const MAX_RECORD: usize = HEADER_LEN + 2 * 0xffff;

/// Offsets of the words in front, each on a cache line of its own.
const WRITTEN: usize = 0;
const READ: usize = 64;
const LOST: usize = 128;
const SLEEPS: usize = 192;
const QPN: usize = 256;
const SNAP: usize = 264;

/// The packets that a reader wants.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The only queue pair, as the number of either end; none for all.
    pub qpn: Option<u32>,
    /// Most bytes of each packet.
    pub snap: u32,
}

/// The file of a ring.
#[derive(Debug)]
pub struct RingFile(OwnedFd);

impl RingFile {
    /// Creates a ring for a reader with this filter.
    ///
    /// # Errors
    /// If the kernel has no memory or no descriptor left.
    pub fn new(filter: Filter) -> io::Result<RingFile> {
        let fd = file::create("ferroce-capture", FRONT + CAPACITY)?;
        let qpn = filter.qpn.map_or(0, |qpn| u64::from(qpn) | 1 << 32);
        rustix::io::pwrite(&fd, &qpn.to_ne_bytes(), QPN as u64)?;
        rustix::io::pwrite(&fd, &u64::from(filter.snap).to_ne_bytes(), SNAP as u64)?;
        Ok(RingFile(fd))
    }

    /// Returns two descriptors of the ring, for writer and reader.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn into_fds(self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.0.try_clone()?, self.0])
    }
}

/// Maps a ring that another process passed on.
fn map(file: impl AsFd) -> io::Result<Mapping> {
    file::check(&file, FRONT + CAPACITY)?;
    Mapping::new(file, FRONT + CAPACITY)
}

/// The program's end of a ring.
#[derive(Debug)]
pub struct RingWriter {
    memory: Mapping,
    socket: OwnedFd,
    filter: Filter,
    written: u64,
    lost: u64,
    closed: bool,
}

impl RingWriter {
    /// Opens a ring, with the socket that wakes the reader.
    ///
    /// # Errors
    /// If the file is no ring, or cannot be mapped.
    pub fn new(file: impl AsFd, socket: OwnedFd) -> io::Result<RingWriter> {
        let memory = map(file)?;
        let qpn = memory.word(QPN).load(Ordering::Relaxed);
        let filter = Filter {
            qpn: (qpn >> 32 != 0).then_some(qpn as u32),
            snap: memory.word(SNAP).load(Ordering::Relaxed) as u32,
        };
        Ok(RingWriter {
            memory,
            socket,
            filter,
            written: 0,
            lost: 0,
            closed: false,
        })
    }

    /// Returns the packets that the reader wants.
    pub fn filter(&self) -> Filter {
        self.filter
    }

    /// Writes a record, or counts it as lost if there is no room.
    pub fn write(&mut self, record: &Record<'_>) {
        let total = HEADER_LEN + record.bytes.len() + record.text.len();
        let read = self.memory.word(READ).load(Ordering::Acquire);
        let used = self.written.wrapping_sub(read);
        if used > CAPACITY as u64 || CAPACITY as u64 - used < padded(total) {
            self.lost += 1;
            self.memory.word(LOST).store(self.lost, Ordering::Relaxed);
            // A reader that has ended reads nothing.
            return self.wake();
        }
        let mut at = self.written;
        for part in [&record.header()[..], record.bytes, record.text.as_bytes()] {
            self.put(at, part);
            at += part.len() as u64;
        }
        self.written += padded(total);
        // Sequentially consistent, like the reader's store before it sleeps: either this side
        // sees that the reader sleeps, or the reader sees the record.
        let written = self.memory.word(WRITTEN);
        written.store(self.written, Ordering::SeqCst);
        if self.memory.word(SLEEPS).load(Ordering::SeqCst) != 0 {
            self.memory.word(SLEEPS).store(0, Ordering::Relaxed);
            self.wake();
        }
    }

    /// Returns true if the reader has ended.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    fn wake(&mut self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::send(&self.socket, &[0], flags);
        self.closed |= matches!(
            sent,
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET)
        );
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let offset = at as usize % CAPACITY;
        let (front, rest) = bytes.split_at(bytes.len().min(CAPACITY - offset));
        self.memory.write(FRONT + offset, front);
        self.memory.write(FRONT, rest);
    }
}

/// The reader's end of a ring.
#[derive(Debug)]
pub struct RingReader {
    memory: Mapping,
    socket: OwnedFd,
    read: u64,
    buffer: Vec<u8>,
    broken: bool,
}

impl RingReader {
    /// Opens a ring, with the socket on which the program wakes this process.
    ///
    /// # Errors
    /// If the file is no ring, or cannot be mapped.
    pub fn new(file: impl AsFd, socket: OwnedFd) -> io::Result<RingReader> {
        Ok(RingReader {
            memory: map(file)?,
            socket,
            read: 0,
            buffer: Vec::new(),
            broken: false,
        })
    }

    /// Returns the next record; none if there is none, or if the writer broke the rules.
    pub fn take(&mut self) -> Option<Record<'_>> {
        let written = self.memory.word(WRITTEN).load(Ordering::Acquire);
        let used = written.wrapping_sub(self.read);
        if used == 0 || self.broken {
            return None;
        }
        let mut front = [0; 4];
        self.get(self.read, &mut front);
        let total = u32::from_le_bytes(front) as usize;
        let fits = (HEADER_LEN..=MAX_RECORD).contains(&total);
        if used > CAPACITY as u64 || !fits || padded(total) > used {
            self.broken = true;
            return None;
        }
        let mut buffer = core::mem::take(&mut self.buffer);
        buffer.resize(total, 0);
        self.get(self.read, &mut buffer);
        self.buffer = buffer;
        self.read += padded(total);
        self.memory.word(READ).store(self.read, Ordering::Release);
        let record = Record::parse(&self.buffer);
        self.broken |= record.is_none();
        record
    }

    /// Returns the number of records that found no room.
    pub fn lost(&self) -> u64 {
        self.memory.word(LOST).load(Ordering::Relaxed)
    }

    /// Returns true if the program wrote something that is no record. The rest is not read.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Prepares to sleep on the socket. Returns false if there is a record: do not sleep then.
    #[must_use]
    pub fn begin_sleep(&self) -> bool {
        self.memory.word(SLEEPS).store(1, Ordering::SeqCst);
        self.broken || self.memory.word(WRITTEN).load(Ordering::SeqCst) == self.read
    }

    /// Discards wakeups. Returns false if the program has ended.
    pub fn take_wakeups(&self) -> bool {
        let mut bytes = [0u8; 64];
        loop {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Returns the socket to sleep on.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        let offset = at as usize % CAPACITY;
        let middle = bytes.len().min(CAPACITY - offset);
        let (front, rest) = bytes.split_at_mut(middle);
        self.memory.read(FRONT + offset, front);
        self.memory.read(FRONT, rest);
    }
}

/// Returns the bytes that a record takes: each starts at a multiple of 8.
fn padded(total: usize) -> u64 {
    (total as u64).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    const ALL: Filter = Filter {
        qpn: None,
        snap: 0xffff,
    };

    fn ring(filter: Filter) -> (RingWriter, RingReader) {
        let [one, other] = RingFile::new(filter).unwrap().into_fds().unwrap();
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (a, b) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let writer = RingWriter::new(one, a).unwrap();
        (writer, RingReader::new(other, b).unwrap())
    }

    fn record(number: u32, bytes: &[u8]) -> Record<'_> {
        Record {
            qpn: number,
            bytes,
            text: "dropped: no receive posted",
            ..Record::default()
        }
    }

    #[test]
    fn records_pass_in_order_around_the_end_of_the_ring() {
        let (mut writer, mut reader) = ring(ALL);
        let bytes: Vec<u8> = (0..40_000u32).map(|i| i as u8).collect();
        for number in 0..2000 {
            let bytes = &bytes[..40_000 - number as usize];
            writer.write(&record(number, bytes));
            assert_eq!(reader.take(), Some(record(number, bytes)));
        }
        assert_eq!(reader.take(), None);
        assert_eq!(reader.lost(), 0);
    }

    #[test]
    fn records_without_room_are_counted_and_the_others_arrive() {
        let (mut writer, mut reader) = ring(ALL);
        let bytes = vec![7; 60_000];
        for number in 0..400 {
            writer.write(&record(number, &bytes));
        }
        let mut arrived = 0;
        while let Some(record) = reader.take() {
            assert_eq!((record.qpn, record.bytes.len()), (arrived, 60_000));
            arrived += 1;
        }
        assert!((200..400).contains(&arrived), "{arrived}");
        assert_eq!(u64::from(arrived) + reader.lost(), 400);
        writer.write(&record(9, &bytes));
        assert_eq!(reader.take().unwrap().qpn, 9);
    }

    #[test]
    fn sleeping_reader_is_woken_once() {
        let (mut writer, mut reader) = ring(ALL);
        assert!(reader.begin_sleep());
        writer.write(&record(1, &[]));
        writer.write(&record(2, &[]));
        let mut bytes = [0u8; 9];
        let woken = rustix::net::recv(reader.socket(), &mut bytes, RecvFlags::DONTWAIT);
        assert_eq!(woken.unwrap().0, 1);
        assert!(!reader.begin_sleep(), "records wait");
        assert_eq!(reader.take().unwrap().qpn, 1);
        assert_eq!(reader.take().unwrap().qpn, 2);
        drop(writer);
        assert!(!reader.take_wakeups(), "the program has ended");
    }

    #[test]
    fn writer_notices_that_the_reader_has_ended() {
        let (mut writer, reader) = ring(ALL);
        assert!(reader.begin_sleep());
        drop(reader);
        writer.write(&record(1, &[]));
        assert!(writer.is_closed());
    }

    #[test]
    fn reader_survives_a_writer_that_breaks_the_rules() {
        for total in [0u32, 8, 1 << 30, MAX_RECORD as u32 + 1] {
            let (writer, mut reader) = ring(ALL);
            writer.memory.write(FRONT, &total.to_le_bytes());
            writer.memory.word(WRITTEN).store(256, Ordering::Release);
            assert_eq!(reader.take(), None);
            assert!(reader.is_broken());
        }
        let (writer, mut reader) = ring(ALL);
        writer
            .memory
            .word(WRITTEN)
            .store(u64::MAX, Ordering::Release);
        assert_eq!(reader.take(), None);
        assert!(reader.is_broken());
    }

    #[test]
    fn filter_reaches_the_writer() {
        let qpn = Some(0x01_0011);
        let filter = Filter { qpn, snap: 96 };
        assert_eq!(ring(filter).0.filter(), filter);
        assert_eq!(ring(ALL).0.filter(), ALL);
    }
}
