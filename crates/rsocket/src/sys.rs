//! System calls of rsockets.
//!
//! They bypass libc's functions: under librspreload libc's `poll` and `fcntl` call rsockets
//! again.

use core::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use crate::{Errno, Result};

/// The longest option of a UDP socket in bytes.
const MAX_OPTION: usize = 256;

/// Makes calls that would wait for this descriptor fail with EAGAIN.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

/// Sets an option of a kernel socket, by number.
pub(crate) fn setsockopt(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> Result<()> {
    let (fd, from, length) = (fd.as_raw_fd(), value.as_ptr(), value.len());
    // SAFETY: the kernel reads `length` bytes of the value.
    let set = unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, from, length) };
    if set == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Returns the value of an option of a kernel socket, by number.
pub(crate) fn getsockopt(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<Vec<u8>> {
    let mut value = vec![0; MAX_OPTION];
    let mut length = MAX_OPTION as libc::socklen_t;
    let (fd, to, room) = (fd.as_raw_fd(), value.as_mut_ptr(), &raw mut length);
    // SAFETY: the kernel writes at most `length` bytes to the value.
    let got = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, to, room) };
    if got != 0 {
        return Err(last_errno());
    }
    value.truncate(length as usize);
    Ok(value)
}

/// Returns the error of the last call of `libc::syscall`.
fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Creates a non-blocking eventfd.
pub(crate) fn eventfd() -> Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Returns the time of the monotonic clock.
pub(crate) fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Calls `ppoll` and returns the number of ready descriptors. Negative ones are ignored.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize> {
    // SAFETY: rustix's `PollFd` is a transparent wrapper of the kernel's `pollfd`. Only the
    // kernel uses the descriptors, and it checks them.
    let fds = unsafe {
        core::slice::from_raw_parts_mut(fds.as_mut_ptr().cast::<PollFd<'_>>(), fds.len())
    };
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: t.subsec_nanos().into(),
    });
    rustix::event::poll(fds, timeout.as_ref())
}

/// Returns an entry for [`poll`].
pub(crate) fn pollfd(fd: c_int, events: PollFlags) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: events.bits() as i16,
        revents: 0,
    }
}
