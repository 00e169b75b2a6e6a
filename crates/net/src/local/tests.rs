//! Tests of the ring over real shared memory, and of channels between two threads.

use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::memory::{Memory, RingView, create};
use super::ring::{
    Broken, HEADER, HEADER_REST, Reader, RingMemory, Writer, Written, arm, record_size,
};
use super::{Doorbell, End, Endpoint, Readiness, Side, create_channel};

fn ring() -> (Writer<RingView>, Reader<RingView>, RingView) {
    let memory = Arc::new(Memory::map(create().unwrap()).unwrap());
    let view = RingView::new(&memory, 1);
    (Writer::new(view.clone()), Reader::new(view.clone()), view)
}

fn header(byte: u8) -> [u8; HEADER] {
    [byte; HEADER]
}

const LONGEST: usize = 1 << 16;

proptest! {
    /// Whatever is written arrives once, in order and unchanged, across the end of the memory.
    #[test]
    fn records_arrive_in_order(lengths in proptest::collection::vec((0..LONGEST, 1..4usize, any::<bool>()), 1..60)) {
        let (mut writer, mut reader, _) = ring();
        let mut buffer = vec![0; LONGEST];
        let mut sent = std::collections::VecDeque::new();
        for (index, (length, reads, shrinks)) in lengths.into_iter().enumerate() {
            let payload: Vec<u8> = (0..length).map(|at| (at * 7 + index) as u8).collect();
            match writer.write(header(index as u8), &payload).unwrap() {
                Written::Full => {
                    let waiting: usize = sent.iter().map(|(_, p): &(u8, Vec<u8>)| record_size(p.len())).sum();
                    prop_assert!(waiting + record_size(length) > RingView::CAPACITY);
                }
                _ => sent.push_back((index as u8, payload)),
            }
            for _ in 0..reads {
                let read = reader.read(&mut buffer).unwrap();
                prop_assert_eq!(read.is_some(), !sent.is_empty());
                let (Some((header, length)), Some((tag, payload))) = (read, sent.pop_front()) else {
                    break;
                };
                prop_assert!(header[HEADER_REST].iter().all(|byte| *byte == tag));
                prop_assert_eq!(&buffer[..length], &payload[..]);
            }
            if shrinks {
                let _left = writer.shrink();
            }
        }
    }

    /// A hostile process writes anything anywhere, between any two operations of ours. Both
    /// ends go on or report that the ring is broken; no read leaves the ring or the buffer.
    #[test]
    fn hostile_memory_breaks_nothing_but_the_ring(
        steps in proptest::collection::vec((0..10u8, any::<u64>(), 0..LONGEST), 1..200)
    ) {
        let (mut writer, mut reader, view) = ring();
        let mut buffer = vec![0; 1000];
        for (step, number, length) in steps {
            // Numbers near those that the ring uses are the interesting ones.
            let near = number % 3 * 64 + reader.head() + number % (2 * RingView::CAPACITY as u64);
            match step {
                0 => view.tail().store(number, Ordering::Relaxed),
                1 => view.head().store(number, Ordering::Relaxed),
                2 => view.tail().store(near, Ordering::Relaxed),
                3 => view.head().store(near, Ordering::Relaxed),
                4 => {
                    let at = number as usize % (RingView::CAPACITY - 8);
                    view.copy_in(at, &number.to_ne_bytes());
                }
                5 => view.copy_in(reader.head() as usize % RingView::CAPACITY, &(length as u32).to_ne_bytes()),
                6 => {
                    // A return, or nearly one.
                    let lap = RingView::CAPACITY as u64;
                    let start = (reader.head() / lap + 2) * lap;
                    view.tail().store(start - 64 + record_size(length) as u64, Ordering::Relaxed);
                }
                7 => drop(writer.shrink()),
                8 => drop(writer.write(header(1), &vec![9; length])),
                _ => if let Ok(Some((_, length))) = reader.read(&mut buffer) {
                    prop_assert!(length <= buffer.len());
                },
            }
        }
    }
}

#[test]
fn eight_of_the_longest_runs_fit_and_a_ninth_does_not() {
    let (mut writer, mut reader, _) = ring();
    let run = vec![1; crate::RUN_LIMITS.bytes];
    for number in 1..=8 {
        assert_eq!(writer.write(header(number), &run), Ok(Written::Quiet));
    }
    assert_eq!(writer.write(header(9), &run), Ok(Written::Full));
    let mut buffer = vec![0; LONGEST];
    assert!(reader.read(&mut buffer).unwrap().is_some());
    assert!(reader.take_waiting_writer(), "the writer waits for room");
    assert!(!reader.take_waiting_writer(), "once");
    assert_eq!(writer.write(header(9), &run), Ok(Written::Quiet));
    assert_eq!(
        writer.write(header(10), &vec![0; RingView::CAPACITY]),
        Err(Broken)
    );
}

#[test]
fn writer_wakes_the_reader_only_if_it_sleeps() {
    let (mut writer, _, view) = ring();
    assert_eq!(writer.write(header(1), b"awake"), Ok(Written::Quiet));
    arm(&view);
    assert_eq!(writer.write(header(1), b"asleep"), Ok(Written::WakeReader));
    assert_eq!(writer.write(header(1), b"awake"), Ok(Written::Quiet));
}

#[test]
fn positions_of_a_hostile_process_are_refused() {
    use core::sync::atomic::Ordering::Relaxed;
    let mut buffer = vec![0; LONGEST];
    for tail in [1, 63, 65, RingView::CAPACITY as u64 + 64, u64::MAX] {
        let (_, mut reader, view) = ring();
        view.tail().store(tail, Relaxed);
        assert_eq!(reader.read(&mut buffer), Err(Broken), "tail {tail}");
    }
    for head in [1, 1 << 40, u64::MAX] {
        let (mut writer, _, view) = ring();
        view.head().store(head, Relaxed);
        let fills = RingView::CAPACITY / 60_000;
        let filled = (0..=fills).map(|_| writer.write(header(1), &vec![0; 60_000]));
        assert!(
            filled.into_iter().any(|result| result == Err(Broken)),
            "head {head}"
        );
    }
    // A record that is longer than the bytes written, or than the buffer.
    for length in [100, LONGEST as u32 + 1, u32::MAX] {
        let (mut writer, mut reader, view) = ring();
        writer.write(header(1), b"short").unwrap();
        view.copy_in(0, &length.to_ne_bytes());
        assert_eq!(reader.read(&mut buffer), Err(Broken), "length {length}");
    }
}

#[test]
fn only_memory_of_a_channel_is_mapped() {
    let file = std::fs::File::open("/proc/version").unwrap();
    assert!(Memory::map(&file).is_err());
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
    let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, super::CHANNEL_SIZE as u64).unwrap();
    assert!(Memory::map(&unsealed).is_err(), "it could shrink");
    let (memory, _) = create_channel().unwrap();
    assert!(
        rustix::fs::ftruncate(&memory, 0).is_err(),
        "no process can shrink it"
    );
}

fn ends() -> (End, End) {
    let (memory, [first, second]) = create_channel().unwrap();
    let copy = memory.try_clone().unwrap();
    let one = End::new(5, memory, first, Side::First).unwrap();
    assert_eq!(
        one.readiness(),
        Readiness::NotYet,
        "the other end has not mapped it"
    );
    let other = End::new(3, copy, second, Side::Second).unwrap();
    one.announce();
    other.announce();
    (one, other)
}

#[test]
fn end_knows_when_the_other_end_is_ready_and_when_it_is_closed() {
    let (one, other) = ends();
    assert_eq!(one.await_ready(Duration::from_secs(10)), Readiness::Ready);
    assert_eq!(other.readiness(), Readiness::Ready);
    assert!(!one.take_wakeups());
    assert_eq!(one.readiness(), Readiness::Ready, "the wakeup is taken");
    drop(other);
    assert_eq!(one.readiness(), Readiness::Closed);
    assert!(one.take_wakeups() && one.is_closed());
}

#[test]
fn wait_for_an_end_that_is_not_mapped_happens_once() {
    let (memory, [first, _second]) = create_channel().unwrap();
    let end = End::new(5, memory, first, Side::First).unwrap();
    assert_eq!(end.await_ready(Duration::from_millis(1)), Readiness::NotYet);
    assert_eq!(
        end.await_ready(Duration::MAX),
        Readiness::NotYet,
        "no second wait"
    );
}

/// Waits until a descriptor of the doorbell is readable.
fn wait(doorbell: &Doorbell) {
    let mut fds = doorbell
        .descriptors()
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll(&mut fds, None).unwrap();
}

/// Two threads exchange records, and sleep whenever there is none: a lost wakeup would hang.
#[test]
#[allow(clippy::disallowed_methods)] // the threads stand for two processes
fn threads_that_sleep_miss_no_record() {
    const ROUNDS: u32 = 20_000;
    let (one, other) = ends();
    let serve = |end: End, begins: bool| {
        move || {
            let doorbell = Doorbell::new().unwrap();
            let end = Arc::new(end);
            doorbell.add(&end).unwrap();
            let (mut writer, mut reader) = (end.writer(), end.reader());
            let mut buffer = [0; 64];
            let mut write = |number: u32| {
                let written = writer.write(header(0), &number.to_ne_bytes()).unwrap();
                if written == Written::WakeReader {
                    end.wake();
                }
            };
            if begins {
                write(0);
            }
            let mut expected = u32::from(!begins) ^ 1;
            while expected < ROUNDS {
                match reader.read(&mut buffer).unwrap() {
                    Some((_, 4)) => {
                        end.note_read(reader.head());
                        let number = u32::from_ne_bytes(*buffer.first_chunk().unwrap());
                        assert_eq!(number, expected);
                        write(number + 1);
                        expected += 2;
                    }
                    Some(_) => panic!("a record of another length"),
                    None => {
                        if doorbell.begin_sleep() {
                            wait(&doorbell);
                        }
                        doorbell.end_sleep();
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(serve(one, true));
        scope.spawn(serve(other, false));
    });
}

#[test]
fn all_threads_that_sleep_wake_up_one_after_another() {
    let (one, other) = ends();
    let (one, doorbell) = (Arc::new(one), Doorbell::new().unwrap());
    doorbell.add(&one).unwrap();
    let mut writer = other.writer();
    // Two threads are about to sleep; one takes the wakeup of the record.
    assert!(doorbell.begin_sleep() && doorbell.begin_sleep());
    assert_eq!(writer.write(header(1), b"record"), Ok(Written::WakeReader));
    other.wake();
    wait(&doorbell);
    assert!(!doorbell.end_sleep());
    wait(&doorbell);
    // The record is read. The next one wakes the thread that still sleeps.
    let mut reader = one.reader();
    reader.read(&mut [0; 64]).unwrap().unwrap();
    one.note_read(reader.head());
    doorbell.end_sleep();
    assert!(doorbell.begin_sleep());
    assert_eq!(writer.write(header(1), b"record"), Ok(Written::WakeReader));
    doorbell.end_sleep();
    assert_eq!(
        writer.write(header(1), b"record"),
        Ok(Written::Quiet),
        "no thread sleeps"
    );
}

#[test]
fn sleep_ends_when_the_other_process_has_ended() {
    let (one, other) = ends();
    let (one, doorbell) = (Arc::new(one), Doorbell::new().unwrap());
    doorbell.add(&one).unwrap();
    let _has_announcement = doorbell.begin_sleep();
    assert!(!doorbell.end_sleep());
    assert!(doorbell.begin_sleep());
    drop(other);
    wait(&doorbell);
    assert!(doorbell.end_sleep() && doorbell.has_closed());
    doorbell.remove_closed();
    assert!(!doorbell.has_ends());
}

#[test]
fn slot_reaches_itself() {
    let (end, doorbell) = (
        Arc::new(End::to_itself(9).unwrap()),
        Doorbell::new().unwrap(),
    );
    doorbell.add(&end).unwrap();
    assert_eq!(end.readiness(), Readiness::Ready);
    assert!(doorbell.begin_sleep());
    assert_eq!(
        end.writer().write(header(1), b"own"),
        Ok(Written::WakeReader)
    );
    end.wake();
    wait(&doorbell);
    doorbell.end_sleep();
    let mut buffer = [0; 64];
    let (_, length) = end.reader().read(&mut buffer).unwrap().unwrap();
    assert_eq!(&buffer[..length], b"own");
}

/// Returns true if a descriptor of the doorbell is readable.
fn is_readable(doorbell: &Doorbell) -> bool {
    let mut fds = doorbell
        .descriptors()
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

/// Returns two ends with their doorbells, which have the bells of each other.
fn ends_with_bells() -> [(Arc<End>, Doorbell); 2] {
    let ends = End::pair([3, 5]).unwrap();
    let ends = ends.map(|end| (Arc::new(end), Doorbell::new().unwrap()));
    for (end, doorbell) in &ends {
        doorbell.add(end).unwrap();
    }
    for (end, doorbell) in &ends {
        assert!(!end.has_bell());
        doorbell.take_bell(end);
        assert!(end.has_bell());
    }
    ends
}

#[test]
fn end_with_a_bell_uses_it_and_not_the_socket() {
    let [(one, _), (other, doorbell)] = ends_with_bells();
    assert!(doorbell.begin_sleep());
    assert_eq!(
        one.writer().write(header(1), b"record"),
        Ok(Written::WakeReader)
    );
    one.wake();
    let [mut bell, mut sockets] = doorbell
        .descriptors()
        .map(|fd| [PollFd::from_borrowed_fd(fd, PollFlags::IN)]);
    assert_eq!(poll(&mut bell, None), Ok(1));
    assert_eq!(poll(&mut sockets, Some(&Timespec::default())), Ok(0));
    assert!(!doorbell.end_sleep());
    assert!(!is_readable(&doorbell), "the wakeup is taken");
    assert!(other.has_packet());
}

#[test]
fn thread_that_takes_the_bell_leaves_the_wakeup_to_one_that_sleeps() {
    let (one, other) = ends();
    let (one, doorbell) = (Arc::new(one), Doorbell::new().unwrap());
    doorbell.add(&one).unwrap();
    assert!(doorbell.begin_sleep());
    assert_eq!(
        other.writer().write(header(1), b"record"),
        Ok(Written::WakeReader)
    );
    // By the socket: the other end has no bell.
    other.wake();
    doorbell.take_bell(&one);
    wait(&doorbell);
    doorbell.end_sleep();
}

#[test]
fn bell_rung_after_its_end_was_removed_disturbs_no_sleep() {
    let [(one, _), (other, doorbell)] = ends_with_bells();
    other.close();
    doorbell.remove_closed();
    assert!(!doorbell.has_ends());
    for _ in 0..2 {
        assert!(doorbell.begin_sleep());
        one.wake();
        wait(&doorbell);
        doorbell.end_sleep();
        assert!(!is_readable(&doorbell));
    }
}

#[test]
fn end_of_the_other_process_is_seen_between_wakeups() {
    let [(one, _), (other, doorbell)] = ends_with_bells();
    let mut writer = one.writer();
    let mut reader = other.reader();
    one.close();
    let closed = (0..1000).any(|_| {
        let _may_sleep = doorbell.begin_sleep();
        assert!(writer.write(header(1), b"record").is_ok());
        one.wake();
        reader.read(&mut [0; 64]).unwrap().unwrap();
        other.note_read(reader.head());
        doorbell.end_sleep()
    });
    assert!(closed);
}
