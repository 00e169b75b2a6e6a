//! Keepalives of idle streams.
//!
//! One thread serves all streams with SO_KEEPALIVE; it starts with the first of them. A
//! keepalive is a WRITE of 0 bytes. If the peer does not acknowledge it, the retries of the
//! transport end the connection.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ferroce_device::start_thread;

use super::Stream;
use crate::sys;

/// A stream with keepalives.
struct Entry {
    stream: Weak<Stream>,
    interval: Duration,
    next: Duration,
}

/// The thread that sends keepalives.
#[derive(Default)]
struct Service {
    entries: Mutex<Vec<Entry>>,
    changed: Condvar,
}

/// Sends keepalives for a stream every so many seconds; `None` stops them.
pub(super) fn set(stream: &Arc<Stream>, seconds: Option<u32>) {
    static SERVICE: OnceLock<&Service> = OnceLock::new();
    if seconds.is_none() && SERVICE.get().is_none() {
        return;
    }
    let service = SERVICE.get_or_init(|| {
        let service: &Service = Box::leak(Box::default());
        // One thread per process, with a clock of its own.
        if let Err(error) = start_thread("rsocket-alive".into(), || service.run()) {
            tracing::warn!("rsockets send no keepalives: the thread cannot start: {error}");
        }
        service
    });
    let mut entries = service.lock();
    let this = Arc::downgrade(stream);
    entries.retain(|entry| !Weak::ptr_eq(&entry.stream, &this) && entry.stream.strong_count() > 0);
    if let Some(seconds) = seconds {
        let interval = Duration::from_secs(seconds.into());
        entries.push(Entry {
            stream: this,
            interval,
            next: sys::now() + interval,
        });
    }
    service.changed.notify_one();
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            for stream in self.due() {
                stream.keep_alive();
            }
        }
    }

    /// Sleeps until keepalives are due, and returns their streams.
    fn due(&self) -> Vec<Arc<Stream>> {
        let mut entries = self.lock();
        loop {
            let now = sys::now();
            entries.retain(|entry| entry.stream.strong_count() > 0);
            let mut due = Vec::new();
            for entry in entries.iter_mut().filter(|entry| entry.next <= now) {
                entry.next = now + entry.interval;
                due.extend(entry.stream.upgrade());
            }
            if !due.is_empty() {
                return due;
            }
            let next = entries.iter().map(|entry| entry.next).min();
            entries = match next {
                None => self
                    .changed
                    .wait(entries)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let slept = self.changed.wait_timeout(entries, next.saturating_sub(now));
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
