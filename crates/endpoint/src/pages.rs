//! Memory that may be taken away.

use core::ptr;
use std::io;
use std::sync::atomic::AtomicU64;

use ferroce_device::ProcessMemory;
use ferroce_device::transport::{Fault, Memory};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// An anonymous mapping, looked at only by guarded access. It stays until it is unmapped:
/// somebody far away may still have it registered.
#[derive(Debug)]
pub struct Pages {
    start: usize,
    length: usize,
}

impl Pages {
    /// Fresh memory.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(length: usize) -> io::Result<Pages> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE) }?;
        let start = start as usize;
        Ok(Pages { start, length })
    }

    /// Where it starts.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// Takes it away; nothing is put in its place.
    ///
    /// # Errors
    /// If it is gone already.
    pub fn unmap(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and there are no references into it but those of
        // `word`, whose user has been warned.
        Ok(unsafe { munmap(self.start as *mut _, self.length) }?)
    }

    /// Forbids to write to it.
    ///
    /// # Errors
    /// If it is gone.
    pub fn make_read_only(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and there are no references into it.
        Ok(unsafe { mprotect(self.start as *mut _, self.length, MprotectFlags::READ) }?)
    }

    /// Writes to it.
    ///
    /// # Errors
    /// If it cannot be written to.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        ProcessMemory::current().write(self.address() + offset, bytes)
    }

    /// Reads from it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn get(&self, offset: u64, length: u32) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; length as usize];
        ProcessMemory::current().read(self.address() + offset, &mut bytes)?;
        Ok(bytes)
    }

    /// A word to look at while a peer writes to it. Not to be kept when the memory is
    /// taken away.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        let offset = offset as usize;
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length);
        // SAFETY: aligned and within the mapping, which nobody accesses but by atomics and
        // guarded copies.
        unsafe { AtomicU64::from_ptr((self.start + offset) as *mut u64) }
    }
}
