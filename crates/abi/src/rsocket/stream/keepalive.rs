//! Streams whose peers are to hear from us, even if programs are silent.
//!
//! One thread for all of them, started with the first one. It writes nothing to the peer's
//! memory; that the peer's adapter does not acknowledge this is how a dead one is found.

use core::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::Stream;
use crate::rsocket::sys;

struct Entry {
    stream: Weak<Stream>,
    every: Duration,
    next: Duration,
}

#[derive(Default)]
struct Service {
    entries: Mutex<Vec<Entry>>,
    changed: Condvar,
}

/// Has a stream kept alive after so many seconds, or no longer.
pub(super) fn set(stream: &Arc<Stream>, seconds: Option<u32>) -> Result<(), c_int> {
    static SERVICE: OnceLock<&Service> = OnceLock::new();
    if seconds.is_none() && SERVICE.get().is_none() {
        return Ok(());
    }
    let service = SERVICE.get_or_init(|| {
        let service: &Service = Box::leak(Box::default());
        let thread = std::thread::Builder::new().name("rsocket-alive".into());
        #[allow(clippy::disallowed_methods)] // a service of the library, not of a protocol
        let started = thread.spawn(|| service.run());
        if let Err(error) = started {
            tracing::warn!("nothing is kept alive: {error}");
        }
        service
    });
    let mut entries = service.lock();
    let this = Arc::downgrade(stream);
    entries.retain(|entry| !Weak::ptr_eq(&entry.stream, &this) && entry.stream.strong_count() > 0);
    if let Some(seconds) = seconds {
        let every = Duration::from_secs(seconds.into());
        entries.push(Entry {
            stream: this,
            every,
            next: sys::now() + every,
        });
    }
    service.changed.notify_one();
    Ok(())
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

    /// Sleeps until some streams are due.
    fn due(&self) -> Vec<Arc<Stream>> {
        let mut entries = self.lock();
        loop {
            let now = sys::now();
            entries.retain(|entry| entry.stream.strong_count() > 0);
            let mut due = Vec::new();
            for entry in entries.iter_mut().filter(|entry| entry.next <= now) {
                entry.next = now + entry.every;
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
