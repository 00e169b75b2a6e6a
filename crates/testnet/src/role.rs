//! Additional processes for a test: each runs one function of the test program.
//!
//! A role is a test function that returns at once unless [`start`] started the process.
//! It sends lines to the test on standard output ([`say`]) and receives lines on standard
//! input ([`hear`]).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::deadline;

const ROLE: &str = "FERROCE_TEST_ROLE";
/// Prefix of a role's lines, which distinguishes them from the test harness's output.
const MARK: &str = "@@ ";

/// A process that runs a role. It is killed when dropped.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// Returns the order passed to [`start`]; `None` if this process runs no role.
pub fn order() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Sends a line to the test.
pub fn say(line: &str) {
    println!("{MARK}{line}");
    let _ = std::io::stdout().flush();
}

/// Waits for a line from the test; returns `None` at the end of input.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(line.trim_end().to_owned()),
    }
}

/// Starts a process that runs the test function `name` as a role, as another user and
/// group if `user` is given.
///
/// # Panics
/// If the process cannot be started.
pub fn start(name: &str, order: &str, user: Option<(u32, u32)>) -> Actor {
    let mut command = Command::new("/proc/self/exe");
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, order)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    let mut child = command.spawn().expect("this program can start itself");
    Actor {
        stdin: child.stdin.take(),
        stdout: BufReader::new(child.stdout.take().expect("piped")),
        child,
    }
}

impl Actor {
    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process. After SIGSTOP, waits until all its threads are stopped: the
    /// kernel stops a thread that runs on another processor a moment later.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok();
        let pid = pid.and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("the process exists");
        if signal == Signal::STOP {
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("it stops");
        }
    }

    /// Waits for the next line from the role.
    ///
    /// # Panics
    /// If the role ends or sends no line in time.
    pub fn hear(&mut self) -> String {
        loop {
            if self.stdout.buffer().is_empty() {
                deadline::readable(self.stdout.get_ref(), "waiting for a line from a role");
            }
            let mut line = String::new();
            let read = self.stdout.read_line(&mut line).expect("a pipe");
            assert!(read > 0, "the role ended without sending a line");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Sends a line to the role.
    ///
    /// # Panics
    /// If the role no longer reads its input.
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("wait was not called");
        writeln!(stdin, "{line}").expect("the role reads its input");
    }

    /// Sends a line and waits for the reply.
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    /// Closes the role's input and waits until the process ends by itself.
    pub fn wait(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ends this process as SIGKILL would, and leaves a child behind that keeps copies of all its
/// descriptors. Says the child's PID. The child ends after a minute if the test forgets it.
pub fn end_and_leave_a_child() -> ! {
    // SAFETY: the child only waits for its end, which takes no lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: these have no preconditions.
        unsafe {
            libc::alarm(60);
            libc::pause();
            libc::_exit(0);
        }
    }
    say(&child.to_string());
    // SAFETY: runs no destructors, as if the process had been killed.
    unsafe { libc::_exit(0) }
}
