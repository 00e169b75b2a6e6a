//! Runs a test in its own network namespace, with its own runtime directory.
//!
//! The test program starts itself again, in the namespace, to run just that test. Root
//! can create the network namespace directly; other users create a user namespace with
//! it. If the kernel refuses both, the test prints a loud notice that it was skipped.
//! For root a skipped test is a failure, so that CI never skips one.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::netdev;

/// Environment variable that is set in the process that runs the test itself.
const INSIDE: &str = "FERROCE_TEST_INSIDE";
/// Environment variable that names ferroced's runtime directory.
const RUNTIME_DIR: &str = "FERROCE_RUNTIME_DIR";

/// Runs `body` in a new network namespace with `lo` up. `name` is the name of the calling
/// test function. `FERROCE_RUNTIME_DIR` names an empty directory.
///
/// # Panics
/// If the test does.
pub fn isolated(name: &str, body: impl FnOnce()) {
    if is_inside() {
        netdev::set_up("lo");
        return body();
    }
    if let Err(error) = run_in_child(name) {
        let why = format!("cannot create a network namespace: {error}");
        skip(name, &why);
    }
}

/// Runs `body` as [`isolated`] does, but only as root. For tests that run processes of
/// several users.
///
/// # Panics
/// If the test does.
pub fn isolated_as_root(name: &str, body: impl FnOnce()) {
    if is_inside() || is_root() {
        return isolated(name, body);
    }
    skip(name, "only root can become other users");
}

/// Returns true if root runs the tests.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn skip(name: &str, why: &str) {
    // `eprintln` would be captured by the test harness.
    let _ = writeln!(io::stderr(), "\n*** SKIPPED: {name}: {why} ***\n");
    assert!(
        !is_root(),
        "{name} was skipped, but root must be able to run it: {why}"
    );
}

/// Creates another network namespace with `lo` up. The thread stays in its own.
///
/// # Errors
/// If the kernel refuses.
pub fn another() -> io::Result<OwnedFd> {
    let here = network()?;
    // SAFETY: only this thread changes its network namespace; other threads and their
    // memory are not affected.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    let there = network();
    netdev::set_up("lo");
    enter(here.as_fd())?;
    there
}

/// Runs `work` in another network namespace.
///
/// # Errors
/// If the kernel refuses to enter the namespace, or to return.
pub fn within<T>(namespace: impl AsFd, work: impl FnOnce() -> T) -> io::Result<T> {
    let here = network()?;
    enter(namespace.as_fd())?;
    let result = work();
    enter(here.as_fd())?;
    Ok(result)
}

/// Makes a command start its program in another network namespace.
pub fn place(command: &mut Command, namespace: OwnedFd) -> &mut Command {
    // SAFETY: one system call on a prepared argument.
    unsafe { command.pre_exec(move || enter(namespace.as_fd())) }
}

/// Opens the network namespace of this thread.
fn network() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(
        c"/proc/thread-self/ns/net",
        flags,
        Mode::empty(),
    )?)
}

fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(namespace, kind)?)
}

/// Runs one test of this program in a child process. Returns an error if the process
/// cannot start; panics if the test fails.
fn run_in_child(name: &str) -> io::Result<()> {
    let dir = Scratch::new(name)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .env(RUNTIME_DIR, &dir.0)
        .env_remove("XDG_RUNTIME_DIR")
        .stdout(Stdio::piped());
    let (root, uid, gid) = (
        is_root(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    // SAFETY: between fork and exec it only makes system calls with prepared arguments.
    unsafe { command.pre_exec(move || enter_namespaces(root, uid, gid)) };
    let output = command.spawn()?.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{name} failed in its own process:\n{said}"
    );
    Ok(())
}

fn enter_namespaces(root: bool, uid: u32, gid: u32) -> io::Result<()> {
    if root {
        // SAFETY: this process has one thread, and shares no state that unshare removes.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?;
    write(c"/proc/self/setgroups", b"deny")?;
    let mut line = [0; 24];
    write(c"/proc/self/uid_map", map_line(&mut line, uid))?;
    write(c"/proc/self/gid_map", map_line(&mut line, gid))
}

/// Formats `0 ID 1` without allocating, as required between fork and exec.
fn map_line(line: &mut [u8; 24], id: u32) -> &[u8] {
    let mut rest = &mut line[..];
    let _ = write!(rest, "0 {id} 1");
    let left = rest.len();
    &line[..24 - left]
}

fn write(path: &std::ffi::CStr, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

/// A temporary directory that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> io::Result<Scratch> {
        let short: String = name
            .chars()
            .rev()
            .take(24)
            .collect::<Vec<_>>()
            .iter()
            .rev()
            .collect();
        let short = short.replace(':', "-");
        // The last 24 characters of two names may be the same.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = format!("ferroce-{}-{count}-{short}", std::process::id());
        let path = std::env::temp_dir().join(path);
        let _ = fs::remove_dir_all(&path);
        // Processes of other users must be able to enter.
        fs::DirBuilder::new().mode(0o755).create(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        eprintln!("{}: {error}", path.display());
    }
}
