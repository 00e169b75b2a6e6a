//! Counters in memory that ferroced reads.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

use ferroce_control::{CounterPage, PAGE_HEADER, PAGE_SIZE};
use ferroce_roce::{COUNTERS, Counters};

use crate::mapping::{Mapping, SharedNumbers};

/// The page as [`ferroce_control::counters`] lays it out.
#[repr(C)]
#[derive(Debug)]
struct Page {
    _header: [AtomicU64; PAGE_HEADER / 8],
    values: [AtomicU64; COUNTERS],
}

// SAFETY: arrays of atomics, without padding.
unsafe impl SharedNumbers for Page {}

/// Maps a slot's page of counters until the counters are dropped.
pub(crate) fn map(page: &CounterPage) -> std::io::Result<Counters> {
    const { assert!(size_of::<Page>() <= PAGE_SIZE) };
    let mapping = Box::new(Mapping::<Page>::new(page.as_fd(), PAGE_SIZE)?);
    let values: *const [AtomicU64; COUNTERS] = &raw const mapping.values;
    // SAFETY: the values stay mapped until the counters drop `mapping`. The counters return
    // no reference to the values that lives longer.
    let values = unsafe { &*values };
    Ok(Counters::shared(values, mapping))
}
