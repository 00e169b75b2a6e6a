//! Starts ferroced in the background: another process, without fork. Returns when that
//! process is ready.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use ferroce_control::wait_for;

use crate::log::Log;
use crate::options::Options;

/// Message of the background process when programs can connect.
const READY: &[u8] = b"ready\n";

/// Starts the background process and waits until it is ready. It shares our standard error
/// until then.
pub(crate) fn start(options: &Options) -> Result<()> {
    // This name runs the same program even if the file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("ferroced")
        .args(["--foreground", "--detached"]);
    if options.configured {
        command.arg("--configured");
    }
    if options.replace {
        command.arg("--replace");
    }
    if options.exit_when_unused {
        command.arg("--exit-when-unused");
    }
    if let Some(address) = options.metrics {
        command.args(["--metrics", &address.to_string()]);
    }
    if let Some(group) = &options.group {
        command.args(["--group", group]);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process for the background")?;
    let mut message = Vec::new();
    let mut stdout = child.stdout.take().context("no pipe to the new process")?;
    stdout.read_to_end(&mut message)?;
    if message == READY {
        return Ok(());
    }
    match wait_for(&mut child)? {
        Some(status) if status.code() != Some(1) => {
            bail!("the process in the background ended: {status}");
        }
        // The process has printed its error.
        _ => std::process::exit(1),
    }
}

/// Leaves the session and the working directory of the process that started this one.
pub(crate) fn leave_session() -> io::Result<()> {
    // Fails if this process leads a session already.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    Ok(())
}

/// Reports to the waiting process, and logs to `file` from now on.
pub(crate) fn report_ready(log: &Log, file: Option<&Path>) -> Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(READY)?;
    stdout.flush()?;
    Ok(log.move_to(file)?)
}
