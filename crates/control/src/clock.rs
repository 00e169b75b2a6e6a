//! Time and sleep, from the system.

use std::time::{Duration, Instant};

use rustix::time::Timespec;

#[allow(
    clippy::disallowed_methods,
    reason = "the start of ferroced has a deadline"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Sleeps. A signal ends the sleep early.
pub(crate) fn pause(duration: Duration) {
    let timeout = Timespec::try_from(duration).ok();
    let _ = rustix::event::poll(&mut [], timeout.as_ref());
}
