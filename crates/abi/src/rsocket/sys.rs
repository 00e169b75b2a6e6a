//! The little that rsockets want from the system.
//!
//! These calls go to the kernel directly: a program may run with a library that
//! turns libc's sockets into rsockets, and these must not come back to us.

use core::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

/// The thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location is valid in every thread, always.
    unsafe { *libc::__errno_location() }
}

/// # Safety
///
/// The descriptor is open, and stays so as long as this is used.
pub(crate) unsafe fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: as the caller promised, and never -1.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Whether calls that would wait for this descriptor fail instead.
pub(crate) fn set_nonblocking(fd: c_int, nonblocking: bool) -> Result<(), c_int> {
    // SAFETY: used for these calls only; the kernel refuses what is not open.
    let fd = unsafe { borrow(fd) }.ok_or(libc::EBADF)?;
    let mut flags = rustix::fs::fcntl_getfl(fd).map_err(|e| e.raw_os_error())?;
    flags.set(OFlags::NONBLOCK, nonblocking);
    rustix::fs::fcntl_setfl(fd, flags).map_err(|e| e.raw_os_error())
}

pub(crate) fn eventfd() -> Result<OwnedFd, c_int> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| e.raw_os_error())
}

/// Time that only goes forward.
pub(crate) fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// `poll`: how many are ready. Descriptors below zero are left out, as poll does.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize, c_int> {
    // SAFETY: the kernel's `pollfd`, of which rustix's is a transparent wrapper.
    let fds = unsafe {
        core::slice::from_raw_parts_mut(fds.as_mut_ptr().cast::<PollFd<'_>>(), fds.len())
    };
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: t.subsec_nanos().into(),
    });
    rustix::event::poll(fds, timeout.as_ref()).map_err(|e| e.raw_os_error())
}

/// A descriptor to wait for.
pub(crate) fn pollfd(fd: c_int, events: PollFlags) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: events.bits() as i16,
        revents: 0,
    }
}
