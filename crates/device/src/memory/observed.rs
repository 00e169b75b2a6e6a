//! Writes of the adapter while a program runs in strict mode.
//!
//! Two things happen then. The ranges of the latest writes are remembered, so that a changed
//! send buffer is not taken for a mistake of the program if the adapter itself has changed it.
//! And the bytes of a packet reach memory in two parts, the later part first: a program that
//! polls the last byte of a WRITE instead of waiting for a completion finds the rest missing.
//! Adapters promise no order within a message, although most keep it on most machines.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ferroce_roce::{Fault, MemRef};
use ferroce_strict::{Range, RecentWrites};

use crate::clock;

/// True in strict mode.
static OBSERVED: AtomicBool = AtomicBool::new(false);
static WRITES: Mutex<RecentWrites> = Mutex::new(RecentWrites::new());
/// Number of packets whose bytes were written in two parts.
static SPLIT: AtomicU64 = AtomicU64::new(0);

/// Datagrams that were dropped because their receives are too short.
static SHORT: Mutex<Vec<ShortReceive>> = Mutex::new(Vec::new());

/// Most dropped datagrams that are remembered: a program that ignores them gets one warning.
const MAX_SHORT: usize = 16;

/// A datagram that was dropped because its receive is too short.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ShortReceive {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Bytes of the receive.
    pub room: u64,
    /// Bytes that the datagram needs with its GRH.
    pub needed: u64,
}

/// Bytes that reach memory together: those of a cache line.
const LINE: u64 = 64;
/// Number of pauses between two parts before they become rare.
const ALWAYS: u64 = 1024;
/// After those, one split of this many has a pause.
const SELDOM: u64 = 16;
/// Duration of a pause. It is spent spinning: the thread holds the lock of its shard, and on a
/// busy machine a thread that yields may not run again for milliseconds.
const PAUSE_NS: u64 = 10_000;

/// Begins to observe writes, until the process ends.
pub fn begin() {
    OBSERVED.store(true, Ordering::Relaxed);
}

/// Returns the present time, for [`written_since`].
pub fn now() -> u64 {
    WRITES.lock().unwrap_or_else(PoisonError::into_inner).now()
}

/// Returns true if the adapter has written to one of the ranges since `time`, or if too much
/// was written to know.
pub fn written_since(time: u64, ranges: &[Range]) -> bool {
    let writes = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    writes.since(time, ranges)
}

/// Returns the number of packets whose bytes were written in another order.
pub fn split_writes() -> u64 {
    SPLIT.load(Ordering::Relaxed)
}

/// Returns the datagrams that were dropped since the last call because their receives are too
/// short.
pub fn take_short_receives() -> Vec<ShortReceive> {
    core::mem::take(&mut SHORT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Remembers a dropped datagram, in strict mode.
pub(crate) fn note_short_receive(short: ShortReceive) {
    let mut all = SHORT.lock().unwrap_or_else(PoisonError::into_inner);
    if is_on() && all.len() < MAX_SHORT {
        all.push(short);
    }
}

/// True if writes must go through [`write`], or be announced by [`note`].
#[inline]
pub(crate) fn is_on() -> bool {
    OBSERVED.load(Ordering::Relaxed)
}

/// Remembers a write that is about to happen.
#[cold]
pub(crate) fn note(at: MemRef, length: u64) {
    let mut writes = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    writes.add(at.addr(), length);
}

/// Writes a packet in two parts, the later part first.
#[cold]
pub(crate) fn write(
    at: MemRef,
    data: &[u8],
    write: impl Fn(MemRef, &[u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    note(at, data.len() as u64);
    let Some((first, second)) = data.split_at_checked(middle(at.addr(), data.len())) else {
        return write(at, data);
    };
    if first.is_empty() {
        return write(at, data);
    }
    write(at.offset(first.len() as u64), second)?;
    let count = SPLIT.fetch_add(1, Ordering::Relaxed);
    if count < ALWAYS || count.is_multiple_of(SELDOM) {
        let begun = clock::now();
        while clock::now().nanos_since(begun) < PAUSE_NS {
            core::hint::spin_loop();
        }
    }
    write(at, first)
}

/// Returns the number of bytes of the first part, up to the beginning of a cache line near the
/// middle; 0 if all bytes are in one line.
fn middle(start: u64, length: usize) -> usize {
    let end = start.saturating_add(length as u64);
    let line = (start + length as u64 / 2).next_multiple_of(LINE);
    let line = match line >= end {
        true => line.saturating_sub(LINE),
        false => line,
    };
    match line > start {
        true => (line - start) as usize,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn parts_meet_at_a_cache_line() {
        for (start, length, first) in [
            (0, 64, 0),
            (0, 8, 0),
            (60, 8, 4),
            (0, 65, 64),
            (0, 4096, 2048),
            (10, 4096, 2102),
            (0, 0, 0),
        ] {
            assert_eq!(middle(start, length), first, "{length} bytes at {start}");
        }
    }

    #[test]
    fn later_part_is_written_first() {
        let memory = RefCell::new(Vec::new());
        let data: Vec<u8> = (0..200).collect();
        let written = write(MemRef::host(0x1000), &data, |at, part| {
            memory.borrow_mut().push((at.addr(), part.to_vec()));
            Ok(())
        });
        assert!(written.is_ok());
        let memory = memory.into_inner();
        assert_eq!(memory[0], (0x1080, data[128..].to_vec()));
        assert_eq!(memory[1], (0x1000, data[..128].to_vec()));
        assert!(split_writes() > 0);
    }
}
