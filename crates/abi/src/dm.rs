//! Device memory: plain memory of the process. Programs access it only through
//! `ibv_memcpy_to_dm`, `ibv_memcpy_from_dm` and zero-based regions.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use ferroce_device::transport::{Access, MemRef, Memory as _};
use ferroce_device::{Device, ProcessMemory};

use crate::arguments::{slice, slice_mut};
use crate::context::context;
use crate::errno::{errno_of, null, refuse};
use crate::ffi::{
    IBV_ACCESS_ZERO_BASED, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd, zeroed,
};
use crate::import;
use crate::limits;
use crate::mr::{Backing, MrObject, Region};
use crate::object::{Object, argument, free, from_c, into_c, object};
use crate::pd::PdObject;
use crate::profile;

/// Maximum number of bytes of device memory in a process.
const MAX_DM_SIZE: usize = limits::MAX_DM_SIZE as usize;
/// Maximum alignment, as a power of two.
const MAX_LOG_ALIGN: u32 = 21;
/// Minimum alignment, as a power of two: a cache line.
const MIN_LOG_ALIGN: u32 = 6;
/// Offsets and lengths of copies are multiples of this.
const UNIT: u64 = 4;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// `ibv_dm`
#[repr(C)]
pub(crate) struct DmObject {
    c: ibv_dm,
    memory: Arc<Memory>,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for DmObject {
    type C = ibv_dm;
}

/// The memory, which imports share.
pub(crate) struct Memory {
    device: Arc<Device>,
    start: *mut u8,
    layout: Layout,
    length: usize,
    /// Number of memory regions that use it.
    users: AtomicU32,
}

// SAFETY: the memory is not tied to a thread, and there are no references to it.
unsafe impl Send for Memory {}
// SAFETY: all accesses are copies through raw pointers, as for any RDMA buffer.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(device: &Arc<Device>, length: usize, log_align: u32) -> Result<Arc<Memory>, c_int> {
        if length == 0 || length > MAX_DM_SIZE || log_align > MAX_LOG_ALIGN {
            return Err(refuse(
                libc::EINVAL,
                format_args!(
                    "device memory of {length} bytes, alignment 2^{log_align}: at most {MAX_DM_SIZE} bytes and 2^{MAX_LOG_ALIGN}"
                ),
            ));
        }
        let align = 1 << log_align.max(MIN_LOG_ALIGN);
        let layout = Layout::from_size_align(length, align).map_err(|_| {
            refuse(
                libc::EINVAL,
                format_args!("device memory of {length} bytes, alignment {align}"),
            )
        })?;
        let more = |allocated: usize| Some(allocated + length).filter(|&sum| sum <= MAX_DM_SIZE);
        ALLOCATED
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| {
                refuse(
                    libc::ENOMEM,
                    format_args!(
                        "device memory of {length} bytes: too few of the device's {MAX_DM_SIZE} bytes are free"
                    ),
                )
            })?;
        // SAFETY: the layout's size is not 0, as checked above.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            ALLOCATED.fetch_sub(length, Ordering::Relaxed);
            return Err(refuse(
                libc::ENOMEM,
                format_args!("device memory of {length} bytes: the process has no memory left"),
            ));
        }
        Ok(Arc::new(Memory {
            device: Arc::clone(device),
            start,
            layout,
            length,
            users: AtomicU32::new(0),
        }))
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the address of an offset, if `length` bytes from there are inside.
    fn at(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.start.wrapping_add(offset))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; regions hold the `Arc`, so none is left.
        unsafe { dealloc(self.start, self.layout) };
        ALLOCATED.fetch_sub(self.length, Ordering::Relaxed);
    }
}

/// A region of device memory.
pub(crate) struct MemoryUse(Arc<Memory>);

impl Drop for MemoryUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DmObject {
    /// Creates the program's object.
    pub(crate) fn create(
        context: *mut ibv_context,
        memory: Arc<Memory>,
        handle: u32,
    ) -> *mut ibv_dm {
        into_c(Box::new(DmObject {
            c: ibv_dm {
                context,
                memcpy_to_dm: Some(memcpy_to_dm),
                memcpy_from_dm: Some(memcpy_from_dm),
                handle,
                ..zeroed()
            },
            memory,
        }))
    }
}

/// `ibv_alloc_dm`
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    let attr = argument!(attr, "ibv_alloc_dm: the attributes are NULL" => null);
    let owner = context!(context, "ibv_alloc_dm: the context is NULL" => null);
    let fits = |limits: &ferroce_strict::Limits| attr.length as u64 <= limits.max_dm_size;
    if let Err(errno) = profile::check_feature(&owner.settings, "device memory of this size", fits)
    {
        return null(errno);
    }
    let device = &owner.device;
    if attr.comp_mask != 0 {
        return null(refuse(libc::EINVAL, "ibv_alloc_dm: comp_mask is not 0"));
    }
    match Memory::new(device, attr.length, attr.log_align_req) {
        Err(errno) => null(errno),
        Ok(memory) => {
            let handle = import::add_dm(&memory);
            DmObject::create(context, memory, handle)
        }
    }
}

/// `ibv_free_dm`
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let object = object!(dm as DmObject, "ibv_free_dm: the device memory is NULL" => errno);
    if object.memory.users.load(Ordering::Acquire) > 0 {
        return refuse(
            libc::EBUSY,
            "ibv_free_dm: a memory region still uses the device memory",
        );
    }
    import::remove(object.c.handle);
    free!(dm as DmObject);
    0
}

/// `ibv_reg_dm_mr`
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    let pd_object = object!(pd as PdObject, "ibv_reg_dm_mr: the protection domain is NULL" => null);
    let object = object!(dm as DmObject, "ibv_reg_dm_mr: the device memory is NULL" => null);
    let (device, memory) = (pd_object.device(), &object.memory);
    let start = memory.at(dm_offset, length);
    let (true, true, Some(start)) = (
        access & IBV_ACCESS_ZERO_BASED != 0,
        Arc::ptr_eq(device, &memory.device),
        start,
    ) else {
        return null(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_reg_dm_mr: needs zero-based access, one context, and {length} bytes within the device memory"
            ),
        ));
    };
    let access = Access::from_bits_retain(access);
    let (start, length64) = (start as u64, length as u64);
    // SAFETY: the region holds the device memory, as its `Backing`, until it is deregistered.
    // There are no Rust references to that memory.
    let registered = unsafe { device.register(pd_object.pd(), start, length64, 0, access) };
    match registered {
        Err(error) => null(errno_of(&error)),
        Ok(mr) => {
            memory.users.fetch_add(1, Ordering::AcqRel);
            let backing = Backing::Device(MemoryUse(Arc::clone(memory)));
            let region = Region::new(pd_object, mr, Some(backing));
            MrObject::create(pd, ptr::null_mut(), length, region)
        }
    }
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program's device memory is live, or NULL.
    let place = unsafe { place(dm, dm_offset, length) };
    let Some(place) = place.filter(|_| !host_addr.is_null()) else {
        return refuse(
            libc::EFAULT,
            "ibv_memcpy_to_dm: the host address is NULL, or the range is outside of the device memory",
        );
    };
    // SAFETY: the program's buffer has `length` bytes, and `place` checked the range of the
    // device memory, to which there are no references. Peers may access it meanwhile, so
    // that `ptr::copy` would be a data race.
    let copied = unsafe {
        let from = slice(host_addr.cast(), length).unwrap_or_default();
        ProcessMemory::recent().write(MemRef::host(place as u64), from)
    };
    copied.map_or_else(|fault| refuse(libc::EFAULT, fault), |()| 0)
}

unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the program's device memory is live, or NULL.
    let place = unsafe { place(dm, dm_offset, length) };
    let Some(place) = place.filter(|_| !host_addr.is_null()) else {
        return refuse(
            libc::EFAULT,
            "ibv_memcpy_from_dm: the host address is NULL, or the range is outside of the device memory",
        );
    };
    // SAFETY: as in `memcpy_to_dm`; the program does not use its buffer during the call.
    let copied = unsafe {
        let to = slice_mut(host_addr.cast(), length).unwrap_or_default();
        ProcessMemory::recent().read(MemRef::host(place as u64), to)
    };
    copied.map_or_else(|fault| refuse(libc::EFAULT, fault), |()| 0)
}

/// Returns the address of a range for a copy, if it is inside and aligned to [`UNIT`].
///
/// # Safety
///
/// The device memory is live, or NULL.
unsafe fn place(dm: *mut ibv_dm, offset: u64, length: usize) -> Option<*mut u8> {
    // SAFETY: the device memory is live, or NULL: see `# Safety`.
    let object = unsafe { from_c::<DmObject>(dm) }?;
    let whole = (offset | length as u64).is_multiple_of(UNIT);
    object.memory.at(offset, length).filter(|_| whole)
}
