//! The subscriber that writes lines.

use rustix::time::{ClockId, clock_gettime};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, SetGlobalDefaultError};
use tracing::{Event, Metadata, Subscriber};

use crate::Filter;
use crate::line::{Format, line};

/// Writes the events that a filter selects, one line each.
pub struct Logger<W> {
    filter: Filter,
    format: Format,
    write: W,
}

impl<W: Fn(&[u8]) + Send + Sync + 'static> Logger<W> {
    /// Returns a logger that hands each line, with its newline, to `write`.
    pub fn new(filter: Filter, write: W) -> Logger<W> {
        Logger {
            filter,
            format: Format {
                modules: true,
                colours: false,
            },
            write,
        }
    }

    /// Leaves the names of modules out.
    #[must_use]
    pub fn without_modules(mut self) -> Logger<W> {
        self.format.modules = false;
        self
    }

    /// Colours the levels, for a terminal.
    #[must_use]
    pub fn with_colours(mut self, colours: bool) -> Logger<W> {
        self.format.colours = colours;
        self
    }

    /// Makes this the logger of the process.
    ///
    /// # Errors
    /// If the process has one.
    pub fn start(self) -> Result<(), SetGlobalDefaultError> {
        tracing::subscriber::set_global_default(self)
    }
}

impl<W: Fn(&[u8]) + Send + Sync + 'static> Subscriber for Logger<W> {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // The filter looks at nothing else: `tracing` need not call `enabled` again.
        if self.enabled(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.max_level())
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.filter.selects(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        (self.write)(line(event, self.format, now()).as_bytes());
    }

    // Spans are never enabled, so `tracing` calls none of the rest.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Microseconds since 1970.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1000
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Logs what `body` says, and returns the lines without their timestamps.
    fn logged(filter: &str, body: impl FnOnce()) -> String {
        let lines = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&lines);
        let logger = Logger::new(Filter::parse(filter).expect("a filter"), move |line| {
            let line = std::str::from_utf8(line).expect("text");
            let (time, rest) = line.split_once(' ').expect("a time");
            assert!(time.ends_with('Z') && time.len() == 27, "{time}");
            lines.lock().unwrap().push_str(rest);
        });
        tracing::subscriber::with_default(logger, body);
        let lines = written.lock().unwrap();
        lines.clone()
    }

    #[test]
    fn an_event_is_one_line_with_its_fields() {
        let said = logged("warn", || {
            let error = std::io::Error::from_raw_os_error(2);
            tracing::warn!(%error, qpn = 17, name = "a\nb", "not {}", "found");
            tracing::info!("not selected");
        });
        let module = module_path!();
        assert_eq!(
            said,
            format!(
                " WARN {module}: not found error=No such file or directory (os error 2) \
                 qpn=17 name=\"a\\nb\"\n"
            )
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        let name = "a\n\x1b[2J";
        let said = logged("info", || tracing::info!(%name, "seen"));
        assert!(said.ends_with("seen name=a\\n\\u{1b}[2J\n"), "{said:?}");
    }

    #[test]
    fn the_default_is_silence() {
        let said = logged("", || {
            let _span = tracing::error_span!("span").entered();
            tracing::error!("not selected");
        });
        assert_eq!(said, "");
    }
}
