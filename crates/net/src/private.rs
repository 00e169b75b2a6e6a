//! Private network namespaces, in which only a loopback interface exists.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use socket2::{Domain, Socket, Type};

/// Moves this process, which must have a single thread, into a new network namespace whose
/// loopback interface is up. An ordinary user also enters a new user namespace, as root.
///
/// # Errors
/// If the system does not permit user namespaces, or the process has several threads.
pub fn enter_private_network() -> io::Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let flags = match uid {
        0 => UnshareFlags::NEWNET,
        _ => UnshareFlags::NEWNET | UnshareFlags::NEWUSER,
    };
    // SAFETY: neither flag separates descriptors or memory from other threads.
    unsafe { unshare_unsafe(flags)? };
    if uid != 0 {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    }
    set_loopback_up()
}

/// Sets the loopback interface of this network namespace up, which gives it 127.0.0.1 and
/// ::1. In a new namespace the interface is down.
///
/// # Errors
/// If this user may not configure interfaces in the namespace.
pub fn set_loopback_up() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // SAFETY: an all-zero ifreq is valid, and what is set fits; the call reads
    // it and nothing else.
    let done = unsafe {
        let mut request: libc::ifreq = core::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
