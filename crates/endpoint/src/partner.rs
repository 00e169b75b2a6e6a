//! Another process, reached over a Unix socket with lines of JSON.
//!
//! Real programs exchange queue pair numbers and keys in the same way, over a channel
//! outside of RDMA.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// A connection to the other process.
#[derive(Debug)]
pub struct Partner {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Partner {
    /// Wraps a socket connected to the other process.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn new(socket: UnixStream) -> Result<Partner> {
        Ok(Partner {
            reader: BufReader::new(socket.try_clone()?),
            writer: socket,
        })
    }

    /// Uses the socket that is this process's standard input.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn on_stdin() -> Result<Partner> {
        let fd = std::io::stdin().as_fd().try_clone_to_owned()?;
        Partner::new(UnixStream::from(fd))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the other process has closed the socket.
    pub fn say<T: Serialize>(&mut self, what: &T) -> Result<()> {
        let mut line = serde_json::to_string(what)?;
        line.push('\n');
        self.writer
            .write_all(line.as_bytes())
            .context("the other process is gone")
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// If the other process has closed the socket, or the message has another type.
    pub fn hear<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T> {
        match self.hear_or_end()? {
            Some(what) => Ok(what),
            None => bail!("the other process is gone"),
        }
    }

    /// Waits for a message as [`Partner::hear`] does; returns `None` when the other process
    /// has closed the socket.
    ///
    /// # Errors
    /// If the message has another type.
    pub fn hear_or_end<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let what = serde_json::from_str(&line);
        Ok(Some(what.with_context(|| {
            format!("unexpected message from the other process: {line}")
        })?))
    }

    /// Waits for a message and checks that it is the wanted one.
    ///
    /// # Errors
    /// If the message is another one, or none comes.
    pub fn expect<T>(&mut self, wanted: T) -> Result<()>
    where
        T: for<'de> Deserialize<'de> + PartialEq + core::fmt::Debug,
    {
        let heard: T = self.hear()?;
        ensure!(
            heard == wanted,
            "the other process sent {heard:?} instead of {wanted:?}"
        );
        Ok(())
    }
}
