//! Programs that run, and do not outlive their runner.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::sockets::is_listening;

/// A program that runs, and does not outlive us.
pub struct Running {
    child: Child,
    what: &'static str,
    log: PathBuf,
}

impl Running {
    /// Starts a command, which should be the head of a process group; what it says goes to
    /// the file `what` in `folder`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: &mut Command, folder: &Path, what: &'static str) -> Result<Running> {
        let log = folder.join(what);
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let errors = file.try_clone()?;
        let child = command
            .stdout(file)
            .stderr(errors)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start the {what}"))?;
        Ok(Running { child, what, log })
    }

    /// What it has said so far.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.log)?).into_owned())
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Result<Pid> {
        let pid = i32::try_from(self.child.id())?;
        Pid::from_raw(pid).context("a process without a number")
    }

    /// Waits for its end; none if it does not end in time.
    ///
    /// # Errors
    /// If the system does not let us wait.
    pub fn ends(&mut self, until: Instant) -> Result<Option<ExitStatus>> {
        if let Ok(process) = pidfd_open(self.pid()?, PidfdFlags::empty()) {
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            while self.child.try_wait()?.is_none() {
                let left = until.saturating_duration_since(now());
                if left.is_zero() {
                    return Ok(None);
                }
                let left = Timespec::try_from(left)?;
                match poll(&mut fds, Some(&left)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(Some(self.child.wait()?))
    }

    /// Waits for its end, which must be a good one.
    ///
    /// # Errors
    /// If it does not end in time, or badly.
    pub fn succeeds(&mut self, until: Instant) -> Result<()> {
        match self.ends(until)? {
            None => bail!("the {} hangs", self.what),
            Some(status) if status.success() => Ok(()),
            Some(status) => match status.signal() {
                Some(signal) => bail!("the {} was killed by signal {signal}", self.what),
                None => bail!("the {} failed ({status})", self.what),
            },
        }
    }

    /// Waits until somebody listens on a TCP port of this network namespace.
    ///
    /// # Errors
    /// If nobody does in time, or the program ends before.
    pub fn listens(&mut self, port: u16, until: Instant) -> Result<()> {
        self.is_ready(until, || Ok(is_listening(port)?))
    }

    /// Waits until there is a sign that it can be called.
    ///
    /// # Errors
    /// If there is none in time, or the program ends before.
    pub fn is_ready(&mut self, until: Instant, sign: impl Fn() -> Result<bool>) -> Result<()> {
        while !sign()? {
            if let Some(status) = self.child.try_wait()? {
                bail!("the {} ended before it was ready ({status})", self.what);
            }
            ensure!(now() < until, "the {} is never ready", self.what);
            pause();
        }
        Ok(())
    }

    /// Waits until it has said something.
    ///
    /// # Errors
    /// If it does not in time.
    pub fn says(&mut self, text: &str, patience: Duration) -> Result<()> {
        let until = deadline(patience);
        while !self.said()?.contains(text) {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the {} ended and had not said \"{text}\" ({status})",
                    self.what
                );
            }
            ensure!(now() < until, "the {} does not say \"{text}\"", self.what);
            pause();
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let (Ok(pid), Ok(None)) = (self.pid(), self.child.try_wait()) {
            let _gone = kill_process_group(pid, Signal::KILL);
            let _reaped = self.child.wait();
        }
    }
}

/// So much time from now.
pub fn deadline(patience: Duration) -> Instant {
    now() + patience
}

/// The time.
#[allow(clippy::disallowed_methods)] // programs run in real time
pub fn now() -> Instant {
    Instant::now()
}

/// Between two looks at something that cannot be waited for.
#[allow(clippy::disallowed_methods)] // neither a table of sockets nor a file wakes anybody
pub fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}
