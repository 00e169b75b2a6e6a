//! The log of a run, for people.

use std::collections::VecDeque;
use std::io::{self, Write};

use ferroce_transport::Time;

/// Where the log goes.
pub(crate) enum Trace {
    /// Nowhere, and nothing is formatted.
    Off,
    /// To standard output as it happens.
    Print,
    /// Into memory, the last so many lines.
    Tail {
        /// The lines.
        lines: VecDeque<String>,
        /// How many are kept.
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
                // Whoever reads may have seen enough.
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
