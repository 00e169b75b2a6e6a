//! Other processes for a test: the test program again, running one function.
//!
//! A role is a test function that does nothing unless it is started by [`start`]. It
//! speaks to the test by lines on standard output ([`say`]) and listens on standard input.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::deadline;

const ROLE: &str = "FERROCE_TEST_ROLE";
/// What our lines begin with: the test harness prints, too.
const MARK: &str = "@@ ";

/// A process in a role. Killed when it is dropped.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// What the role was asked to do, if this process plays one.
pub fn order() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Says a line to the test.
pub fn say(line: &str) {
    println!("{MARK}{line}");
    let _ = std::io::stdout().flush();
}

/// Waits until the test says a line; None when it has no more to say.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(line.trim_end().to_owned()),
    }
}

/// Starts the role that the test function `name` plays, as another user if `uid` is given.
///
/// # Panics
/// If it cannot be started.
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
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is gone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.pid()).ok();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.expect("a process"), signal).expect("it is there");
    }

    /// The next line that it says.
    ///
    /// # Panics
    /// If it says nothing any more.
    pub fn hear(&mut self) -> String {
        loop {
            if self.stdout.buffer().is_empty() {
                deadline::readable(self.stdout.get_ref(), "waiting for a role to speak");
            }
            let mut line = String::new();
            let read = self.stdout.read_line(&mut line).expect("a pipe");
            assert!(read > 0, "the role has ended without a word");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Says a line to it.
    ///
    /// # Panics
    /// If it does not listen any more.
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("not dismissed");
        writeln!(stdin, "{line}").expect("it listens");
    }

    /// Asks and hears the answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }

    /// Kills it, as `kill -9` does, and waits for the end.
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
