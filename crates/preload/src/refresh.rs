//! The request to ferroced to write its counter files.
//!
//! ferroced writes them when a client connects to a socket next to the files, and then closes
//! the connection. If that fails, the files stay as they are, and the program gets no error.

use core::ffi::c_int;
use core::mem::offset_of;

use crate::next::{errno, set_errno};

/// The path of the socket, relative to the root.
const SOCKET: &[u8] = b"/../refresh.sock";
/// Timeout in milliseconds, for a ferroced that is stopped.
const PATIENCE: c_int = 500;

/// Requests fresh counters and waits for them. `root` is the directory of the files.
pub(crate) fn ask(root: &[u8]) {
    let before = errno();
    if let Some((address, length)) = address(root) {
        connect(&address, length);
    }
    set_errno(before);
}

fn connect(address: &libc::sockaddr_un, length: libc::socklen_t) {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call accesses no memory.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return;
    }
    let mut wait = libc::pollfd {
        fd: socket,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the address has `length` bytes, `wait` is one entry, and the descriptor is ours.
    unsafe {
        if libc::connect(socket, (&raw const *address).cast(), length) == 0 {
            libc::poll(&raw mut wait, 1, PATIENCE);
        }
        libc::close(socket);
    }
}

/// Returns the address of the socket; `None` if its path is too long.
fn address(root: &[u8]) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: a `sockaddr_un` consists of integers, which may be 0.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let length = root.len() + SOCKET.len();
    // The path needs a final zero.
    if length >= address.sun_path.len() {
        return None;
    }
    let path = root.iter().chain(SOCKET);
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = byte.cast_signed();
    }
    let total = offset_of!(libc::sockaddr_un, sun_path) + length + 1;
    Some((address, total as libc::socklen_t))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_is_too_long_has_no_address() {
        assert!(address(&[b'/'; 91]).is_some());
        assert!(address(&[b'/'; 92]).is_none());
    }

    #[test]
    fn missing_ferroced_leaves_errno_unchanged() {
        set_errno(7);
        ask(b"/nowhere/at/all");
        assert_eq!(errno(), 7);
    }
}
