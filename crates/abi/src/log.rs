//! Messages, if `FERROCE_LOG` asks for them.
//!
//! Programs own their standard error; nothing is written there unless a person
//! wants it: `FERROCE_LOG=warn`, `info`, `debug`, or any filter of `tracing`.

use std::io::{self, Write};
use std::sync::Once;

use tracing_subscriber::EnvFilter;

/// Begins to write messages, if they are wanted. Any further call does nothing.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Ok(filter) = std::env::var("FERROCE_LOG") else {
            return;
        };
        let _already_set = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_ansi(false)
            .with_writer(|| StandardError)
            .try_init();
    });
}

/// Standard error that may be closed.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _nobody_to_tell = rustix::io::write(rustix::stdio::stderr(), bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
