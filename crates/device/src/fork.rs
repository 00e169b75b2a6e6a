//! Descriptors that a forked child must not keep: those of the group of sockets on UDP port
//! 4791.
//!
//! A child has none of its parent's threads and cannot use its parent's device. Its copies of
//! the descriptors would keep the group alive after the parent and ferroced have ended. No
//! process could pass the group to the next ferroced, and no device could be opened until
//! the child ends. So in a child the descriptors refer to `/dev/null`. They stay open,
//! because the child has copies of the objects that close them.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Each slot of a process has four descriptors, each device two; a machine has 255 slots.
const CAPACITY: usize = 2048;

/// Number and inode of each descriptor; 0 in an unused entry.
static HELD: [AtomicU64; CAPACITY] = [const { AtomicU64::new(0) }; CAPACITY];
/// True once the handler is registered. A child does not wait for a thread of its parent that
/// registers it, as it would with `Once`.
static REGISTERED: AtomicBool = AtomicBool::new(false);
/// Grows with each fork.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns a number that grows with each fork between the first process that opened a device
/// and this process. A device has its threads and sockets only in the process that opened it.
#[inline]
pub(crate) fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Returns the place of [`count`], for code that reads it several times per message: the call of a
/// function pointer takes as long as five other instructions.
pub(crate) fn counter() -> &'static AtomicU32 {
    &FORKS
}

/// Descriptors that children do not keep, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct NotForChildren(Vec<u64>);

impl NotForChildren {
    /// Adds a socket. If the table is full, children inherit the socket.
    pub(crate) fn add(&mut self, socket: BorrowedFd<'_>) {
        if !REGISTERED.load(Ordering::Acquire) {
            // Two threads may register it twice: then a fork counts twice, and the second run of
            // the handler finds no descriptors.
            // SAFETY: the handler only makes system calls on its own descriptors.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            REGISTERED.store(true, Ordering::Release);
        }
        let Some(entry) = entry(socket.as_raw_fd()) else {
            return;
        };
        let free = |place: &&AtomicU64| {
            let (set, unset) = (Ordering::Relaxed, Ordering::Relaxed);
            place.compare_exchange(0, entry, set, unset).is_ok()
        };
        if HELD.iter().find(free).is_some() {
            self.0.push(entry);
        }
    }
}

impl Drop for NotForChildren {
    fn drop(&mut self) {
        for entry in &self.0 {
            let theirs = |place: &&AtomicU64| {
                let (set, unset) = (Ordering::Relaxed, Ordering::Relaxed);
                place.compare_exchange(*entry, 0, set, unset).is_ok()
            };
            let _found = HELD.iter().find(theirs);
        }
    }
}

/// Returns the number and the inode of a socket; none for another file. At the time of a fork
/// the number alone may belong to another file. Inodes of sockets have 32 bits.
fn entry(fd: RawFd) -> Option<u64> {
    let number = u64::from(u32::try_from(fd).ok()?) + 1;
    // SAFETY: `stat` is plain data, and zero is a valid value; the call fills it.
    let stat = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(fd, &raw mut stat) == 0).then_some(stat)
    }?;
    let is_socket = stat.st_mode & libc::S_IFMT == libc::S_IFSOCK;
    is_socket.then_some(number << 32 | u64::from(stat.st_ino as u32))
}

/// Runs in each forked child before `fork` returns there. Only async-signal-safe calls are
/// permitted.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let mut null = -1;
    for place in &HELD {
        let held = place.swap(0, Ordering::Relaxed);
        let Some(fd) = (held >> 32).checked_sub(1).map(|number| number as RawFd) else {
            continue;
        };
        if entry(fd) != Some(held) {
            continue;
        }
        // SAFETY: the comparison above shows that `fd` is a socket of this crate. Only this
        // function uses `null`.
        unsafe {
            if null < 0 {
                null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            }
            libc::dup3(null, fd, libc::O_CLOEXEC);
        }
    }
    if null >= 0 {
        // SAFETY: this function opened `null`, and closes it once.
        unsafe { libc::close(null) };
    }
}
