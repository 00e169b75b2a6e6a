//! Real time: between a program and ferroced nothing is simulated.

use std::time::{Duration, Instant};

use rustix::time::Timespec;

#[allow(clippy::disallowed_methods, reason = "how long to look for a process")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits for what nothing announces.
pub(crate) fn pause(duration: Duration) {
    let timeout = Timespec::try_from(duration).ok();
    // A signal ends it early, which does no harm.
    let _ = rustix::event::poll(&mut [], timeout.as_ref());
}
