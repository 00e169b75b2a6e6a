//! Counters in memory that ferroced reads.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

use ferroce_control::{CounterPage, PAGE_SIZE};
use ferroce_transport::{COUNTERS, Counters};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Maps a slot's page of counters, for good.
pub(crate) fn map(page: &CounterPage) -> std::io::Result<Counters> {
    const { assert!(COUNTERS * 8 <= PAGE_SIZE) };
    // SAFETY: a new mapping of a whole page, which is sealed against shrinking
    // and never unmapped.
    let start = unsafe {
        mmap(
            core::ptr::null_mut(),
            PAGE_SIZE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            page.as_fd(),
            0,
        )?
    };
    // SAFETY: the page is aligned, stays mapped, is long enough and holds plain
    // numbers, which all processes access as atomics or by system calls.
    let values: &'static [AtomicU64; COUNTERS] = unsafe { &*start.cast() };
    Ok(Counters::shared(values))
}
