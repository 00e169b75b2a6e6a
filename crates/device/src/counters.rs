//! Counters in memory that ferroced reads.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

use ferroce_control::{CounterPage, PAGE_SIZE};
use ferroce_transport::{COUNTERS, Counters};

use crate::mapping::Mapping;

/// Maps a slot's page of counters until the counters are dropped.
pub(crate) fn map(page: &CounterPage) -> std::io::Result<Counters> {
    const { assert!(COUNTERS * 8 <= PAGE_SIZE) };
    let mapping = Mapping::<[AtomicU64; COUNTERS]>::new(page.as_fd(), PAGE_SIZE)?;
    let mapping = Box::new(mapping);
    let values: *const [AtomicU64; COUNTERS] = &raw const **mapping;
    // SAFETY: the values stay mapped until the counters drop `mapping`, and the counters
    // give no reference to them away that lives longer.
    let values = unsafe { &*values };
    Ok(Counters::shared(values, mapping))
}
