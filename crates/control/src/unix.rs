//! Unix sockets with paths of any length.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::ANSWER_TIMEOUT;
use crate::path::NEW_SUFFIX;

/// Longest path that a socket address holds.
const MAX_PATH: usize = 107;

/// Creates a control socket, close-on-exec.
pub fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        flags,
        None,
    )?)
}

/// Connects to the socket at `path`. If the other end is stopped, connecting and sending
/// fail with EAGAIN after [`ANSWER_TIMEOUT`].
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::empty())?;
    set_socket_timeout(&socket, Timeout::Send, Some(ANSWER_TIMEOUT))?;
    with_address(path, |address| {
        rustix::io::retry_on_intr(|| rustix::net::connect(&socket, address))
    })?;
    Ok(socket)
}

/// Binds `socket` to `path`, which must not exist.
pub fn bind(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    with_address(path, |address| rustix::net::bind(socket, address))
}

/// Returns false if no socket of this network namespace is bound to `path`: then a file
/// there is a leftover of a killed process. Returns true if that is unknown.
pub fn is_bound(path: &Path) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/thread-self/net/unix") else {
        return true;
    };
    let name = path.to_string_lossy();
    let new = format!("{name}{NEW_SUFFIX}");
    let mut names = table.lines().filter_map(|line| line.split(' ').next_back());
    names.any(|bound| bound == name || bound == new)
}

/// Calls `f` with the address of `path`. A long path is shortened through
/// `/proc/self/fd`.
fn with_address(
    path: &Path,
    f: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>,
) -> io::Result<()> {
    if path.as_os_str().len() <= MAX_PATH {
        return Ok(f(&SocketAddrUnix::new(path)?)?);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent, flags, Mode::empty())?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    Ok(f(&SocketAddrUnix::new(&short)?)?)
}
