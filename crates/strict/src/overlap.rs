//! The latest writes of the adapter, to tell them from those of the program.

use crate::Range;

/// Number of writes that are remembered.
const KEPT: usize = 4096;

/// The latest writes of the adapter to the memory of a process, in order.
///
/// A send buffer may change before its completion because the adapter itself has written there:
/// programs such as `ibv_rc_pingpong` receive into the buffer that they send from.
#[derive(Debug)]
pub struct RecentWrites {
    entries: Vec<(Range, u64)>,
    /// Number of writes so far.
    count: u64,
}

impl Default for RecentWrites {
    fn default() -> Self {
        RecentWrites::new()
    }
}

impl RecentWrites {
    /// Returns an empty list.
    pub const fn new() -> RecentWrites {
        RecentWrites {
            entries: Vec::new(),
            count: 0,
        }
    }

    /// Returns the number of writes so far: a point in time for [`RecentWrites::since`].
    pub fn now(&self) -> u64 {
        self.count
    }

    /// Adds a write.
    pub fn add(&mut self, start: u64, length: u64) {
        let index = (self.count % KEPT as u64) as usize;
        self.count += 1;
        let range = Range {
            start,
            end: start.saturating_add(length),
        };
        let entry = (range, self.count);
        match self.entries.get_mut(index) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
    }

    /// Returns true if a write after `time` touched one of the ranges, or if too many writes
    /// followed to know.
    pub fn since(&self, time: u64, ranges: &[Range]) -> bool {
        if self.count - time > KEPT as u64 {
            return true;
        }
        let mut later = self.entries.iter().filter(|(_, at)| *at > time);
        later.any(|(written, _)| ranges.iter().any(|range| range.overlaps(written)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Range = Range {
        start: 0x1000,
        end: 0x2000,
    };

    #[test]
    fn writes_after_a_time_are_found_by_range() {
        let mut writes = RecentWrites::new();
        writes.add(0x1800, 8);
        let time = writes.now();
        assert!(!writes.since(time, &[PAGE]), "that one came before");
        writes.add(0x3000, 8);
        assert!(!writes.since(time, &[PAGE]));
        writes.add(0x1fff, 8);
        assert!(writes.since(time, &[PAGE]));
    }

    #[test]
    fn forgotten_writes_count_as_overlapping() {
        let mut writes = RecentWrites::new();
        let time = writes.now();
        for _ in 0..=KEPT {
            writes.add(0x9000, 8);
        }
        assert!(writes.since(time, &[PAGE]));
    }
}
