//! Going to the background without forking: start another process, and return when
//! that one says it is ready.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::log::Log;
use crate::options::Options;

/// What the process that stays says when programs can connect.
const READY: &[u8] = b"ready\n";

/// Starts the process that stays, and waits until it is ready. Its complaints go to our
/// standard error.
pub(crate) fn start(options: &Options) -> Result<()> {
    // By this name it is the same program even if the file has been replaced.
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
    if let Some(group) = &options.group {
        command.args(["--group", group]);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process for the background")?;
    let mut said = Vec::new();
    let mut stdout = child.stdout.take().context("no pipe to the new process")?;
    stdout.read_to_end(&mut said)?;
    if said == READY {
        return Ok(());
    }
    let status = child.wait()?;
    if status.code() == Some(1) {
        // It has said why.
        std::process::exit(1);
    }
    bail!("the process in the background ended: {status}");
}

/// Leaves the session of whoever started us.
pub(crate) fn leave_session() -> io::Result<()> {
    // Fails if we lead a session already, and then there is nothing to leave.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    Ok(())
}

/// Tells the process that waits, and from now on logs to this file.
pub(crate) fn report_ready(log: &Log, file: Option<&Path>) -> Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(READY)?;
    stdout.flush()?;
    Ok(log.move_to(file)?)
}
