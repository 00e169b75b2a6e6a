//! System calls of rsockets.
//!
//! They bypass libc's functions: under librspreload libc's `poll` and `fcntl` call rsockets
//! again.

use core::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

/// Returns the thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: the location is valid in every thread, always.
    unsafe { *libc::__errno_location() }
}

/// Borrows a descriptor; `None` if it is negative.
///
/// # Safety
///
/// The descriptor is open and stays open while the result is used.
pub unsafe fn borrow<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: the caller keeps the descriptor open, and it is not -1.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Sets or clears `O_NONBLOCK`.
pub fn set_nonblocking(fd: c_int, nonblocking: bool) -> Result<(), c_int> {
    // SAFETY: the descriptor is used for two calls; the kernel refuses a closed one.
    let fd = unsafe { borrow(fd) }.ok_or(libc::EBADF)?;
    let mut flags = rustix::fs::fcntl_getfl(fd).map_err(|e| e.raw_os_error())?;
    flags.set(OFlags::NONBLOCK, nonblocking);
    rustix::fs::fcntl_setfl(fd, flags).map_err(|e| e.raw_os_error())
}

/// Creates a non-blocking eventfd.
pub fn eventfd() -> Result<OwnedFd, c_int> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| e.raw_os_error())
}

/// Returns the time of the monotonic clock.
pub fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Calls `ppoll` and returns the number of ready descriptors. Negative ones are ignored.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize, c_int> {
    // SAFETY: rustix's `PollFd` is a transparent wrapper of the kernel's `pollfd`. Only the
    // kernel uses the descriptors, and it checks them.
    let fds = unsafe {
        core::slice::from_raw_parts_mut(fds.as_mut_ptr().cast::<PollFd<'_>>(), fds.len())
    };
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: t.subsec_nanos().into(),
    });
    rustix::event::poll(fds, timeout.as_ref()).map_err(|e| e.raw_os_error())
}

/// Returns an entry for [`poll`].
pub fn pollfd(fd: c_int, events: PollFlags) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: events.bits() as i16,
        revents: 0,
    }
}
