//! Shared memory, mapped until it is dropped. Bytes of it are only copied: another process may
//! change them at any time, so no reference to them exists.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping of a file that is sealed against shrinking.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to the process and not to a thread. `word` returns an atomic, and
// the callers of `write` and `read` take turns by such atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of a file. The caller has checked the seals and the length of
    /// the file.
    pub(crate) fn new(file: impl AsFd, length: usize) -> std::io::Result<Mapping> {
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

    /// Returns the 64-bit word at an offset that is a multiple of 8.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length);
        // SAFETY: the word is inside the mapping, which lives as long as `self`, and aligned,
        // because mappings are aligned to pages. Words are only accessed as atomics.
        unsafe { self.start.add(offset).cast().as_ref() }
    }

    /// Returns `N` 64-bit words in a row, from an offset on that is a multiple of 8.
    #[inline]
    pub(crate) fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8) && offset + 8 * N <= self.length);
        // SAFETY: as in `word`; an array of atomics has no other alignment than one of them.
        unsafe { self.start.add(offset).cast().as_ref() }
    }

    /// Maps another file at the same addresses, in place of the present one. Threads that access
    /// words meanwhile see either file.
    pub(crate) fn replace(&self, file: impl AsFd) -> std::io::Result<()> {
        // SAFETY: the call replaces exactly the pages of this mapping, which stay mapped. No
        // reference to bytes in them exists, and any contents are valid for words.
        unsafe {
            mmap(
                self.start.as_ptr().cast(),
                self.length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                0,
            )?;
        }
        Ok(())
    }

    /// Copies bytes into the mapping.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.length && bytes.len() <= self.length - offset);
        // SAFETY: the range is inside the mapping. `bytes` is memory of this process, which does
        // not overlap.
        unsafe {
            let target = self.start.add(offset).as_ptr();
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// Copies bytes out of the mapping.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.length && bytes.len() <= self.length - offset);
        // SAFETY: the range is inside the mapping. `bytes` is memory of this process, which does
        // not overlap. If the other process writes meanwhile, the copy has wrong bytes, which
        // the caller checks like all input.
        unsafe {
            let source = self.start.add(offset).as_ptr();
            core::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len());
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly these pages. References to words borrow `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}
