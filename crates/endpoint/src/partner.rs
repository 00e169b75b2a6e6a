//! Another process, reached by a socket: lines of JSON.
//!
//! Real programs exchange queue pair numbers and keys in just this way, by some
//! channel of their own.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The other process.
#[derive(Debug)]
pub struct Partner {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Partner {
    /// The process at the other end of a socket.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn new(socket: UnixStream) -> Result<Partner> {
        Ok(Partner {
            reader: BufReader::new(socket.try_clone()?),
            writer: socket,
        })
    }

    /// The process whose socket is our standard input.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn on_stdin() -> Result<Partner> {
        let fd = std::io::stdin().as_fd().try_clone_to_owned()?;
        Partner::new(UnixStream::from(fd))
    }

    /// Says something.
    ///
    /// # Errors
    /// If nobody hears it.
    pub fn say<T: Serialize>(&mut self, what: &T) -> Result<()> {
        let mut line = serde_json::to_string(what)?;
        line.push('\n');
        self.writer
            .write_all(line.as_bytes())
            .context("the other process is gone")
    }

    /// Waits for something to be said.
    ///
    /// # Errors
    /// If the other process is gone, or speaks of something else.
    pub fn hear<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T> {
        match self.hear_or_end()? {
            Some(what) => Ok(what),
            None => bail!("the other process is gone"),
        }
    }

    /// As [`Partner::hear`]; nothing when the other process is gone.
    ///
    /// # Errors
    /// If it speaks of something else.
    pub fn hear_or_end<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let what = serde_json::from_str(&line);
        Ok(Some(what.with_context(|| {
            format!("the other process said {line}")
        })?))
    }

    /// Waits for something certain to be said.
    ///
    /// # Errors
    /// If something else is.
    pub fn expect<T>(&mut self, wanted: T) -> Result<()>
    where
        T: for<'de> Deserialize<'de> + PartialEq + core::fmt::Debug,
    {
        let heard: T = self.hear()?;
        ensure!(
            heard == wanted,
            "the other process says {heard:?} instead of {wanted:?}"
        );
        Ok(())
    }
}
