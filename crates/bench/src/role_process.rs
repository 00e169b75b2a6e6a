//! A process of a measurement: this executable again, which does as it is told.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use ferroce_endpoint::Partner;
use ferroce_testnet::namespace;
use serde::{Deserialize, Serialize};

/// Such a process, with `--role ROLE`. It ends with us.
#[derive(Debug)]
pub struct Player {
    /// The line to it: its standard input.
    pub partner: Partner,
    process: Child,
}

impl Player {
    /// Starts it, in the network that `place` names if it is not our own.
    ///
    /// # Errors
    /// If that fails.
    pub fn start(role: &str, place: Option<OwnedFd>) -> Result<Player> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--role", role])
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null());
        if let Some(place) = place {
            namespace::place(&mut command, place);
        }
        Ok(Player {
            partner: Partner::new(ours)?,
            process: command.spawn().context("cannot start a process")?,
        })
    }

    /// Gives an order, and waits for the answer.
    ///
    /// # Errors
    /// If it is gone.
    pub fn tell<T: for<'de> Deserialize<'de>>(&mut self, order: &impl Serialize) -> Result<T> {
        self.partner.say(order)?;
        self.partner.hear()
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
