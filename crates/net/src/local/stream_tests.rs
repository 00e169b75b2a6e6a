//! Tests of byte streams through a channel, between two ends in this process.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use proptest::prelude::*;

use super::channels::Endpoint;
use super::memory::RingView;
use super::ring::{Broken, HEADER, RingMemory, Writer, arm, is_armed};
use super::{Doorbell, End, MAX_STREAM_RECORD, StreamEnd};

static NO_FORK: AtomicU32 = AtomicU32::new(0);

fn ends() -> [Arc<End>; 2] {
    End::pair([1, 2]).unwrap().map(Arc::new)
}

fn streams(ends: &[Arc<End>; 2]) -> [StreamEnd; 2] {
    [0, 1].map(|at| StreamEnd::new(Arc::clone(&ends[at]), &NO_FORK))
}

/// Writes chunks until the ring is full. Returns their number.
fn fill(stream: &mut StreamEnd) -> usize {
    let chunk = [7; MAX_STREAM_RECORD];
    let mut chunks = 0;
    while stream.write(&chunk).unwrap() {
        chunks += 1;
    }
    chunks
}

proptest! {
    #[test]
    fn bytes_arrive_in_order(chunks in proptest::collection::vec((1..=MAX_STREAM_RECORD, 0..3u8), 1..80)) {
        let [mut writer, mut reader] = streams(&ends());
        let mut buffer = vec![0; MAX_STREAM_RECORD];
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for (length, reads) in chunks {
            let chunk: Vec<u8> = (sent.len()..).map(|at| (at % 251) as u8).take(length).collect();
            if writer.write(&chunk).unwrap() {
                sent.extend_from_slice(&chunk);
            }
            for _ in 0..reads {
                if let Some(length) = reader.read(&mut buffer).unwrap() {
                    got.extend_from_slice(&buffer[..length]);
                }
            }
            reader.end_read();
        }
        while let Some(length) = reader.read(&mut buffer).unwrap() {
            got.extend_from_slice(&buffer[..length]);
        }
        prop_assert!(got == sent);
        prop_assert_eq!(writer.unread(), 0);
    }
}

#[test]
fn full_ring_has_room_after_a_read() {
    let [mut writer, mut reader] = streams(&ends());
    assert!(fill(&mut writer) > 4);
    assert!(writer.is_full() && !writer.has_made_room());
    assert!(writer.unread() > RingView::CAPACITY - 2 * MAX_STREAM_RECORD);
    let mut buffer = vec![0; MAX_STREAM_RECORD];
    reader.read(&mut buffer).unwrap();
    assert!(writer.has_made_room());
    assert!(writer.write(&[1]).unwrap());
    assert!(!writer.is_full() && !writer.has_made_room());
}

/// A thread must not sleep if there is room again, and is woken when there is.
#[test]
fn thread_with_a_full_ring_is_woken_by_room() {
    let ends = ends();
    let [mut writer, mut reader] = streams(&ends);
    let doorbell = Doorbell::new().unwrap();
    doorbell.add(&ends[0]).unwrap();
    fill(&mut writer);
    assert!(doorbell.begin_sleep(), "nothing to do");
    let mut buffer = vec![0; MAX_STREAM_RECORD];
    reader.read(&mut buffer).unwrap();
    assert!(is_armed(ends[0].incoming()));
    reader.end_read();
    assert!(!is_armed(ends[0].incoming()), "the reader has woken it");
    let _closed = doorbell.end_sleep();
    assert!(!doorbell.begin_sleep(), "there is room");
    let _closed = doorbell.end_sleep();
    assert!(writer.write(&[1]).unwrap());
    assert!(doorbell.begin_sleep(), "nothing waits for room");
    let _closed = doorbell.end_sleep();
}

/// The reader reads a chunk, and looks for a writer that waits only at the end of its series. Meanwhile the writer
/// finds the ring full again, with that chunk read, and does not sleep yet.
#[test]
fn writer_that_found_no_room_within_a_series_of_reads_is_woken_by_the_next() {
    let ends = ends();
    let [mut writer, mut reader] = streams(&ends);
    let doorbell = Doorbell::new().unwrap();
    doorbell.add(&ends[0]).unwrap();
    fill(&mut writer);
    let mut buffer = vec![0; MAX_STREAM_RECORD];
    reader.read(&mut buffer).unwrap();
    fill(&mut writer);
    reader.end_read();
    assert!(doorbell.begin_sleep(), "nothing was read since");
    reader.read(&mut buffer).unwrap();
    reader.end_read();
    assert!(!is_armed(ends[0].incoming()), "the reader has woken it");
    let _closed = doorbell.end_sleep();
}

#[test]
fn writer_that_has_nothing_left_to_write_does_not_wait_for_room() {
    let ends = ends();
    let [mut writer, mut reader] = streams(&ends);
    let doorbell = Doorbell::new().unwrap();
    doorbell.add(&ends[0]).unwrap();
    fill(&mut writer);
    writer.stop_waiting();
    reader.read(&mut vec![0; MAX_STREAM_RECORD]).unwrap();
    assert!(doorbell.begin_sleep(), "room is of no use");
    reader.end_read();
    assert!(is_armed(ends[0].incoming()), "it is not woken");
    let _closed = doorbell.end_sleep();
}

#[test]
fn bytes_are_read_after_the_writer_has_closed() {
    let ends = ends();
    let [mut writer, mut reader] = streams(&ends);
    assert!(writer.write(b"last").unwrap());
    writer.close();
    drop((writer, ends));
    let mut buffer = vec![0; MAX_STREAM_RECORD];
    assert_eq!(reader.read(&mut buffer), Ok(Some(4)));
    assert_eq!(&buffer[..4], b"last");
    assert_eq!(reader.read(&mut buffer), Ok(None));
}

#[test]
fn paused_stream_lets_threads_sleep_until_more_arrives() {
    let ends = ends();
    let [mut writer, reader] = streams(&ends);
    let doorbell = Doorbell::new().unwrap();
    doorbell.add(&ends[1]).unwrap();
    assert!(writer.write(b"early").unwrap());
    assert!(doorbell.has_packet());
    reader.pause();
    assert!(!doorbell.has_packet());
    assert!(writer.write(b"late").unwrap());
    assert!(doorbell.has_packet());
    reader.pause();
    reader.end_read();
    assert!(doorbell.has_packet(), "the pause has ended");
}

#[test]
fn hostile_chunks_break_the_stream() {
    // An empty chunk, a chunk that is too long, and an impossible position.
    for hostile in 0..3 {
        let ends = ends();
        let mut reader = StreamEnd::new(Arc::clone(&ends[1]), &NO_FORK);
        let ring = ends[0].outgoing().clone();
        let mut writer = Writer::new(ring.clone());
        match hostile {
            0 => drop(writer.write([0; HEADER], &[])),
            1 => drop(writer.write([0; HEADER], &[0; MAX_STREAM_RECORD + 1])),
            _ => ring.tail().store(1, Ordering::Relaxed),
        }
        let mut buffer = vec![0; 2 * MAX_STREAM_RECORD];
        assert_eq!(reader.read(&mut buffer), Err(Broken), "{hostile}");
    }
    let ends = ends();
    let mut writer = StreamEnd::new(Arc::clone(&ends[0]), &NO_FORK);
    ends[0].outgoing().head().store(1 << 40, Ordering::Relaxed);
    assert_eq!(writer.unread(), 0);
    let chunk = [7; MAX_STREAM_RECORD];
    let broken = (0..100).any(|_| writer.write(&chunk) == Err(Broken));
    assert!(broken, "a full ring looks at the position");
}

#[test]
fn forked_child_touches_no_memory() {
    use core::sync::atomic::AtomicU32;
    static FORKS: AtomicU32 = AtomicU32::new(0);
    let ends = ends();
    let mut stream = StreamEnd::new(Arc::clone(&ends[1]), &FORKS);
    let [mut writer, _] = streams(&ends);
    assert!(writer.write(b"parent").unwrap());
    assert!(stream.has_bytes());
    FORKS.store(1, Ordering::Relaxed);
    assert!(!stream.has_bytes());
    let mut buffer = vec![0; MAX_STREAM_RECORD];
    assert_eq!(stream.read(&mut buffer), Ok(None));
    assert_eq!(stream.write(b"child"), Ok(false));
    arm(ends[0].incoming());
    stream.end_read();
    assert!(is_armed(ends[0].incoming()), "no thread is woken");
}
