//! Starts ferroced.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
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
    let mut command = Command::new(program);
    command
        .arg0("ferroced")
        .arg("--exit-when-unused")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let (status, stderr) = run(&mut command)
        .map_err(|e| Error::Start(format!("{}: {e}", program.to_string_lossy())))?;
    let stderr = stderr.trim();
    let message = stderr.strip_prefix("error: ").unwrap_or(stderr);
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) if message.is_empty() => Err(Error::Start(status.to_string())),
        // A ferroced that fails says why.
        None if message.is_empty() => Ok(()),
        _ => Err(Error::Start(message.into())),
    }
}

/// Runs a command. Returns its status, as [`wait_for`] does, and its standard error.
fn run(command: &mut Command) -> io::Result<(Option<ExitStatus>, String)> {
    let mut child = command.spawn()?;
    let mut stderr = Vec::new();
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_end(&mut stderr)?;
    }
    let status = wait_for(&mut child)?;
    Ok((status, String::from_utf8_lossy(&stderr).into_owned()))
}

/// Waits until a child has ended. Returns none if this process ignores SIGCHLD, as its parent may
/// have chosen: then the kernel discards the status.
pub fn wait_for(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    match child.wait() {
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        status => status.map(Some),
    }
}
