//! Socket options that rustix does not have, or not for every case.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// SO_PEERPIDFD, Linux 6.5 and newer; not in every libc crate yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// The process at the other end of a unix socket, as of the time it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The PID; 0 if the process is in a PID namespace that is not visible here.
    pub pid: u32,
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
}

/// Returns the peer (SO_PEERCRED). rustix cannot express PID 0.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let cred: libc::ucred = get(socket, libc::SO_PEERCRED)?;
    Ok(Peer {
        pid: u32::try_from(cred.pid).unwrap_or(0),
        uid: cred.uid,
        gid: cred.gid,
    })
}

/// Returns the supplementary groups of the peer (SO_PEERGROUPS).
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the pointer is valid for `bytes` bytes of u32, which have no
        // invalid values; the kernel returns how many it has written.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // With ERANGE the kernel returns the size that suffices.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Returns a descriptor of the peer's process (SO_PEERPIDFD), which stays valid if the PID
/// is reused.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let fd: libc::c_int = get(socket, SO_PEERPIDFD)?;
    // SAFETY: the kernel has just installed this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the number of the socket's network namespace (SO_NETNS_COOKIE, Linux 5.14),
/// which is unique until the machine reboots.
pub fn netns_cookie(socket: impl AsFd) -> io::Result<u64> {
    get(socket, libc::SO_NETNS_COOKIE)
}

/// Sets the offset at which MSG_PEEK reads next (SO_PEEK_OFF). Each read advances it.
pub fn set_peek_offset(socket: impl AsFd, offset: i32) -> io::Result<()> {
    // SAFETY: the pointer is valid for the size given, and only read.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const offset).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns the bytes that the socket has accepted and the network layer has not sent yet
/// (SIOCOUTQ).
pub fn unsent_bytes(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `fd` is open while it is borrowed, and the kernel writes one int to `bytes`.
    let result = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// C types for which any bytes are a valid value.
trait Plain: Copy {}
impl Plain for libc::c_int {}
impl Plain for u64 {}
impl Plain for libc::ucred {}

fn get<T: Plain>(socket: impl AsFd, option: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer is valid for the size given.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast(),
            &mut size,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, then perhaps overwritten; any bytes are a value of T.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
    }

    #[test]
    fn peer_of_a_socket_pair_is_this_process() {
        let (one, _other) = pair();
        let peer = peer(&one).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    }

    #[test]
    fn peer_groups_are_returned() {
        let (one, _other) = pair();
        let expected = rustix::process::getgroups().unwrap();
        let expected: Vec<u32> = expected.into_iter().map(|gid| gid.as_raw()).collect();
        assert_eq!(peer_groups(&one).unwrap(), expected);
    }

    #[test]
    fn sockets_of_one_namespace_have_one_cookie() {
        let flags = SocketFlags::CLOEXEC;
        let udp = || {
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).unwrap()
        };
        // Linux 5.14 and newer.
        if let Ok(cookie) = netns_cookie(udp()) {
            assert_eq!(netns_cookie(udp()).unwrap(), cookie);
            assert_ne!(cookie, 0);
        }
    }
}
