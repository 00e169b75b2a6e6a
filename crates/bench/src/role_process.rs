//! A process of a measurement: this executable with `--role ROLE`.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use ferroce_endpoint::Partner;
use ferroce_testnet::namespace;
use serde::{Deserialize, Serialize};

/// A process of a measurement, killed when dropped.
#[derive(Debug)]
pub struct RoleProcess {
    /// The connection to the process, which is its standard input.
    pub partner: Partner,
    process: Child,
}

impl RoleProcess {
    /// Starts the process in the network namespace `place`, or in the current one.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(role: &str, place: Option<OwnedFd>) -> Result<RoleProcess> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--role", role])
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null());
        if let Some(place) = place {
            namespace::place(&mut command, place);
        }
        Ok(RoleProcess {
            partner: Partner::new(ours)?,
            process: command.spawn().context("cannot start a process")?,
        })
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn request<T: for<'de> Deserialize<'de>>(&mut self, request: &impl Serialize) -> Result<T> {
        self.partner.say(request)?;
        self.partner.hear()
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
