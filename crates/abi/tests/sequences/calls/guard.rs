//! Structures between guard bytes, and memory between guard pages.

use core::ptr;

const PATTERN: u8 = 0xa5;

/// A structure for a call, between guard bytes that must not change.
#[repr(C)]
pub(super) struct Guarded<T> {
    before: [u8; 64],
    pub(super) it: T,
    after: [u8; 64],
}

impl<T> Guarded<T> {
    pub(super) fn new(it: T) -> Guarded<T> {
        Guarded {
            before: [PATTERN; 64],
            it,
            after: [PATTERN; 64],
        }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.before, [PATTERN; 64], "written in front of it");
            assert_eq!(self.after, [PATTERN; 64], "written behind it");
        }
    }
}

/// Returns a structure of zeros.
pub(super) fn zeros<T>() -> T {
    // SAFETY: callers use C structures of integers and raw pointers only.
    unsafe { core::mem::zeroed() }
}

/// Memory for regions, between guard pages that no region covers.
pub(super) struct Arena {
    start: *mut u8,
}

const GUARD: usize = 4096;
/// Bytes that regions may cover.
pub(super) const ARENA: usize = 8 * 4096;

impl Arena {
    pub(super) fn new() -> Arena {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let length = ARENA + 2 * GUARD;
        // SAFETY: a new mapping, all of which is initialised.
        let start = unsafe {
            let start = libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            ptr::write_bytes(start.cast::<u8>(), PATTERN, length);
            start.cast()
        };
        Arena { start }
    }

    /// Returns the first address for regions.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(GUARD + offset)
    }

    pub(super) fn check(&self) {
        for guard in [self.start, self.at(ARENA)] {
            // SAFETY: the guards are mapped and readable.
            let bytes = unsafe { core::slice::from_raw_parts(guard, GUARD) };
            assert!(bytes.iter().all(|&byte| byte == PATTERN), "outside regions");
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: all regions are deregistered.
        unsafe { libc::munmap(self.start.cast(), ARENA + 2 * GUARD) };
    }
}
