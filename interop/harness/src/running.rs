//! Running programs, which are killed when their handle is dropped.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::sockets::is_listening;

/// A running program. Its process group is killed when this is dropped.
pub struct Running {
    child: Child,
    what: &'static str,
    log: PathBuf,
}

impl Running {
    /// Starts a command, which should be the leader of a process group. Its output goes to the
    /// file `what` in `folder`.
    ///
    /// # Errors
    /// If the command cannot be started.
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

    /// Returns the output so far.
    ///
    /// # Errors
    /// If the output file cannot be read.
    pub fn output(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.log)?).into_owned())
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process group, also if its leader has ended.
    pub fn kill_group(&mut self) {
        if let Ok(pid) = self.pid() {
            let _gone = kill_process_group(pid, Signal::KILL);
        }
    }

    fn pid(&self) -> Result<Pid> {
        let pid = i32::try_from(self.child.id())?;
        Pid::from_raw(pid).context("the process ID is zero")
    }

    /// Waits for the program's end; returns `None` if it does not end in time.
    ///
    /// # Errors
    /// If the wait fails.
    pub fn wait_for_end(&mut self, until: Instant) -> Result<Option<ExitStatus>> {
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

    /// Appends a list of the program's threads to its output, if it runs: where each waits in the
    /// kernel tells why a program does not end.
    pub fn note_threads(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Ok(mut file) = File::options().append(true).open(&self.log)
        {
            // The note helps people. Without it the case fails as well.
            let _incomplete = file.write_all(threads(self.id()).as_bytes());
        }
    }

    /// Waits for the program's end and checks that its exit status is 0.
    ///
    /// # Errors
    /// If the program does not end in time, or fails.
    pub fn wait_for_success(&mut self, until: Instant) -> Result<()> {
        let end = self.wait_for_end(until)?;
        if end.is_none() {
            self.note_threads();
        }
        match end {
            None => bail!("the {} did not end in time", self.what),
            Some(status) if status.success() => Ok(()),
            Some(status) => match status.signal() {
                Some(signal) => bail!("the {} was killed by signal {signal}", self.what),
                None => bail!("the {} failed ({status})", self.what),
            },
        }
    }

    /// Waits until a process listens on a TCP port of this network namespace.
    ///
    /// # Errors
    /// If no process listens in time, or the program ends before that.
    pub fn wait_for_listener(&mut self, port: u16, until: Instant) -> Result<()> {
        self.wait_until_ready(until, || Ok(is_listening(port)?))
    }

    /// Waits until `sign` returns true: the program is then ready for clients.
    ///
    /// # Errors
    /// If the program is not ready in time, or ends before that.
    pub fn wait_until_ready(
        &mut self,
        until: Instant,
        sign: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        while !sign()? {
            if let Some(status) = self.child.try_wait()? {
                bail!("the {} ended before it was ready ({status})", self.what);
            }
            ensure!(now() < until, "the {} was not ready in time", self.what);
            pause();
        }
        Ok(())
    }

    /// Waits until the output contains `text`.
    ///
    /// # Errors
    /// If the text does not appear in time, or the program ends before that.
    pub fn wait_for_output(&mut self, text: &str, patience: Duration) -> Result<()> {
        let until = deadline(patience);
        while !self.output()?.contains(text) {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the {} ended without printing \"{text}\" ({status})",
                    self.what
                );
            }
            ensure!(now() < until, "the {} did not print \"{text}\"", self.what);
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

/// Returns the instant `patience` from now.
pub fn deadline(patience: Duration) -> Instant {
    now() + patience
}

/// Returns the current time.
#[allow(clippy::disallowed_methods)] // programs run in real time
pub fn now() -> Instant {
    Instant::now()
}

/// Sleeps 5 ms, between two polls of a condition without a descriptor to wait for.
#[allow(clippy::disallowed_methods)] // the kernel's socket tables cannot be waited for
pub fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

/// Returns a line for each thread of a process: its name, the system call, and, for root, the
/// functions of the kernel in which it waits.
fn threads(pid: u32) -> String {
    let mut text = format!("\n--- threads of process {pid}, which does not end ---\n");
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stack = read("stack");
        let functions: Vec<_> = stack
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .take(6)
            .collect();
        let (name, call) = (read("comm"), read("syscall"));
        let (name, call) = (name.trim(), call.trim());
        let _to_a_string = writeln!(text, "{name}: syscall {call}; {}", functions.join(" < "));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn program_that_does_not_end_leaves_a_list_of_its_threads() {
        let folder = std::env::temp_dir().join(format!("ferroce-running-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let mut sleep = Command::new("sleep");
        sleep.arg("600").process_group(0);
        let mut sleep = Running::spawn(&mut sleep, &folder, "server").expect("a program");
        #[allow(clippy::disallowed_methods)] // the time has passed already
        let failed = sleep.wait_for_success(Instant::now());
        assert!(failed.is_err());
        let output = sleep.output().expect("the output");
        fs::remove_dir_all(&folder).expect("the folder");
        assert!(output.contains("threads of process"), "{output}");
        assert!(output.contains(": syscall "), "{output}");
    }
}
