//! Memory that queue pairs read and write.

use core::ffi::c_int;
use core::ptr::{self, NonNull};
use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::ffi::*;
use crate::mr::{ibv_dereg_mr, ibv_reg_mr};

use super::flow::Pieces;
use super::sys;

/// Whole pages, registered. What is in them changes under everybody's hands.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: NonNull<u8>,
    layout: Layout,
    mr: *mut ibv_mr,
}

// SAFETY: plain memory, reached only by copies through raw pointers.
unsafe impl Send for Buffer {}
// SAFETY: as above; who may touch which part is in the books of the stream.
unsafe impl Sync for Buffer {}

const PAGE: usize = 4096;

impl Buffer {
    pub(crate) fn new(
        pd: *mut ibv_pd,
        length: usize,
        access: ibv_access_flags,
    ) -> Result<Buffer, c_int> {
        let length = length.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(length, PAGE).map_err(|_| libc::ENOMEM)?;
        // SAFETY: the layout is not empty.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(libc::ENOMEM)?;
        // SAFETY: a live protection domain, memory of that length.
        let mr = unsafe { ibv_reg_mr(pd, memory.as_ptr().cast(), length, access as c_int) };
        if mr.is_null() {
            let errno = sys::errno();
            // SAFETY: from above, and nobody knows it.
            unsafe { dealloc(memory.as_ptr(), layout) };
            return Err(errno);
        }
        Ok(Buffer { memory, layout, mr })
    }

    pub(crate) fn addr(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: lives as long as this.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: lives as long as this.
        unsafe { (*self.mr).rkey }
    }

    /// A part, for a work request.
    pub(crate) fn sge(&self, offset: u32, length: u32) -> ibv_sge {
        ibv_sge {
            addr: self.addr() + u64::from(offset),
            length,
            lkey: self.lkey(),
        }
    }

    /// Copies what lies at `offset`.
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        if offset + N <= self.layout.size() {
            let (from, to) = (self.at(offset), bytes.as_mut_ptr());
            // SAFETY: inside the memory, as was checked.
            unsafe { ptr::copy_nonoverlapping(from, to, N) };
        }
        bytes
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        if offset + bytes.len() <= self.layout.size() {
            let (from, to) = (bytes.as_ptr(), self.at(offset));
            // SAFETY: inside the memory, as was checked.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes.len()) };
        }
    }

    /// Copies pieces out, to a program's memory.
    ///
    /// # Safety
    ///
    /// `to` has room for all of them.
    pub(crate) unsafe fn copy_out(&self, pieces: &Pieces, mut to: *mut u8) {
        for (offset, length) in pieces.iter() {
            debug_assert!((offset + length) as usize <= self.layout.size());
            // SAFETY: pieces of this memory; room as the caller promised.
            unsafe {
                ptr::copy_nonoverlapping(self.at(offset as usize), to, length as usize);
                to = to.add(length as usize);
            }
        }
    }

    /// Copies pieces in, from a program's memory.
    ///
    /// # Safety
    ///
    /// `from` has as many bytes as all of them.
    pub(crate) unsafe fn copy_in(&self, pieces: &Pieces, mut from: *const u8) {
        for (offset, length) in pieces.iter() {
            debug_assert!((offset + length) as usize <= self.layout.size());
            // SAFETY: pieces of this memory; bytes as the caller promised.
            unsafe {
                ptr::copy_nonoverlapping(from, self.at(offset as usize), length as usize);
                from = from.add(length as usize);
            }
        }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: no work request uses the memory any more; it is the allocation's layout.
        unsafe {
            ibv_dereg_mr(self.mr);
            dealloc(self.memory.as_ptr(), self.layout);
        }
    }
}
