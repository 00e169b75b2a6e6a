//! A process that dies between any two accesses to the memory of a ring.
//!
//! One end runs with memory that ends the process after a number of accesses: 0, 1, 2 and so on,
//! until the process ends by itself. The other end must see whole records only, in order, and
//! never a broken ring.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::memory::{Memory, RingView, create};
use super::ring::{HEADER, Reader, RingMemory, Writer, Written, arm};

/// The end of a process.
struct Crash;

/// Memory whose process dies after a number of accesses.
struct Mortal<'a> {
    ring: RingView,
    left: &'a Cell<u32>,
}

impl Mortal<'_> {
    fn step(&self) -> &RingView {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => resume_unwind(Box::new(Crash)),
        }
        &self.ring
    }
}

impl RingMemory for Mortal<'_> {
    const CAPACITY: usize = RingView::CAPACITY;
    const FRONT: usize = RingView::FRONT;

    fn tail(&self) -> &AtomicU64 {
        self.step().tail()
    }

    fn head(&self) -> &AtomicU64 {
        self.step().head()
    }

    fn reader_sleeps(&self) -> &AtomicU32 {
        self.step().reader_sleeps()
    }

    fn writer_waits(&self) -> &AtomicU32 {
        self.step().writer_waits()
    }

    /// A copy can be cut at any byte. Three places stand for all of them.
    fn copy_in(&self, at: usize, bytes: &[u8]) {
        let third = bytes.len().div_ceil(3).max(1);
        for (number, part) in bytes.chunks(third).enumerate() {
            self.step().copy_in(at + number * third, part);
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        self.step().copy_out(at, bytes);
    }

    fn shrink(&self) {
        self.step().shrink();
    }
}

/// The lengths of the records. Together they are longer than the ring, so that some begin
/// behind its end, and the writer finds it full.
const LENGTHS: [usize; 14] = [
    5, 60_000, 0, 64_000, 30_000, 41_000, 65_000, 64_999, 63_000, 65_000, 17, 65_000, 65_000,
    50_000,
];

fn payload(index: usize) -> Vec<u8> {
    (0..LENGTHS[index])
        .map(|at| (at * 7 + index) as u8)
        .collect()
}

fn view() -> RingView {
    RingView::new(&Arc::new(Memory::map(create().unwrap()).unwrap()), 0)
}

/// Runs a process. Returns true if it died.
fn dies(process: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(process)) {
        Ok(()) => false,
        Err(reason) if reason.is::<Crash>() => true,
        Err(reason) => resume_unwind(reason),
    }
}

/// Reads all records, and checks that they are whole and the next ones. Returns the number of
/// the next record.
fn read_all(reader: &mut Reader<impl RingMemory>, mut next: usize) -> usize {
    let mut buffer = vec![0; 1 << 16];
    while let Some((_, length)) = reader.read(&mut buffer).expect("not broken") {
        assert_eq!(buffer[..length], payload(next), "record {next}");
        next += 1;
    }
    next
}

#[test]
fn reader_gets_whole_records_of_a_writer_that_dies_at_any_step() {
    for steps in 0.. {
        let (left, ring) = (Cell::new(steps), view());
        let mut reader = Reader::new(ring.clone());
        let mut writer = Writer::new(Mortal {
            ring: ring.clone(),
            left: &left,
        });
        let (mut written, mut read, mut fulls, mut discards) = (0, 0, 0, 0);
        let died = dies(|| {
            while written < LENGTHS.len() {
                arm(&ring);
                let result = writer.write([0; HEADER], &payload(written));
                match result.expect("not broken") {
                    Written::Full => {
                        fulls += 1;
                        read = read_all(&mut reader, read);
                        // The next record returns to the start of the ring.
                        discards += u32::from(writer.shrink() && !writer.shrink());
                    }
                    Written::WakeReader => written += 1,
                    Written::Quiet => panic!("the reader sleeps"),
                }
            }
        });
        // The kernel closes the socket of the dead process, and wakes the reader.
        read = read_all(&mut reader, read);
        assert!(
            read == written || died && read == written + 1,
            "{read} of {written} records after {steps} steps"
        );
        if !died {
            assert!(steps > 8 * LENGTHS.len() as u32, "only {steps} steps");
            assert!(fulls > 0, "the ring was never full");
            assert!(discards > 0, "no memory was returned");
            return;
        }
    }
}

#[test]
fn writer_fills_the_ring_of_a_reader_that_dies_at_any_step() {
    for steps in 0.. {
        let (left, ring) = (Cell::new(steps), view());
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(Mortal {
            ring: ring.clone(),
            left: &left,
        });
        let (mut written, mut read) = (0, 0);
        let died = dies(|| {
            while written < LENGTHS.len() {
                let result = writer.write([0; HEADER], &payload(written));
                match result.expect("not broken") {
                    Written::Full => {
                        read = read_all(&mut reader, read);
                        reader.take_waiting_writer();
                    }
                    _ => written += 1,
                }
            }
        });
        let mut more = || writer.write([0; HEADER], &payload(4)).expect("not broken");
        assert!(
            (0..=RingView::CAPACITY / LENGTHS[4]).any(|_| more() == Written::Full),
            "endless room after {steps} steps"
        );
        if !died {
            assert!(steps > LENGTHS.len() as u32, "only {steps} steps");
            return;
        }
    }
}
