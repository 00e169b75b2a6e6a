//! The models: a writer, a reader, and threads that sleep.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::ring::{
    Broken, HEADER, HEADER_REST, Reader, RingMemory, Writer, Written, arm, disarm, has_record,
    take_sleeper,
};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Room for two records.
const CAPACITY: usize = 128;
/// Room for one record.
const FRONT: usize = 64;

/// The memory of a ring, of which each record has a cell.
struct Memory {
    tail: AtomicU64,
    head: AtomicU64,
    reader_sleeps: AtomicU32,
    writer_waits: AtomicU32,
    records: [UnsafeCell<[u8; 64]>; 2],
}

// SAFETY: loom checks each access to a cell.
unsafe impl Sync for Memory {}
// SAFETY: as for Sync.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Arc<Memory> {
        Arc::new(Memory {
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            reader_sleeps: AtomicU32::new(0),
            writer_waits: AtomicU32::new(0),
            records: [UnsafeCell::new([0; 64]), UnsafeCell::new([0; 64])],
        })
    }
}

impl RingMemory for Arc<Memory> {
    const CAPACITY: usize = CAPACITY;
    const FRONT: usize = FRONT;

    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn reader_sleeps(&self) -> &AtomicU32 {
        &self.reader_sleeps
    }

    fn writer_waits(&self) -> &AtomicU32 {
        &self.writer_waits
    }

    fn copy_in(&self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (here, rest) = bytes.split_at(bytes.len().min(64 - at % 64));
            self.records[at / 64].with_mut(|record| {
                // SAFETY: loom reports a second access at the same time.
                unsafe { (&mut *record)[at % 64..][..here.len()].copy_from_slice(here) }
            });
            (at, bytes) = (at + here.len(), rest);
        }
    }

    fn copy_out(&self, mut at: usize, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let length = bytes.len().min(64 - at % 64);
            let (here, rest) = bytes.split_at_mut(length);
            self.records[at / 64].with(|record| {
                // SAFETY: loom reports a write at the same time.
                unsafe { here.copy_from_slice(&(&*record)[at % 64..][..here.len()]) }
            });
            (at, bytes) = (at + length, rest);
        }
    }

    fn shrink(&self) {
        for record in &self.records[FRONT / 64..] {
            // SAFETY: loom reports a second access at the same time.
            record.with_mut(|record| unsafe { (*record).fill(0) });
        }
    }
}

/// The descriptor that a thread sleeps on: bytes that wait in it.
struct Descriptor(Mutex<u32>, Condvar);

impl Descriptor {
    fn new() -> Arc<Descriptor> {
        Arc::new(Descriptor(Mutex::new(0), Condvar::new()))
    }

    fn wake(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }

    /// Waits until it is readable.
    fn wait(&self) {
        let mut bytes = self.0.lock().unwrap();
        while *bytes == 0 {
            bytes = self.1.wait(bytes).unwrap();
        }
    }

    fn take(&self) {
        *self.0.lock().unwrap() = 0;
    }
}

/// Runs a model with up to three preemptions, which takes a minute. LOOM_MAX_PREEMPTIONS sets
/// another number; 100 is all of them.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

fn payload(number: u8) -> [u8; 3] {
    [number; 3]
}

/// Reads a record and checks that it is the expected one.
fn read(reader: &mut Reader<Arc<Memory>>, expected: u8) -> bool {
    let mut buffer = [0; 8];
    let Some((header, length)) = reader.read(&mut buffer).expect("a correct writer") else {
        return false;
    };
    assert_eq!(header[HEADER_REST], [expected; HEADER][HEADER_REST]);
    assert_eq!(buffer[..length], payload(expected));
    true
}

fn write(writer: &mut Writer<Arc<Memory>>, number: u8) -> Written {
    let written = writer.write([number; HEADER], &payload(number));
    written.expect("a correct reader")
}

/// Every record is published before the reader sees it, and not overwritten before it is read.
#[test]
fn records_are_read_whole_and_in_order() {
    check(|| {
        let memory = Memory::new();
        let of_writer = Arc::clone(&memory);
        let writing = thread::spawn(move || {
            let mut writer = Writer::new(of_writer);
            for number in 1..=3 {
                while write(&mut writer, number) == Written::Full {
                    thread::yield_now();
                }
            }
        });
        let mut reader = Reader::new(memory);
        for number in 1..=3 {
            while !read(&mut reader, number) {
                thread::yield_now();
            }
        }
        writing.join().unwrap();
    });
}

/// The writer returns to the start of the ring when it finds that all is read, and discards the rest of the ring. The reader
/// follows, and reads no byte that is discarded meanwhile.
#[test]
fn writer_returns_and_discards_while_the_reader_reads() {
    check(|| {
        let memory = Memory::new();
        let of_writer = Arc::clone(&memory);
        let writing = thread::spawn(move || {
            let mut writer = Writer::new(of_writer);
            write(&mut writer, 1);
            // The second record returns to the start, or extends the ring.
            write(&mut writer, 2);
            let is_left = writer.shrink() && writer.shrink();
            while write(&mut writer, 3) == Written::Full {
                thread::yield_now();
            }
            is_left
        });
        let mut reader = Reader::new(Arc::clone(&memory));
        for number in 1..=3 {
            while !read(&mut reader, number) {
                thread::yield_now();
            }
        }
        let _is_left = writing.join().unwrap();
        assert_eq!(memory.tail.load(Ordering::Relaxed), reader.head());
    });
}

/// A reader that sleeps is woken for each record: a lost wakeup would be a deadlock.
#[test]
fn sleeping_reader_misses_no_record() {
    check(|| {
        let (memory, descriptor) = (Memory::new(), Descriptor::new());
        let (of_writer, bell) = (Arc::clone(&memory), Arc::clone(&descriptor));
        let writing = thread::spawn(move || {
            let mut writer = Writer::new(of_writer);
            for number in 1..=2 {
                if write(&mut writer, number) == Written::WakeReader {
                    bell.wake();
                }
            }
        });
        let mut reader = Reader::new(Arc::clone(&memory));
        let mut expected = 1;
        while expected <= 2 {
            if read(&mut reader, expected) {
                expected += 1;
                continue;
            }
            arm(&memory);
            if !has_record(&memory, reader.head()) {
                descriptor.wait();
                descriptor.take();
            }
            disarm(&memory);
        }
        writing.join().unwrap();
    });
}

/// A writer that waits for room is woken when there is some.
#[test]
fn waiting_writer_is_woken_when_there_is_room() {
    check(|| {
        let (memory, descriptor) = (Memory::new(), Descriptor::new());
        let (of_writer, bell) = (Arc::clone(&memory), Arc::clone(&descriptor));
        let mut writer = Writer::new(of_writer);
        write(&mut writer, 1);
        write(&mut writer, 2);
        let writing = thread::spawn(move || {
            while write(&mut writer, 3) == Written::Full {
                bell.wait();
                bell.take();
            }
        });
        let mut reader = Reader::new(memory);
        for number in 1..=2 {
            assert!(read(&mut reader, number));
            if reader.take_waiting_writer() {
                descriptor.wake();
            }
        }
        writing.join().unwrap();
        assert!(read(&mut reader, 3));
    });
}

/// The writer of a stream tries again only when the reader has read something, and is woken then. Its record needs
/// the whole ring.
#[test]
fn writer_of_a_stream_is_woken_when_there_is_room() {
    check(|| {
        // The other ring has the flag of the thread that writes.
        let (memory, other, descriptor) = (Memory::new(), Memory::new(), Descriptor::new());
        let (of_writer, sleeper) = (Arc::clone(&memory), Arc::clone(&other));
        let bell = Arc::clone(&descriptor);
        let mut writer = Writer::new(Arc::clone(&memory));
        write(&mut writer, 1);
        write(&mut writer, 2);
        let writing = thread::spawn(move || {
            while writer.write([3; HEADER], &[3; 60]).unwrap() == Written::Full {
                let full_at = writer.head();
                let has_made_room = || of_writer.head.load(Ordering::Acquire) != full_at;
                while !has_made_room() {
                    arm(&sleeper);
                    if !has_made_room() {
                        bell.wait();
                        bell.take();
                    }
                    disarm(&sleeper);
                }
            }
            writer.stop_waiting();
        });
        let mut reader = Reader::new(memory);
        for number in 1..=2 {
            assert!(read(&mut reader, number));
            if reader.is_writer_waiting() && take_sleeper(&other) {
                descriptor.wake();
            }
        }
        writing.join().unwrap();
        let (_header, length) = reader.read(&mut [0; 64]).unwrap().expect("the last record");
        assert_eq!(length, 60);
    });
}

/// The sleepers of a doorbell: the same steps as `Doorbell`, with a model of its descriptor.
struct Sleepers {
    count: Mutex<usize>,
    memory: Arc<Memory>,
    descriptor: Arc<Descriptor>,
    read: AtomicU64,
}

impl Sleepers {
    fn has_packet(&self) -> bool {
        has_record(&self.memory, self.read.load(Ordering::Relaxed))
    }

    fn sleep(&self) {
        let mut count = self.count.lock().unwrap();
        *count += 1;
        arm(&self.memory);
        let may_sleep = !self.has_packet();
        drop(count);
        if may_sleep {
            self.descriptor.wait();
        }
        let mut count = self.count.lock().unwrap();
        *count -= 1;
        self.descriptor.take();
        match *count {
            0 => disarm(&self.memory),
            _ => {
                arm(&self.memory);
                if self.has_packet() {
                    self.descriptor.wake();
                }
            }
        }
    }
}

/// Two threads sleep on one doorbell, and both wake up for one record.
#[test]
fn two_sleeping_threads_both_wake_up() {
    check(|| {
        let (memory, descriptor) = (Memory::new(), Descriptor::new());
        let sleepers = Arc::new(Sleepers {
            count: Mutex::new(0),
            memory: Arc::clone(&memory),
            descriptor: Arc::clone(&descriptor),
            read: AtomicU64::new(0),
        });
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let sleepers = Arc::clone(&sleepers);
                thread::spawn(move || {
                    // No thread reads the record: each must find it.
                    while !sleepers.has_packet() {
                        sleepers.sleep();
                    }
                })
            })
            .collect();
        let mut writer = Writer::new(memory);
        if write(&mut writer, 1) == Written::WakeReader {
            descriptor.wake();
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
}

/// A process that stops between any two steps leaves a ring that the other can go on with.
#[test]
fn positions_of_a_hostile_process_are_refused() {
    check(|| {
        let memory = Memory::new();
        memory.tail.store(192, Ordering::Relaxed);
        let mut reader = Reader::new(Arc::clone(&memory));
        assert_eq!(reader.read(&mut [0; 8]), Err(Broken));
        // A return without a record.
        memory.tail.store(256, Ordering::Relaxed);
        assert_eq!(reader.read(&mut [0; 8]), Err(Broken));
    });
}
