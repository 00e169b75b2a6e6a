//! Registered memory of a socket. All unsafe code for memory is in this file.
//!
//! The device and the peer write to the memory at any time, so there are no references to
//! it, only copies through raw pointers. Each copy checks that it stays inside. Two copies
//! of the same bytes may race only if the peer breaks the protocol; then the bytes are
//! garbage, which the stream's reader gets.

use core::ptr::{self, NonNull};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use ferroce_device::Device;
use ferroce_device::transport::{Access, Mr, Pd, Sge};

use crate::flow::Pieces;
use crate::{Errno, Result, error};

/// Pages of zeros, registered.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: NonNull<u8>,
    layout: Layout,
    mr: Arc<Mr>,
    device: Arc<Device>,
}

// SAFETY: the memory belongs to the buffer and is not tied to a thread.
unsafe impl Send for Buffer {}
// SAFETY: shared use is copies through raw pointers; flow control separates them.
unsafe impl Sync for Buffer {}

const PAGE: usize = 4096;

impl Buffer {
    /// Allocates and registers at least `length` bytes.
    pub(crate) fn new(
        device: &Arc<Device>,
        pd: &Arc<Pd>,
        length: usize,
        access: Access,
    ) -> Result<Buffer> {
        let length = length.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(length, PAGE).map_err(|_| Errno::NOMEM)?;
        // SAFETY: the layout's size is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::NOMEM)?;
        let start = memory.as_ptr().expose_provenance() as u64;
        match device.register(pd, start, length as u64, start, access) {
            Ok(mr) => Ok(Buffer {
                memory,
                layout,
                mr,
                device: Arc::clone(device),
            }),
            Err(refused) => {
                // SAFETY: allocated above with this layout, and not registered.
                unsafe { dealloc(memory.as_ptr(), layout) };
                Err(error::of_verbs(refused))
            }
        }
    }

    /// Returns the address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// Returns the key for the peer.
    pub(crate) fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    /// Returns a scatter/gather element for a part.
    pub(crate) fn sge(&self, offset: u32, length: u32) -> Sge {
        Sge {
            addr: self.addr() + u64::from(offset),
            length,
            lkey: self.mr.lkey(),
        }
    }

    /// Copies bytes out of the memory.
    ///
    /// # Panics
    ///
    /// If they do not lie inside.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.place(offset, to.len());
        // SAFETY: `place` checked that the source lies inside the allocation.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes into the memory.
    ///
    /// # Panics
    ///
    /// If they do not lie inside.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        let to = self.place(offset, from.len());
        // SAFETY: `place` checked that the destination lies inside the allocation.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// Copies a range of the ring to the start of a slice.
    pub(crate) fn copy_out(&self, pieces: &Pieces, mut to: &mut [u8]) {
        for (offset, length) in pieces.iter() {
            let (part, rest) = to.split_at_mut(length as usize);
            self.read(offset as usize, part);
            to = rest;
        }
    }

    /// Copies the start of a slice to a range of the ring.
    pub(crate) fn copy_in(&self, pieces: &Pieces, mut from: &[u8]) {
        for (offset, length) in pieces.iter() {
            let (part, rest) = from.split_at(length as usize);
            self.write(offset as usize, part);
            from = rest;
        }
    }

    fn place(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.layout.size()),
            "{length} bytes at {offset} of a buffer of {}",
            self.layout.size()
        );
        self.memory.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Err(refused) = self.device.deregister(&self.mr) {
            // Leaked: the device may still write to the memory.
            tracing::warn!("an rsocket's buffer stays registered: {refused}");
            return;
        }
        // SAFETY: `deregister` returned, so the device does not use the memory any more; it
        // was allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// Memory of the program that the peer may write to with `riowrite`.
#[derive(Debug)]
pub(crate) struct Mapping {
    addr: u64,
    length: u32,
    mr: Arc<Mr>,
    device: Arc<Device>,
}

impl Mapping {
    /// Registers memory of the program.
    ///
    /// # Safety
    ///
    /// The memory stays allocated until the mapping is dropped. Until then the device may
    /// write to it at any time, so the program has no Rust references to it.
    pub(crate) unsafe fn new(
        device: &Arc<Device>,
        pd: &Arc<Pd>,
        (addr, length): (u64, u32),
        access: Access,
    ) -> Result<Mapping> {
        let mr = device.register(pd, addr, length.into(), addr, access);
        Ok(Mapping {
            addr,
            length,
            mr: mr.map_err(error::of_verbs)?,
            device: Arc::clone(device),
        })
    }

    /// Returns the memory as the peer names it.
    pub(crate) fn region(&self) -> crate::wire::Region {
        crate::wire::Region {
            addr: self.addr,
            key: self.mr.rkey(),
            length: self.length,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Err(refused) = self.device.deregister(&self.mr) {
            tracing::warn!("an iomap of an rsocket stays registered: {refused}");
        }
    }
}
