//! Memory that may be taken away.

use core::ptr;

use ferroce_device::ProcessMemory;
use ferroce_device::transport::Memory;

/// An anonymous mapping, looked at only by guarded access.
#[derive(Debug)]
pub(crate) struct Pages {
    start: usize,
    length: usize,
}

impl Pages {
    pub(crate) fn new(length: usize) -> Pages {
        // SAFETY: a fresh anonymous mapping.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let start = start as usize;
        Pages { start, length }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// Takes it away; nothing is put in its place.
    pub(crate) fn unmap(&self) {
        // SAFETY: the mapping is ours, and there are no references into it.
        let done = unsafe { libc::munmap(self.start as *mut libc::c_void, self.length) };
        assert_eq!(done, 0);
    }

    pub(crate) fn make_read_only(&self) {
        let start = self.start as *mut libc::c_void;
        // SAFETY: the mapping is ours, and there are no references into it.
        let done = unsafe { libc::mprotect(start, self.length, libc::PROT_READ) };
        assert_eq!(done, 0);
    }

    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        ProcessMemory::current()
            .write(self.address() + offset, bytes)
            .expect("mapped");
    }

    pub(crate) fn get(&self, offset: u64, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        ProcessMemory::current()
            .read(self.address() + offset, &mut bytes)
            .expect("mapped");
        bytes
    }
}
