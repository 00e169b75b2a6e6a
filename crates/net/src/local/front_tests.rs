//! Tests of the front of a ring: the memory that stays in use, and its return to the kernel.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::memory::{Memory, RingView, create};
use super::ring::{Broken, HEADER, Reader, RingMemory, Writer, Written, record_size};
use super::{CHANNEL_SIZE, Doorbell, End, MAX_STREAM_RECORD, Side, StreamEnd, create_channel};

/// The goal for a channel without packets under way.
const MOST_AT_REST: u64 = 256 << 10;
const CAPACITY: u64 = RingView::CAPACITY as u64;
const LONGEST: usize = crate::RUN_LIMITS.bytes;

static NO_FORK: AtomicU32 = AtomicU32::new(0);

fn ring() -> (Writer<RingView>, Reader<RingView>, RingView) {
    let memory = Arc::new(Memory::map(create().unwrap()).unwrap());
    let view = RingView::new(&memory, 0);
    (Writer::new(view.clone()), Reader::new(view.clone()), view)
}

/// Two processes' ends of a channel, and its memory.
fn channel() -> ([Arc<End>; 2], OwnedFd) {
    let (memory, [first, second]) = create_channel().unwrap();
    let copies = [memory.try_clone().unwrap(), memory.try_clone().unwrap()];
    let [one, other] = copies;
    let ends = [
        End::new(2, one, first, Side::First).unwrap(),
        End::new(1, other, second, Side::Second).unwrap(),
    ];
    (ends.map(Arc::new), memory)
}

/// Returns the bytes of a file that are in memory.
fn resident(file: &OwnedFd) -> u64 {
    512 * rustix::fs::fstat(file).unwrap().st_blocks as u64
}

fn payload(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + number) as u8).collect()
}

fn write(writer: &mut Writer<RingView>, number: usize, length: usize) -> Written {
    let payload = payload(number, length);
    writer
        .write([0; HEADER], &payload)
        .expect("a correct reader")
}

fn read(reader: &mut Reader<RingView>, number: usize, length: usize) {
    let mut buffer = vec![0; 1 << 16];
    let (_, got) = reader.read(&mut buffer).unwrap().expect("a record");
    assert!(buffer[..got] == payload(number, length), "record {number}");
}

#[test]
fn short_messages_keep_a_channel_below_its_goal() {
    let (ends, memory) = channel();
    let [mut there, mut back] = [ends[0].writer(), ends[1].writer()];
    let [mut here, mut peer] = [ends[0].reader(), ends[1].reader()];
    for number in 0..10_000 {
        let length = number % 500;
        write(&mut there, number, length);
        read(&mut peer, number, length);
        write(&mut back, number, length);
        read(&mut here, number, length);
    }
    assert!(there.head() > 4 * CAPACITY, "the test writes too little");
    assert!(resident(&memory) <= MOST_AT_REST, "{}", resident(&memory));
    assert!(!ends.iter().any(|end| end.is_extended()));
}

#[test]
fn memory_of_bursts_is_returned() {
    let (ends, memory) = channel();
    let doorbell = Doorbell::new().unwrap();
    doorbell.add(&ends[0]).unwrap();
    let mut writers = [ends[0].writer(), ends[1].writer()];
    let mut readers = [ends[1].reader(), ends[0].reader()];
    for round in 0..3 {
        for (writer, reader) in writers.iter_mut().zip(&mut readers) {
            for number in 0..8 {
                assert_ne!(write(writer, number, LONGEST), Written::Full);
            }
            for number in 0..8 {
                read(reader, number, LONGEST);
            }
        }
        assert!(resident(&memory) > CHANNEL_SIZE as u64 - (64 << 10));
        assert!(doorbell.has_extended_ring());
        for (writer, reader) in writers.iter_mut().zip(&mut readers) {
            assert!(writer.shrink(), "it was used just now");
            // Short messages in between use none of it.
            for number in 0..1000 {
                write(writer, number, 100);
                read(reader, number, 100);
            }
            write(writer, round, 10);
            assert!(writer.shrink(), "a record waits");
            read(reader, round, 10);
            assert!(!writer.shrink());
        }
        assert!(resident(&memory) <= MOST_AT_REST, "{}", resident(&memory));
        assert!(!doorbell.has_extended_ring());
    }
}

#[test]
fn stream_returns_memory_of_a_burst() {
    let (ends, memory) = channel();
    let mut writer = StreamEnd::new(Arc::clone(&ends[0]), &NO_FORK);
    let mut reader = StreamEnd::new(Arc::clone(&ends[1]), &NO_FORK);
    let chunk = payload(0, MAX_STREAM_RECORD);
    let mut buffer = vec![0; MAX_STREAM_RECORD];
    let mut written = 0;
    while writer.write(&chunk).unwrap() {
        written += 1;
    }
    writer.stop_waiting();
    assert!(resident(&memory) > MOST_AT_REST);
    for _ in 0..written {
        assert_eq!(reader.read(&mut buffer), Ok(Some(MAX_STREAM_RECORD)));
        assert!(buffer == chunk);
    }
    assert!(writer.shrink());
    assert!(!writer.shrink());
    assert!(resident(&memory) <= MOST_AT_REST, "{}", resident(&memory));
    for number in 0..10_000 {
        let bytes = payload(number, 1 + number % 300);
        assert!(writer.write(&bytes).unwrap());
        assert_eq!(reader.read(&mut buffer), Ok(Some(bytes.len())));
        assert!(buffer[..bytes.len()] == bytes);
    }
    assert!(resident(&memory) <= MOST_AT_REST, "{}", resident(&memory));
}

/// Moves a ring close to the end of its front, and empties it.
fn approach_end_of_front(writer: &mut Writer<RingView>, reader: &mut Reader<RingView>) {
    let length = RingView::FRONT / 2 - 2 * HEADER;
    for number in 0..2 {
        write(writer, number, length);
        read(reader, number, length);
    }
    assert!(reader.head() < CAPACITY, "still in the first lap");
}

#[test]
fn ring_has_its_whole_room_before_the_reader_follows_a_return() {
    let (mut writer, mut reader, view) = ring();
    approach_end_of_front(&mut writer, &mut reader);
    let before = reader.head();
    let length = CAPACITY as usize - record_size(0) - HEADER;
    assert_eq!(write(&mut writer, 5, length), Written::Quiet);
    assert!(view.tail().load(Relaxed) > before + CAPACITY, "a return");
    assert_eq!(writer.unread(), record_size(length));
    assert_eq!(write(&mut writer, 6, 0), Written::Quiet);
    assert_eq!(write(&mut writer, 7, 0), Written::Full);
    assert_eq!(writer.head(), before, "the reader has not moved");
    let mut buffer = vec![0; CAPACITY as usize];
    let (_, got) = reader.read(&mut buffer).unwrap().expect("a record");
    assert!(buffer[..got] == payload(5, length));
    assert_eq!(write(&mut writer, 7, 0), Written::Quiet);
    read(&mut reader, 6, 0);
    read(&mut reader, 7, 0);
    assert_eq!(writer.unread(), 0);
}

#[test]
fn writer_returns_only_from_an_empty_ring() {
    let (mut writer, mut reader, view) = ring();
    write(&mut writer, 2, 60_000);
    read(&mut reader, 2, 60_000);
    // This record fits, and is not read.
    write(&mut writer, 3, 0);
    let before = view.tail().load(Relaxed);
    write(&mut writer, 4, LONGEST);
    assert_eq!(
        view.tail().load(Relaxed),
        before + record_size(LONGEST) as u64
    );
    read(&mut reader, 3, 0);
    read(&mut reader, 4, LONGEST);
    write(&mut writer, 5, LONGEST);
    assert_eq!(
        view.tail().load(Relaxed),
        2 * CAPACITY + record_size(LONGEST) as u64
    );
    read(&mut reader, 5, LONGEST);
}

#[test]
fn stream_with_a_full_ring_waits_until_the_reader_follows_a_return() {
    let (ends, _memory) = channel();
    let mut writer = StreamEnd::new(Arc::clone(&ends[0]), &NO_FORK);
    let mut reader = StreamEnd::new(Arc::clone(&ends[1]), &NO_FORK);
    let chunk = payload(0, MAX_STREAM_RECORD);
    let mut buffer = vec![0; MAX_STREAM_RECORD];
    for _ in 0..2 {
        assert!(writer.write(&chunk).unwrap());
        assert!(reader.read(&mut buffer).unwrap().is_some());
    }
    let mut written = 0;
    while writer.write(&chunk).unwrap() {
        written += 1;
    }
    assert_eq!(written, RingView::CAPACITY / record_size(chunk.len()));
    assert!(writer.is_full() && !writer.has_made_room());
    reader.read(&mut buffer).unwrap().expect("a chunk");
    assert!(writer.has_made_room());
    assert!(writer.write(&chunk).unwrap());
}

#[test]
fn returns_that_no_correct_writer_makes_break_the_ring() {
    let mut buffer = vec![0; 1 << 16];
    let start = 2 * CAPACITY;
    // No record behind the return, less than a lap, not aligned, more than a lap, and two returns.
    let wrong = [
        start,
        start - 64,
        start + 1,
        start + CAPACITY + 64,
        start + 2 * CAPACITY + 64,
    ];
    for tail in wrong {
        let (mut writer, mut reader, view) = ring();
        write(&mut writer, 1, 10);
        read(&mut reader, 1, 10);
        view.tail().store(tail, Relaxed);
        assert_eq!(reader.read(&mut buffer), Err(Broken), "tail {tail}");
    }
}

#[test]
fn reader_that_follows_no_return_breaks_the_ring() {
    let fill = |writer: &mut Writer<RingView>| {
        let results = (0..9).map(|_| writer.write([0; HEADER], &vec![0; LONGEST]));
        results.into_iter().any(|result| result == Err(Broken))
    };
    // It follows where the writer has not returned.
    let (mut writer, _, view) = ring();
    write(&mut writer, 1, 10);
    view.head().store(2 * CAPACITY, Relaxed);
    assert!(fill(&mut writer));
    // It stays at another place than that of the return.
    let (mut writer, mut reader, view) = ring();
    approach_end_of_front(&mut writer, &mut reader);
    write(&mut writer, 2, LONGEST);
    view.head().store(reader.head() - 64, Relaxed);
    assert!(fill(&mut writer));
}

#[test]
fn wrong_position_of_the_reader_discards_nothing() {
    let (mut writer, _, view) = ring();
    for number in 0..3 {
        write(&mut writer, number, LONGEST);
    }
    assert!(writer.shrink());
    view.head().store(1 << 40, Relaxed);
    assert!(writer.shrink());
    assert!(view.is_extended());
}
