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

#[cfg(test)]
mod tests {
    use super::*;

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
