//! Running a test in a network namespace of its own.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Set in the process that runs the test itself.
const INSIDE: &str = "FERROCE_TEST_INSIDE";

/// A user with no privileges.
pub(crate) const NOBODY: u32 = 65_534;

/// Who runs the test.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum As {
    /// Whoever may do anything in the namespace.
    Admin,
    /// A user without privileges, even in the namespace.
    Nobody,
}

/// Runs `body` in a fresh network namespace with `lo` up. `name` is that of the
/// test function that calls.
pub(crate) fn isolated(name: &str, who: As, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let root = is_root();
    if who == As::Nobody && !root {
        // The user namespace that makes it possible also makes one privileged.
        return skip(name, "only root can become a user without privileges");
    }
    let outcome = again(name, &[(INSIDE, "1")], move || {
        enter(root)?;
        raise_lo()?;
        if who == As::Nobody {
            drop_privileges()?;
        }
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(error) if root => panic!("root could not make a network namespace: {error}"),
        Err(error) => skip(name, &format!("no network namespace to be had: {error}")),
    }
}

/// Runs one test of this program in another process, after `prepare` in it.
pub(crate) fn again(
    name: &str,
    variables: &[(&str, &str)],
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<()> {
    // The link works whatever user `prepare` turns into.
    let mut command = Command::new("/proc/self/exe");
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .stdout(Stdio::piped());
    // SAFETY: what our callers do between fork and exec are system calls on
    // prepared arguments: they neither allocate nor take locks.
    unsafe { command.pre_exec(prepare) };
    let output = command.spawn()?.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{name} failed in its own process:\n{said}"
    );
    Ok(())
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says what was not tested, past the test harness, which would keep it to
/// itself.
pub(crate) fn skip(name: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "\n*** SKIPPED: {name}: {why} ***\n");
}

/// Becomes a user without privileges.
pub(crate) fn drop_privileges() -> io::Result<()> {
    // SAFETY: no pointer is read where the number of groups is 0.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::setgid(NOBODY) })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::setuid(NOBODY) })
}

fn enter(root: bool) -> io::Result<()> {
    if root {
        // SAFETY: takes a number only, and this process has one thread.
        return check(unsafe { libc::unshare(libc::CLONE_NEWNET) });
    }
    // SAFETY: takes no argument.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: as above.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) })?;
    write_map(c"/proc/self/setgroups", b"deny")?;
    let mut line = [0; 24];
    write_map(c"/proc/self/uid_map", map_line(&mut line, uid))?;
    write_map(c"/proc/self/gid_map", map_line(&mut line, gid))
}

/// `0 ID 1`, without allocating.
fn map_line(line: &mut [u8; 24], id: u32) -> &[u8] {
    use std::io::Write;
    let mut rest = &mut line[..];
    let _ = write!(rest, "0 {id} 1");
    let left = rest.len();
    &line[..24 - left]
}

fn write_map(path: &std::ffi::CStr, text: &[u8]) -> io::Result<()> {
    // SAFETY: the path ends with a zero byte.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    check(fd)?;
    // SAFETY: pointer and length are those of `text`.
    let written = unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
    let result = check(written as i32);
    // SAFETY: opened above, used nowhere else.
    unsafe { libc::close(fd) };
    result
}

/// Brings up the loopback interface of the current namespace.
pub(crate) fn raise_lo() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: `ifreq` is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as _;
    request.ifr_name[1] = b'o' as _;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as _;
    // SAFETY: the request is an `ifreq`, as this call reads it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) })
}

/// The number of an interface in the current namespace.
pub(crate) fn ifindex(name: &str) -> u32 {
    let name = CString::new(name).expect("no zero byte");
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "interface {name:?} exists");
    index
}

fn check(result: i32) -> io::Result<()> {
    match result {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
