//! The other process of the demo, reached by a socket that is standard input.
//!
//! Real programs exchange queue pair numbers and keys in just this way, by some
//! channel of their own.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// What one must know of the other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Introduction {
    pub(super) qpn: u32,
    pub(super) psn: u32,
    pub(super) gid: [u8; 16],
    pub(super) address: u64,
    pub(super) rkey: u32,
}

/// What they say to each other once connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Word {
    /// The receiver is ready, or memory is as agreed.
    Ready,
    /// What was sent has been checked.
    Checked,
    /// That was all.
    Done,
}

pub(super) struct Partner {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Partner {
    pub(super) fn on_stdin() -> Result<Partner> {
        let fd = std::io::stdin().as_fd().try_clone_to_owned()?;
        let writer = UnixStream::from(fd);
        Ok(Partner {
            reader: BufReader::new(writer.try_clone()?),
            writer,
        })
    }

    pub(super) fn say<T: Serialize>(&mut self, what: &T) -> Result<()> {
        let mut line = serde_json::to_string(what)?;
        line.push('\n');
        self.writer
            .write_all(line.as_bytes())
            .context("the other process is gone")
    }

    pub(super) fn hear<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            bail!("the other process is gone");
        }
        Ok(serde_json::from_str(&line)?)
    }

    pub(super) fn expect(&mut self, word: Word) -> Result<()> {
        let heard: Word = self.hear()?;
        if heard != word {
            bail!("the other process says {heard:?} instead of {word:?}");
        }
        Ok(())
    }
}
