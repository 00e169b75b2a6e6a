//! Has ferroced write its files anew: it does so when somebody connects to a socket beside
//! them, and closes the connection when it is done.
//!
//! If anything is in the way the files are what they were, and the program never knows.

use core::ffi::c_int;
use core::mem::offset_of;

use crate::next::{errno, set_errno};

/// Where the socket is, seen from the files.
const SOCKET: &[u8] = b"/../refresh.sock";
/// How long to wait, in milliseconds: for a ferroced that is stopped, no longer.
const PATIENCE: c_int = 500;

/// Asks, and waits until it is done. `root` is where the files are.
pub(crate) fn ask(root: &[u8]) {
    let before = errno();
    if let Some((address, length)) = address(root) {
        connect(&address, length);
    }
    set_errno(before);
}

fn connect(address: &libc::sockaddr_un, length: libc::socklen_t) {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return;
    }
    let mut wait = libc::pollfd {
        fd: socket,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the address is as long as said, and lives on; one descriptor is polled, and
    // it is ours until it is closed.
    unsafe {
        if libc::connect(socket, (&raw const *address).cast(), length) == 0 {
            libc::poll(&raw mut wait, 1, PATIENCE);
        }
        libc::close(socket);
    }
}

/// The address of the socket; none if the path is too long for one.
fn address(root: &[u8]) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: zeros are an address without a path.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let length = root.len() + SOCKET.len();
    // A zero must stand behind it.
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
    fn a_path_that_is_too_long_has_no_address() {
        assert!(address(&[b'/'; 91]).is_some());
        assert!(address(&[b'/'; 92]).is_none());
    }

    #[test]
    fn nobody_there_is_no_trouble() {
        set_errno(7);
        ask(b"/nowhere/at/all");
        assert_eq!(errno(), 7);
    }
}
