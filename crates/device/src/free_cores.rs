//! Tells whether a processor is free for a thread that spins.
//!
//! A thread that looks for packets without sleep answers three times as fast as one that
//! sleeps. But if every processor has a thread to run, it delays the program that it
//! serves, or the peer on the same machine.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ferroce_roce::Time;

/// Time for which an answer is used again: reading the kernel's count takes 2 us.
const VALID_NS: u64 = 1_000_000;

/// Variable with the number of processors that threads of Ferroce assume, instead of those that
/// the process may use.
const VARIABLE: &str = "FERROCE_PROCESSORS";

/// Returns the number of processors that the current thread may use.
pub(crate) fn processors() -> usize {
    let chosen = std::env::var(VARIABLE).ok();
    let chosen = chosen.and_then(|number| number.parse().ok());
    let allowed = || std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    chosen.unwrap_or_else(allowed)
}

/// The count of threads that run or are ready to run, beside the processors that this
/// thread may use.
#[derive(Debug)]
pub(crate) struct FreeCores {
    /// `/proc/loadavg`, whose fourth field is the count; none if it cannot be opened.
    loadavg: Option<File>,
    allowed: usize,
    valid_until: Time,
    /// Processors without a thread, and the one of the calling thread.
    free: usize,
}

impl FreeCores {
    /// Creates the count for the current thread.
    pub(crate) fn new() -> FreeCores {
        let allowed = processors();
        FreeCores {
            // With one processor the answer is known.
            loadavg: File::open("/proc/loadavg").ok().filter(|_| allowed > 1),
            allowed,
            valid_until: Time::ZERO,
            free: 0,
        }
    }

    /// Returns true if the threads that run, the calling thread included, and `others` that
    /// sleep only for a moment have a processor each. Threads that may run elsewhere count as
    /// well: the kernel does not say where they may run.
    pub(crate) fn has_one(&mut self, now: Time, others: usize) -> bool {
        if now >= self.valid_until {
            self.valid_until = now.after_nanos(VALID_NS);
            let runnable = self.runnable().unwrap_or(usize::MAX);
            self.free = self.allowed.saturating_add(1).saturating_sub(runnable);
        }
        self.free > others
    }

    /// Returns true if the thread may use more than one processor.
    pub(crate) fn are_several(&self) -> bool {
        self.allowed > 1
    }

    fn runnable(&self) -> Option<usize> {
        let mut line = [0; 128];
        let length = self.loadavg.as_ref()?.read_at(&mut line, 0).ok()?;
        runnable(&line[..length])
    }
}

/// Returns the number before the slash in the fourth field of `/proc/loadavg`.
fn runnable(line: &[u8]) -> Option<usize> {
    let line = core::str::from_utf8(line).ok()?;
    let (count, _all) = line.split_ascii_whitespace().nth(3)?.split_once('/')?;
    count.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_read_from_loadavg() {
        assert_eq!(runnable(b"0.50 0.40 0.30 3/812 12345\n"), Some(3));
        assert_eq!(runnable(b"0.50 0.40 0.30\n"), None);
        assert_eq!(runnable(b""), None);
        let mut cores = FreeCores::new();
        cores.allowed = usize::MAX;
        assert_eq!(
            cores.has_one(Time::from_nanos(1), 0),
            cores.loadavg.is_some()
        );
    }

    #[test]
    fn answer_is_used_again_for_a_millisecond() {
        let mut cores = FreeCores::new();
        let asked = Time::from_nanos(1);
        cores.has_one(asked, 0);
        cores.free = 2;
        cores.allowed = 0;
        assert!(cores.has_one(asked.after_nanos(VALID_NS - 1), 1));
        assert!(!cores.has_one(asked.after_nanos(VALID_NS - 1), 2));
        assert!(!cores.has_one(asked.after_nanos(VALID_NS), 0));
    }
}
