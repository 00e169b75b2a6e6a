//! Memory that is owned and registered.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use ferroce_roce::{Access, Mr, Pd, Sge, VerbsError};

use crate::device::Device;
use crate::memory::copy::copy;

/// Alignment of the memory: work requests run fastest on whole pages.
const PAGE: usize = 4096;

/// Registered memory for work requests and peers.
///
/// The device, and peers through it, write to the memory at any time. So the buffer lends no
/// `&[u8]`: [`read`](Buffer::read) and [`write`](Buffer::write) copy. A copy that overlaps
/// with a write of the device contains old and new bytes. A completion tells when the device
/// has finished.
///
/// Dropping the buffer deregisters the memory before it is freed. Work requests that name it
/// later fail, and so do requests of peers.
///
/// ```no_run
/// use ferroce_device::transport::{Access, RecvWr};
/// use ferroce_device::{Buffer, Device, Qp};
///
/// # fn example(qp: &Qp) -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open("rxe0")?;
/// let pd = device.alloc_pd();
/// let buffer = Buffer::new(&device, &pd, 4096, Access::LOCAL_WRITE)?;
/// buffer.write(0, b"hello");
/// qp.post_recv(&RecvWr { wr_id: 1, sges: &[buffer.sge(0, 4096)] })?;
/// // ... after the completion:
/// let mut message = [0; 5];
/// buffer.read(0, &mut message);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer {
    memory: NonNull<u8>,
    layout: Layout,
    length: usize,
    /// Address of the first byte for work requests and peers: 0 if the region is zero-based.
    addr: u64,
    mr: Arc<Mr>,
    device: Arc<Device>,
}

// SAFETY: the memory belongs to the buffer and not to a thread.
unsafe impl Send for Buffer {}
// SAFETY: threads with a shared reference access the memory by `copy` only, which may run at
// the same time as other copies and as the device.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `length` bytes of zeros and registers them.
    ///
    /// # Errors
    ///
    /// If there is no memory, or the device refuses the access flags.
    pub fn new(
        device: &Arc<Device>,
        pd: &Arc<Pd>,
        length: usize,
        access: Access,
    ) -> Result<Buffer, VerbsError> {
        let no_memory = || VerbsError::NoMemory(format!("a buffer of {length} bytes"));
        let layout = Layout::from_size_align(length.max(1), PAGE).map_err(|_| no_memory())?;
        // SAFETY: the layout's size is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        let start = memory.as_ptr().expose_provenance() as u64;
        // SAFETY: the buffer keeps the memory until `drop` has deregistered it. Only `copy`
        // accesses it, so there are no references to it.
        let registered = unsafe { device.register(pd, start, length as u64, start, access) };
        match registered {
            Ok(mr) => Ok(Buffer {
                memory,
                layout,
                length,
                addr: mr.iova(),
                mr,
                device: Arc::clone(device),
            }),
            Err(refused) => {
                // SAFETY: allocated above with this layout, and not registered.
                unsafe { dealloc(memory.as_ptr(), layout) };
                Err(refused)
            }
        }
    }

    /// Returns the address of the first byte, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the key for work requests of this process.
    pub fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    /// Returns the key for peers.
    pub fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    /// Returns a scatter/gather element for a part.
    ///
    /// # Panics
    ///
    /// If the part does not lie inside.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        self.check(offset, length as usize);
        Sge {
            addr: self.addr + offset as u64,
            length,
            lkey: self.mr.lkey(),
        }
    }

    /// Copies bytes out of the memory.
    ///
    /// # Panics
    ///
    /// If they do not lie inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        let from = self.memory.as_ptr().wrapping_add(offset);
        // SAFETY: `check` keeps the source inside the allocation, which only `copy` and the
        // device access. The destination is borrowed exclusively.
        unsafe { copy(to.as_mut_ptr(), from, to.len()) };
    }

    /// Copies bytes into the memory.
    ///
    /// # Panics
    ///
    /// If they do not lie inside.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let to = self.memory.as_ptr().wrapping_add(offset);
        // SAFETY: `check` keeps the destination inside the allocation, which only `copy` and
        // the device access.
        unsafe { copy(to, from.as_ptr(), from.len()) };
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "{length} bytes at {offset} of a buffer of {}",
            self.length
        );
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Err(refused) = self.device.deregister(&self.mr) {
            // The memory is leaked: peers may still write to it, for example by a window.
            tracing::warn!("a buffer stays registered: {refused}");
            return;
        }
        // SAFETY: `deregister` returned, so the device does not use the memory any more. It
        // was allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
