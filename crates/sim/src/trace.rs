//! The human-readable log of a run.

use std::collections::VecDeque;
use std::io::{self, Write};

use ferroce_roce::Time;

/// The destination of the log.
pub(crate) enum Trace {
    /// No log; lines are not even formatted.
    Off,
    /// Standard output, line by line.
    Print,
    /// Memory, which keeps the last `keep` lines.
    Tail {
        /// The last lines, oldest first.
        lines: VecDeque<String>,
        /// Number of lines kept.
        keep: usize,
    },
}

impl Trace {
    pub(crate) fn tail(keep: usize) -> Trace {
        Trace::Tail {
            lines: VecDeque::new(),
            keep,
        }
    }

    /// Adds a line about a host.
    pub(crate) fn host(&mut self, now: Time, host: usize, text: impl FnOnce() -> String) {
        self.line(now, || format!("host {host}  {}", text()));
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, now: Time, text: impl FnOnce() -> String) {
        let format = |text: String| {
            let ns = now.as_nanos();
            format!("{:>9}.{:03} us  {text}", ns / 1000, ns % 1000)
        };
        match self {
            Trace::Off => {}
            Trace::Print => {
                // A closed pipe, as with `| head`, is no error.
                let _closed = writeln!(io::stdout(), "{}", format(text()));
            }
            Trace::Tail { lines, keep } => {
                if lines.len() == *keep {
                    lines.pop_front();
                }
                lines.push_back(format(text()));
            }
        }
    }
}
