//! Reports of a program's objects that are being written to clients of `rdma resource`.
//!
//! The client's thread writes them without waiting: a reader that does not read must not
//! delay the answers to other threads.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;

use crate::clock::now;

/// Longest wait for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Reports(Vec<Report>);

#[derive(Debug)]
struct Report {
    stream: OwnedFd,
    rest: Vec<u8>,
    /// The report is given up at this time, unless the reader takes some of it.
    until: Instant,
}

impl Reports {
    /// Starts to write a report.
    pub(super) fn add(&mut self, stream: OwnedFd, text: &[u8]) {
        self.0.push(Report {
            stream,
            rest: text.to_vec(),
            until: now() + PATIENCE,
        });
        self.advance();
    }

    /// Returns the streams to wait for.
    pub(super) fn streams(&self) -> impl Iterator<Item = &OwnedFd> {
        self.0.iter().map(|report| &report.stream)
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
            match rustix::net::send(&self.stream, &self.rest, flags) {
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
