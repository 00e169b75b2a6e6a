//! Memory that can be unmapped while it is registered.

use core::ptr;
use std::io;
use std::sync::atomic::AtomicU64;

use ferroce_device::ProcessMemory;
use ferroce_device::transport::{Fault, MemRef, Memory};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// An anonymous mapping, accessed only by guarded copies and atomics. Dropping it does not
/// unmap it, because a device may still have it registered.
#[derive(Debug)]
pub struct Pages {
    start: usize,
    length: usize,
}

impl Pages {
    /// Maps `length` bytes of zeroed memory.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(length: usize) -> io::Result<Pages> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping does not affect existing memory.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE) }?;
        let start = start as usize;
        Ok(Pages { start, length })
    }

    /// Returns the start address.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// Unmaps the memory.
    ///
    /// # Errors
    /// If the kernel refuses.
    ///
    /// # Safety
    /// There are no references from [`Pages::word`]. While a device has the memory
    /// registered, no other memory is mapped at its address.
    pub unsafe fn unmap(&self) -> io::Result<()> {
        // SAFETY: this type owns the mapping, and the caller has no references into it.
        Ok(unsafe { munmap(self.start as *mut _, self.length) }?)
    }

    /// Makes the memory read-only.
    ///
    /// # Errors
    /// If it is unmapped.
    pub fn make_read_only(&self) -> io::Result<()> {
        // SAFETY: this type owns the mapping, and there are no references that write to it.
        Ok(unsafe { mprotect(self.start as *mut _, self.length, MprotectFlags::READ) }?)
    }

    /// Writes bytes at an offset.
    ///
    /// # Panics
    /// If they lie outside the memory.
    ///
    /// # Errors
    /// If the memory is unmapped or read-only.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.at(offset, bytes.len());
        // SAFETY: the range lies in pages of this type, to which there are no references.
        unsafe { ProcessMemory::current() }.write(at, bytes)
    }

    /// Reads bytes at an offset.
    ///
    /// # Panics
    /// If they lie outside the memory.
    ///
    /// # Errors
    /// If the memory is unmapped.
    pub fn get(&self, offset: u64, length: u32) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; length as usize];
        let at = self.at(offset, bytes.len());
        // SAFETY: the range lies in pages of this type, to which there are no references.
        unsafe { ProcessMemory::current() }.read(at, &mut bytes)?;
        Ok(bytes)
    }

    fn at(&self, offset: u64, length: usize) -> MemRef {
        let end = offset.checked_add(length as u64);
        assert!(
            end.is_some_and(|end| end <= self.length as u64),
            "{length} bytes at {offset} of {} bytes",
            self.length
        );
        MemRef::host(self.address() + offset)
    }

    /// Returns a word that can be polled while a peer writes to it.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or lies outside the memory.
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        let offset = offset as usize;
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length);
        // SAFETY: the word is aligned and inside the mapping, which is accessed only by
        // atomics and guarded copies.
        unsafe { AtomicU64::from_ptr((self.start + offset) as *mut u64) }
    }
}
