//! Messages, if `FERROCE_LOG` asks for them.
//!
//! Standard error belongs to the program. Nothing is written there unless a person asks:
//! `FERROCE_LOG=warn`, `info`, `debug`, or a level for a module, as in
//! `ferroce_device=debug,warn`.

use std::sync::Once;

use ferroce_log::{Filter, Logger, VARIABLE};

/// Begins to write messages, if they are wanted. Any further call does nothing.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Ok(text) = std::env::var(VARIABLE) else {
            return;
        };
        match Filter::parse(&text) {
            // A program may bring a subscriber of its own, which then has the messages.
            Ok(filter) => drop(Logger::new(filter, write).start()),
            Err(error) => write(format!("ferroce: {error}\n").as_bytes()),
        }
    });
}

/// Writes to standard error, which may be closed.
fn write(line: &[u8]) {
    let _closed = rustix::io::write(rustix::stdio::stderr(), line);
}
