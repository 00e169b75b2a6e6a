//! Reports of a program's objects that are being written to clients of `rdma resource`.
//!
//! The client's thread writes them without waiting: a reader that does not read must not
//! delay the answers to other threads.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;

use crate::clock::now;

/// Longest wait for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Reports(Vec<Report>);

#[derive(Debug)]
struct Report {
    stream: Arc<OwnedFd>,
    rest: Vec<u8>,
    /// The report is given up at this time, unless the reader takes some of it.
    until: Instant,
}

impl Reports {
    /// Starts to write a report. Returns true if it is not complete.
    pub(super) fn add(&mut self, stream: OwnedFd, text: &[u8]) -> bool {
        self.0.push(Report {
            stream: Arc::new(stream),
            rest: text.to_vec(),
            until: now() + PATIENCE,
        });
        self.advance();
        !self.0.is_empty()
    }

    /// Returns the streams to wait for. No lock is held while a thread waits, so they are
    /// shared.
    pub(super) fn streams(&self) -> Vec<Arc<OwnedFd>> {
        let streams = self.0.iter().map(|report| Arc::clone(&report.stream));
        streams.collect()
    }

    /// Returns the time until a report is given up.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let until = self.0.iter().map(|report| report.until).min()?;
        Some(until.saturating_duration_since(now()))
    }

    /// Writes what the streams have room for. Drops reports that are complete, or whose
    /// readers do not read.
    pub(super) fn advance(&mut self) {
        self.0.retain_mut(Report::advance);
    }
}

impl Report {
    /// Returns false if the report is over.
    fn advance(&mut self) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while !self.rest.is_empty() {
            match rustix::net::send(&*self.stream, &self.rest, flags) {
                Ok(sent) => {
                    self.rest.drain(..sent);
                    self.until = now() + PATIENCE;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if now() < self.until => return true,
                Err(error) => {
                    tracing::debug!("the client does not read the list of objects: {error}");
                    return false;
                }
            }
        }
        false
    }
}
