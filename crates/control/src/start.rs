//! Starts ferroced.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::clock::{now, pause};
use crate::connection::{Connection, find_daemon};
use crate::error::Error;

/// Time until this gives up on a ferroced that starts and ends again.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before ferroced is started again.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Connects to ferroced, and starts it first if none runs. `program` is the executable to
/// start under the name `ferroced`. It goes to the background and returns when it is ready.
pub fn find_or_start(program: &OsStr) -> Result<Connection, Error> {
    // A ferroced without clients may end between the start and the connect: then retry.
    let until = now() + TIMEOUT;
    let mut wait = Duration::ZERO;
    loop {
        match find_daemon()? {
            Some(connection) => return Ok(connection),
            None if now() < until => pause(wait),
            None => return Err(Error::NoDaemon),
        }
        start(program)?;
        wait = RETRY_DELAY;
    }
}

/// Runs `program` as a `ferroced` that ends when it is unused.
pub fn start(program: &OsStr) -> Result<(), Error> {
    let output = Command::new(program)
        .arg0("ferroced")
        .arg("--exit-when-unused")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| Error::Start(format!("{}: {e}", program.to_string_lossy())))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr = stderr.trim();
    let message = stderr.strip_prefix("error: ").unwrap_or(stderr);
    Err(Error::Start(if message.is_empty() {
        output.status.to_string()
    } else {
        message.into()
    }))
}
