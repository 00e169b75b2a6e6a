//! Shared memory of ferroced, mapped until its last user is dropped.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Numbers in memory that several processes access as atomics.
///
/// # Safety
/// Every bit pattern is a valid value, zero included, and all fields are atomics or
/// padding: other processes change them at any time.
pub(crate) unsafe trait SharedNumbers: Sync + 'static {}

/// A `T` in shared memory. Dropping it unmaps the memory.
#[derive(Debug)]
pub(crate) struct Mapping<T: SharedNumbers> {
    start: NonNull<T>,
    length: usize,
}

// SAFETY: the mapping belongs to the process and not to a thread, and `T` is `Sync`: its
// fields are atomics.
unsafe impl<T: SharedNumbers> Send for Mapping<T> {}
// SAFETY: the mapping belongs to the process, and `T` is `Sync`.
unsafe impl<T: SharedNumbers> Sync for Mapping<T> {}

impl<T: SharedNumbers> Mapping<T> {
    /// Maps the first `length` bytes of a file that is sealed against shrinking.
    pub(crate) fn new(file: impl AsFd, length: usize) -> std::io::Result<Mapping<T>> {
        assert!(size_of::<T>() <= length, "the file holds a whole value");
        // SAFETY: the call creates a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap(
                core::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        Ok(Mapping { start, length })
    }
}

impl<T: SharedNumbers> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: a mapping is aligned to pages, holds a whole `T` and stays until `self`
        // is dropped; any bits are a valid `T`.
        unsafe { self.start.as_ref() }
    }
}

impl<T: SharedNumbers> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly these pages. References to the value borrow `self`,
        // so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}
