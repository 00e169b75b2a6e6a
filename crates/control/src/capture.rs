//! Captures and journals of programs, as commands see them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use crate::connection::{Connection, unexpected};
use crate::error::Error;
use crate::protocol::{CaptureOptions, Process, Reply, Request};

/// A program whose packets are captured.
#[derive(Debug)]
pub struct Captured {
    /// The name of the link.
    pub link: String,
    /// The program.
    pub process: Process,
    /// The shared memory of the ring.
    pub ring: OwnedFd,
    /// The socket on which the program wakes the reader.
    pub socket: OwnedFd,
}

/// Programs that ferroced has introduced.
pub(crate) type Introduced = VecDeque<Captured>;

impl Captured {
    /// Returns a program with these descriptors; none if one is missing.
    pub(crate) fn new(link: String, process: Process, fds: Vec<OwnedFd>) -> Option<Captured> {
        let [ring, socket] = fds.try_into().ok()?;
        Some(Captured {
            link,
            process,
            ring,
            socket,
        })
    }
}

/// The journal of a program.
#[derive(Debug)]
pub struct Story {
    /// The name of the link.
    pub link: String,
    /// The program.
    pub process: Process,
    /// Seconds since the program ended; none if it runs.
    pub ended_ago: Option<u64>,
    /// The shared memory.
    pub journal: OwnedFd,
}

impl Connection {
    /// Returns the journals of programs that this user may read.
    pub fn journals(&mut self) -> Result<Vec<Story>, Error> {
        let mut stories = Vec::new();
        let mut reply = self.request(&Request::Journals)?;
        loop {
            match reply {
                (
                    Reply::Story {
                        link,
                        process,
                        ended_ago,
                    },
                    fds,
                ) => stories.extend(fds.into_iter().map(|journal| Story {
                    link: link.clone(),
                    process: process.clone(),
                    ended_ago,
                    journal,
                })),
                (Reply::Done, _) => return Ok(stories),
                (other, _) => return Err(unexpected(&other)),
            }
            reply = self.answer()?;
        }
    }

    /// Begins a capture, which lasts until the connection is dropped.
    /// [`Connection::try_captured`] returns the programs.
    pub fn capture(&mut self, options: CaptureOptions) -> Result<(), Error> {
        self.perform(&Request::Capture(options))
    }

    /// Returns the next program that is captured, if there is one; never waits.
    /// [`Error::Closed`] if ferroced has closed the connection.
    pub fn try_captured(&mut self) -> Result<Option<Captured>, Error> {
        if self.captured.is_empty() {
            // No link events are subscribed: this receives programs.
            self.try_event()?;
        }
        Ok(self.captured.pop_front())
    }
}
