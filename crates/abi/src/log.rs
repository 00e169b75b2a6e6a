//! The log on standard error, which `FERROCE_LOG` enables.
//!
//! Standard error belongs to the program, so the log is off by default. `FERROCE_LOG` is
//! `warn`, `info` or `debug`, or has a level for a module, as in `ferroce_device=debug,warn`.

use std::sync::Once;

use ferroce_log::{Filter, Logger, VARIABLE};

/// Starts the log if `FERROCE_LOG` is set. Later calls do nothing.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Ok(text) = std::env::var(VARIABLE) else {
            return;
        };
        match Filter::parse(&text) {
            // If the program has a subscriber of its own, that one gets the messages.
            Ok(filter) => drop(Logger::new(filter, write).start()),
            Err(error) => write(format!("ferroce: {error}\n").as_bytes()),
        }
    });
}

/// Writes to standard error, which may be closed.
fn write(line: &[u8]) {
    let _closed = rustix::io::write(rustix::stdio::stderr(), line);
}
