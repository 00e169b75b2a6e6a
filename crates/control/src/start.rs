//! Starting ferroced.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::clock::{now, pause};
use crate::connection::{Connection, find_daemon};
use crate::error::Error;

/// How long one is looked for that comes and goes.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long until the next is started if one has gone at once.
const AGAIN: Duration = Duration::from_millis(20);

/// Connects to ferroced, and starts it first if none runs. `program` is the executable
/// to start, which is called as `ferroced`; it goes to the background by itself and
/// returns when it is ready.
pub fn find_or_start(program: &OsStr) -> Result<Connection, Error> {
    // One with nothing to do may end between our steps: then begin again.
    let until = now() + PATIENCE;
    let mut wait = Duration::ZERO;
    loop {
        match find_daemon()? {
            Some(connection) => return Ok(connection),
            None if now() < until => pause(wait),
            None => return Err(Error::NoDaemon),
        }
        start(program)?;
        wait = AGAIN;
    }
}

/// Runs `program` as `ferroced`, one that ends when it is no longer needed.
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
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let said = said.strip_prefix("error: ").unwrap_or(said);
    Err(Error::Start(if said.is_empty() {
        output.status.to_string()
    } else {
        said.into()
    }))
}
