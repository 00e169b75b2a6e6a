//! The shards of a device that move much data.
//!
//! One thread of a program can keep one shard busy: it posts, sends and receives. If several
//! shards are busy, it does the work of all of them one after another. Then the progress
//! threads take the work over, if processors are free. The progress thread of a single shard
//! does so if the shard sends much: it sends while the program assembles packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_roce::{Counter, Counters, Time};
use ferroce_shard::STANDBY_NS;

/// Bytes in a standby from which on a shard is busy: 1.6 Gb/s, a sixteenth of what one thread
/// moves.
const MUCH: u64 = 16 << 10;
/// Bytes sent in a standby from which on one shard keeps two threads busy: 6.5 Gb/s.
const MUCH_SENT: u64 = 64 << 10;

/// Bit mask of the busy shards of a device.
pub(crate) type BusyShards = Arc<AtomicU64>;

/// The load of one shard.
#[derive(Debug)]
pub(crate) struct Load {
    counters: Arc<Counters>,
    busy: BusyShards,
    /// The bit of this shard.
    bit: u64,
}

impl Load {
    /// Creates the load of the shard with this index.
    pub(crate) fn new(counters: Arc<Counters>, busy: BusyShards, index: usize) -> Load {
        Load {
            counters,
            busy,
            bit: 1 << index,
        }
    }

    /// Returns the number of bytes sent and received so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.counters.get(Counter::SentBytes) + self.counters.get(Counter::RcvdBytes)
    }

    /// Returns the number of bytes sent so far.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.counters.get(Counter::SentBytes)
    }

    /// Notes that `bytes` moved between two times, of which `sent` were sent. Returns true if
    /// the progress thread shall take over: this shard and another one are busy, or this one
    /// sends much.
    pub(crate) fn note(&self, bytes: u64, sent: u64, since: Time, now: Time) -> bool {
        let much = |much| now.nanos_since(since).saturating_mul(much) / STANDBY_NS;
        if bytes == 0 || bytes < much(MUCH) {
            self.note_quiet();
            return false;
        }
        let others = self.busy.fetch_or(self.bit, Ordering::Relaxed) & !self.bit;
        others != 0 || sent >= much(MUCH_SENT)
    }

    /// Notes that this shard is not busy.
    pub(crate) fn note_quiet(&self) {
        if self.busy.load(Ordering::Relaxed) & self.bit != 0 {
            self.busy.fetch_and(!self.bit, Ordering::Relaxed);
        }
    }
}

/// Measures the bytes that a shard moves in a window of time, one window after the other.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct LoadMeter {
    /// Begin of the window, and the bytes until then.
    since: Time,
    bytes: u64,
    sent: u64,
}

impl LoadMeter {
    /// Begins a window.
    pub(crate) fn begin(load: &Load, now: Time) -> LoadMeter {
        LoadMeter {
            since: now,
            bytes: load.bytes(),
            sent: load.sent_bytes(),
        }
    }

    /// Returns the end of a window of this length.
    pub(crate) fn end_of_window(&self, window_ns: u64) -> Time {
        self.since.after_nanos(window_ns)
    }

    /// At the end of a window, returns whether a shard with two threads moves enough for them, and
    /// begins the next window. Returns none before the end. **Why less than [`Load::note`] asks
    /// for**: traffic near the limit would begin and end the work of two threads again and again.
    pub(crate) fn goes_on(&mut self, load: &Load, window_ns: u64, now: Time) -> Option<bool> {
        let LoadMeter { since, bytes, .. } = *self;
        self.measure(load, window_ns, now)?;
        Some(self.bytes - bytes >= now.nanos_since(since).saturating_mul(MUCH) / STANDBY_NS)
    }

    /// At the end of a window, returns whether the shard keeps two threads busy, as
    /// [`Load::note`] does, and begins the next window. Returns none before the end.
    pub(crate) fn measure(&mut self, load: &Load, window_ns: u64, now: Time) -> Option<bool> {
        if now < self.end_of_window(window_ns) {
            return None;
        }
        let LoadMeter { since, bytes, sent } =
            core::mem::replace(self, LoadMeter::begin(load, now));
        Some(load.note(self.bytes - bytes, self.sent - sent, since, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_NS: u64 = 5 * STANDBY_NS;

    /// Returns what a meter says of a shard that first sends much, and then `bytes` in a window.
    fn says_after_much(bytes: u64) -> Option<bool> {
        let counters = Arc::new(Counters::default());
        let load = Load::new(Arc::clone(&counters), BusyShards::default(), 0);
        let mut meter = LoadMeter::begin(&load, Time::ZERO);
        counters.add(Counter::SentBytes, 5 * MUCH_SENT);
        let end = Time::from_nanos(WINDOW_NS);
        let before = Time::from_nanos(WINDOW_NS - 1);
        assert_eq!(meter.measure(&load, WINDOW_NS, before), None);
        assert_eq!(meter.measure(&load, WINDOW_NS, end), Some(true));
        counters.add(Counter::SentBytes, bytes);
        meter.goes_on(&load, WINDOW_NS, end.after_nanos(WINDOW_NS))
    }

    /// A progress thread that did all turns of a ping-pong doubled its latency.
    #[test]
    fn few_bytes_in_a_window_end_the_work_of_two_threads() {
        assert_eq!(says_after_much(5 * MUCH_SENT), Some(true));
        assert_eq!(says_after_much(5 * MUCH), Some(true));
        assert_eq!(says_after_much(5 * MUCH - 1), Some(false));
        assert_eq!(says_after_much(8), Some(false));
        assert_eq!(says_after_much(0), Some(false));
    }

    #[test]
    fn two_shards_that_send_little_must_be_busy() {
        let busy = BusyShards::default();
        let load = |index| Load::new(Arc::default(), Arc::clone(&busy), index);
        let (one, other) = (load(0), load(1));
        let (since, now) = (Time::ZERO, Time::from_nanos(2 * STANDBY_NS));
        assert!(!one.note(2 * MUCH, 0, since, now));
        assert!(!other.note(2 * MUCH - 1, 0, since, now));
        assert!(other.note(2 * MUCH, 0, since, now));
        assert!(one.note(2 * MUCH, 0, since, now));
        other.note_quiet();
        assert!(!one.note(2 * MUCH, 0, since, now));
        assert!(!one.note(0, 0, since, since));
    }

    #[test]
    fn one_shard_must_send_much() {
        let load = Load::new(Arc::default(), BusyShards::default(), 0);
        let (since, now) = (Time::ZERO, Time::from_nanos(2 * STANDBY_NS));
        let much = 2 * MUCH_SENT;
        assert!(!load.note(much, much - 1, since, now));
        assert!(load.note(much, much, since, now));
    }
}
