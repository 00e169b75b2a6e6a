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
/// Bytes sent over UDP in a standby from which on one shard keeps two threads busy: 6.5 Gb/s.
/// Into shared memory one thread writes faster than two.
const MUCH_SENT: u64 = 64 << 10;
/// Bytes sent per post from which on two threads share the work of one shard. The program posts
/// shorter messages faster than the progress thread takes the lock: that thread would send each
/// with a system call of its own, while the program waits for the lock.
const LONG_POST: u64 = 16 << 10;

/// Bit mask of the busy shards of a device.
pub(crate) type BusyShards = Arc<AtomicU64>;

/// The load of one shard.
#[derive(Debug)]
pub(crate) struct Load {
    counters: Arc<Counters>,
    busy: BusyShards,
    /// The bit of this shard.
    bit: u64,
    /// Number of posts of sends.
    posts: AtomicU64,
}

/// The work of a shard: so far, or in a window.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Work {
    /// Bytes sent and received.
    bytes: u64,
    /// Bytes sent over UDP.
    sent: u64,
    /// Posts of sends.
    posts: u64,
}

impl Work {
    fn since(self, before: Work) -> Work {
        Work {
            bytes: self.bytes - before.bytes,
            sent: self.sent.saturating_sub(before.sent),
            posts: self.posts - before.posts,
        }
    }
}

impl Load {
    /// Creates the load of the shard with this index.
    pub(crate) fn new(counters: Arc<Counters>, busy: BusyShards, index: usize) -> Load {
        Load {
            counters,
            busy,
            bit: 1 << index,
            posts: AtomicU64::new(0),
        }
    }

    /// Counts a post of sends. The caller holds the lock of the shard.
    #[inline]
    pub(crate) fn count_post(&self) {
        let posts = self.posts.load(Ordering::Relaxed);
        self.posts.store(posts.wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the work so far.
    fn work(&self) -> Work {
        let sent = self.counters.get(Counter::SentBytes);
        let local = self.counters.get(Counter::LocalSentBytes);
        Work {
            bytes: sent + self.counters.get(Counter::RcvdBytes),
            sent: sent.saturating_sub(local),
            posts: self.posts.load(Ordering::Relaxed),
        }
    }

    /// Notes the work between two times. Returns true if the progress thread shall take over:
    /// this shard and another one are busy, or this one sends much in long messages.
    pub(crate) fn note(&self, work: Work, since: Time, now: Time) -> bool {
        let much = |much| in_window(much, since, now);
        if work.bytes == 0 || work.bytes < much(MUCH) {
            self.note_quiet();
            return false;
        }
        let others = self.busy.fetch_or(self.bit, Ordering::Relaxed) & !self.bit;
        others != 0 || work.sent >= much(MUCH_SENT).max(work.posts.saturating_mul(LONG_POST))
    }

    /// Returns true if another shard is busy.
    fn has_busy_others(&self) -> bool {
        self.busy.load(Ordering::Relaxed) & !self.bit != 0
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
    /// Begin of the window, and the work until then.
    since: Time,
    work: Work,
    /// True if the shard sent much in the window before.
    sends_much: bool,
}

impl LoadMeter {
    /// Begins a window.
    pub(crate) fn begin(load: &Load, now: Time) -> LoadMeter {
        LoadMeter {
            since: now,
            work: load.work(),
            sends_much: false,
        }
    }

    /// Returns true if the shard sent much over UDP in the last whole window. A shard that only receives
    /// has no packets for a second thread to assemble.
    pub(crate) fn sends_much(&self) -> bool {
        self.sends_much
    }

    /// Returns the end of a window of this length.
    pub(crate) fn end_of_window(&self, window_ns: u64) -> Time {
        self.since.after_nanos(window_ns)
    }

    /// At the end of a window, returns whether a shard with two threads moves enough for them, and
    /// begins the next window. Returns none before the end. **Why less than [`Load::note`] asks
    /// for**: traffic near the limit would begin and end the work of two threads again and again.
    pub(crate) fn goes_on(&mut self, load: &Load, window_ns: u64, now: Time) -> Option<bool> {
        let LoadMeter { since, work, .. } = *self;
        self.measure(load, window_ns, now)?;
        let work = self.work.since(work);
        let is_long = work.sent >= work.posts.saturating_mul(LONG_POST / 2);
        let is_much = work.bytes >= in_window(MUCH, since, now);
        Some(is_much && (is_long || load.has_busy_others()))
    }

    /// At the end of a window, returns whether the shard keeps two threads busy, as
    /// [`Load::note`] does, and begins the next window. Returns none before the end.
    pub(crate) fn measure(&mut self, load: &Load, window_ns: u64, now: Time) -> Option<bool> {
        if now < self.end_of_window(window_ns) {
            return None;
        }
        let LoadMeter { since, work, .. } = core::mem::replace(self, LoadMeter::begin(load, now));
        let work = self.work.since(work);
        self.sends_much = work.sent > 0 && work.sent >= in_window(MUCH_SENT, since, now);
        Some(load.note(work, since, now))
    }
}

/// Returns the bytes between two times at a rate of so many in a standby.
fn in_window(bytes: u64, since: Time, now: Time) -> u64 {
    now.nanos_since(since).saturating_mul(bytes) / STANDBY_NS
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

    /// The target of WRITEs kept four threads busy that looked for packets to assemble.
    #[test]
    fn shard_that_receives_does_not_send_much() {
        let window = |counter| {
            let counters = Arc::new(Counters::default());
            let load = Load::new(Arc::clone(&counters), BusyShards::default(), 0);
            let mut meter = LoadMeter::begin(&load, Time::ZERO);
            counters.add(counter, 10 * MUCH_SENT);
            meter.goes_on(&load, WINDOW_NS, Time::from_nanos(WINDOW_NS));
            meter.sends_much()
        };
        assert!(window(Counter::SentBytes));
        assert!(!window(Counter::RcvdBytes));
    }

    #[test]
    fn two_shards_that_send_little_must_be_busy() {
        let busy = BusyShards::default();
        let load = |index| Load::new(Arc::default(), Arc::clone(&busy), index);
        let (one, other) = (load(0), load(1));
        let (since, now) = (Time::ZERO, Time::from_nanos(2 * STANDBY_NS));
        let moved = |bytes| Work {
            bytes,
            ..Work::default()
        };
        assert!(!one.note(moved(2 * MUCH), since, now));
        assert!(!other.note(moved(2 * MUCH - 1), since, now));
        assert!(other.note(moved(2 * MUCH), since, now));
        assert!(one.note(moved(2 * MUCH), since, now));
        other.note_quiet();
        assert!(!one.note(moved(2 * MUCH), since, now));
        assert!(!one.note(moved(0), since, since));
    }

    #[test]
    fn one_shard_must_send_much() {
        let load = Load::new(Arc::default(), BusyShards::default(), 0);
        let (since, now) = (Time::ZERO, Time::from_nanos(2 * STANDBY_NS));
        let much = 2 * MUCH_SENT;
        let sent = |sent, posts| Work {
            bytes: much,
            sent,
            posts,
        };
        assert!(!load.note(sent(much - 1, 0), since, now));
        assert!(load.note(sent(much, 0), since, now));
        assert!(load.note(sent(much, much / LONG_POST), since, now));
        assert!(!load.note(sent(much, much / LONG_POST + 1), since, now));
    }

    /// The progress thread of a shard that sent 4 KiB messages took over, and halved their rate.
    #[test]
    fn short_messages_and_shared_memory_are_left_to_the_program() {
        let window = |length: u64, local: bool| {
            let counters = Arc::new(Counters::default());
            let load = Load::new(Arc::clone(&counters), BusyShards::default(), 0);
            let mut meter = LoadMeter::begin(&load, Time::ZERO);
            let send = || {
                for _ in 0..10 * MUCH_SENT / length {
                    load.count_post();
                    counters.add(Counter::SentBytes, length);
                    counters.add(Counter::LocalSentBytes, if local { length } else { 0 });
                }
            };
            send();
            let end = Time::from_nanos(WINDOW_NS);
            let begins = meter.measure(&load, WINDOW_NS, end);
            send();
            let goes_on = meter.goes_on(&load, WINDOW_NS, end.after_nanos(WINDOW_NS));
            [begins, goes_on]
        };
        assert_eq!(window(64 << 10, false), [Some(true); 2]);
        assert_eq!(window(64 << 10, true), [Some(false); 2]);
        assert_eq!(window(4 << 10, false), [Some(false); 2]);
    }
}
