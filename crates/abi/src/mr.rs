//! Memory regions.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use ferroce_device::Device;
use ferroce_device::transport::{Access, MemRef, MemorySpace, Mr, Rereg, VerbsError};

use crate::context::context_of;
use crate::dm::MemoryUse;
use crate::errno::{errno_of, null, refuse, set_errno};
use crate::ffi::*;
use crate::import;
use crate::mapping::{self, Mapping, Unmapped};
use crate::object::{Object, free, from_c, into_c, object};
use crate::pd::{PdObject, PdUse};
use crate::profile;
use crate::provoke::provoke;
use crate::strict::memory;

/// Access flags that a region of a dma-buf may have.
const DMABUF_ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | OPTIONAL;
/// Access flags that are hints; unknown ones are ignored.
const OPTIONAL: u32 = 0x3ff0_0000;
/// `IBV_REREG_MR_KEEP_VALID`, a flag of `ibv_rereg_mr` without documentation.
const REREG_KEEP_VALID: u32 = 1 << 3;

/// `ibv_mr`
#[repr(C)]
pub(crate) struct MrObject {
    c: UnsafeCell<ibv_mr>,
    /// Zeros: provider libraries use a larger structure.
    _room: [u64; 2],
    region: Arc<Region>,
}

// SAFETY: `repr(C)`, and the first field is a cell of the C structure.
unsafe impl Object for MrObject {
    type C = ibv_mr;
}

/// The part that all `ibv_mr` of one region share: imports are further ones.
pub(crate) struct Region {
    device: Arc<Device>,
    mr: Arc<Mr>,
    domain: Mutex<Option<PdUse>>,
    backing: Option<Backing>,
}

impl Drop for Region {
    /// Deregisters the region if the program has freed its last object by `ibv_unimport_mr`:
    /// peers must not reach memory that is freed with the region.
    fn drop(&mut self) {
        match self.device.deregister(&self.mr) {
            Ok(()) | Err(VerbsError::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!("a memory region without objects stays registered: {error}");
                core::mem::forget(self.backing.take());
            }
        }
    }
}

/// Memory that is freed with the region.
pub(crate) enum Backing {
    /// Device memory.
    Device(#[allow(dead_code)] MemoryUse),
    /// A mapping of a dma-buf.
    Mapped(#[allow(dead_code)] Mapping),
}

impl Region {
    /// Wraps a region that is registered in this domain.
    pub(crate) fn new(pd: &PdObject, mr: Arc<Mr>, backing: Option<Backing>) -> Arc<Region> {
        Arc::new(Region {
            device: Arc::clone(pd.device()),
            mr,
            domain: Mutex::new(Some(pd.hold())),
            backing,
        })
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the engine's region.
    pub(crate) fn mr(&self) -> &Arc<Mr> {
        &self.mr
    }

    /// Replaces the protection domain that the region keeps busy.
    fn move_to(&self, domain: Option<PdUse>) {
        *self.domain.lock().unwrap_or_else(PoisonError::into_inner) = domain;
    }
}

impl MrObject {
    /// Creates a program's object with a new handle.
    pub(crate) fn create(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        region: Arc<Region>,
    ) -> *mut ibv_mr {
        // SAFETY: `pd` is live, and so is its context: the functions that call this one have
        // found its object.
        let settings = unsafe { context_of((*pd).context) }.settings;
        if settings.is_strict() && region.mr.memory().is_host() && !region.mr.is_null() {
            let (mr, start) = (&region.mr, region.mr.memory().addr());
            memory::registered(&region.device, mr.lkey(), start, mr.iova(), length as u64);
        }
        let handle = import::add_mr(&region);
        MrObject::with_handle(pd, addr, length, region, handle)
    }

    /// Creates a program's object with a known handle.
    pub(crate) fn with_handle(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        region: Arc<Region>,
        handle: u32,
    ) -> *mut ibv_mr {
        let c = ibv_mr {
            // SAFETY: `pd` is not NULL and live: the functions that call this one have found
            // its object.
            context: unsafe { (*pd).context },
            pd,
            addr,
            length,
            handle,
            lkey: region.mr.lkey(),
            rkey: match region.mr.is_null() {
                true => 0,
                false => region.mr.rkey(),
            },
        };
        into_c(Box::new(MrObject {
            c: UnsafeCell::new(c),
            _room: [0; 2],
            region,
        }))
    }

    /// Returns the engine's region.
    pub(crate) fn mr(&self) -> &Arc<Mr> {
        &self.region.mr
    }
}

/// `ibv_reg_mr`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    provoke!("ibv_reg_mr" => null);
    // SAFETY: the program's domain is live or NULL, and it gives its memory to the device.
    unsafe { register(pd, addr, length, addr as u64, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    provoke!("ibv_reg_mr" => null);
    // SAFETY: the program's domain is live or NULL, and it gives its memory to the device.
    unsafe { register(pd, addr, length, iova, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova2`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: core::ffi::c_uint,
) -> *mut ibv_mr {
    provoke!("ibv_reg_mr" => null);
    // SAFETY: the program's domain is live or NULL, and it gives its memory to the device.
    unsafe { register(pd, addr, length, iova, access) }
}

/// Registers memory of the program.
///
/// # Safety
///
/// The domain is live, or NULL. The program gives `length` bytes at `addr` to the device until
/// it deregisters them.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    let object = object!(pd as PdObject, "ibv_reg_mr: the protection domain is NULL" => null);
    let start = addr as u64;
    let device = object.device();
    // SAFETY: a context is open as long as it has domains.
    let settings = unsafe { context_of(object.context()) }.settings;
    let on_demand = access & IBV_ACCESS_ON_DEMAND != 0;
    let implicit = on_demand && start == 0 && length == usize::MAX;
    let permitted = profile::check(&settings, |profile| {
        profile.check_mr(length as u64, on_demand, implicit)
    });
    if let Err(errno) = permitted {
        return null(errno);
    }
    let memory = match locate(device, start, length, iova, access) {
        Err(errno) => return null(errno),
        Ok(memory) => memory,
    };
    let access = Access::from_bits_retain(access);
    // SAFETY: the program gives its memory to the device until it deregisters it: see
    // `# Safety`. It is written in C, so it has no Rust references.
    let registered =
        unsafe { device.register_at(object.pd(), memory, length as u64, iova, access) };
    match registered {
        Err(error) => null(errno_of(&error)),
        Ok(mr) => MrObject::create(pd, addr, length, Region::new(object, mr, None)),
    }
}

/// Returns the memory of a registration, of a GPU or of the process.
fn locate(
    device: &Device,
    addr: u64,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<MemRef, c_int> {
    let memory = device.locate(addr, length as u64);
    let memory = memory.map_err(|error| errno_of(&error))?;
    match memory.space() {
        MemorySpace::Host => check(addr, length, iova, access)?,
        MemorySpace::Gpu(_) => check_offset(addr, iova, access)?,
    }
    Ok(memory)
}

/// Refuses registrations of host memory that the kernel refuses: a range beyond the address
/// space, an iova with another offset in its page, unmapped memory.
pub(crate) fn check(addr: u64, length: usize, iova: u64, access: u32) -> Result<(), c_int> {
    let on_demand = access & IBV_ACCESS_ON_DEMAND != 0;
    if on_demand && addr == 0 && length == usize::MAX {
        // An implicit region: the whole address space.
        return match iova == 0 && access & IBV_ACCESS_HUGETLB == 0 {
            true => Ok(()),
            false => Err(refuse(
                libc::EINVAL,
                "an on-demand region of all memory has iova 0 and no huge pages",
            )),
        };
    }
    check_offset(addr, iova, access)?;
    let pages = mapping::pages(addr, length as u64).ok_or_else(|| {
        refuse(
            libc::EINVAL,
            format_args!("{length} bytes at {addr:#x} pass the end of the address space"),
        )
    })?;
    match on_demand {
        true => Ok(()),
        false if pages.is_empty() => Err(refuse(
            libc::EINVAL,
            "a memory region of 0 bytes needs on-demand access",
        )),
        false => mapping::check_mapped(pages),
    }
}

/// Refuses an iova with another offset in its page than the address.
fn check_offset(addr: u64, iova: u64, access: u32) -> Result<(), c_int> {
    let zero_based = access & IBV_ACCESS_ZERO_BASED != 0;
    match zero_based || (addr ^ iova) & mapping::OFFSET == 0 {
        true => Ok(()),
        false => Err(refuse(
            libc::EINVAL,
            format_args!("address {addr:#x} and iova {iova:#x} differ within a page"),
        )),
    }
}

/// `ibv_reg_dmabuf_mr`, for any file that can be mapped, and for memory of a GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    provoke!("ibv_reg_mr" => null);
    let object =
        object!(pd as PdObject, "ibv_reg_dmabuf_mr: the protection domain is NULL" => null);
    let access = access.cast_unsigned();
    if access & !DMABUF_ACCESS != 0 || (offset ^ iova) & mapping::OFFSET != 0 {
        return null(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_reg_dmabuf_mr: access flags {access:#x}, or offset {offset:#x} and iova {iova:#x} differ within a page"
            ),
        ));
    }
    let writable = access & IBV_ACCESS_LOCAL_WRITE != 0;
    let device = object.device();
    let (memory, backing) = match Mapping::of_file(fd, offset, length, writable) {
        Ok(mapping) => (
            MemRef::host(mapping.start()),
            Some(Backing::Mapped(mapping)),
        ),
        Err(Unmapped(libc::EOPNOTSUPP, why)) => match dmabuf_of_gpu(device, iova, length, &why) {
            Err(errno) => return null(errno),
            Ok(memory) => (memory, None),
        },
        Err(Unmapped(errno, why)) => return null(refuse(errno, why)),
    };
    let access = Access::from_bits_retain(access);
    // SAFETY: the region owns the mapping, as its `Backing`, until it is deregistered. There
    // are no Rust references to a mapping's memory. Memory of a GPU may be freed meanwhile.
    let registered =
        unsafe { device.register_at(object.pd(), memory, length as u64, iova, access) };
    match registered {
        Err(error) => null(errno_of(&error)),
        Ok(mr) => {
            let region = Region::new(object, mr, backing);
            let addr = ptr::without_provenance_mut(offset as usize);
            MrObject::create(pd, addr, length, region)
        }
    }
}

/// Returns the memory of a dma-buf that a GPU's driver has exported. The processor cannot map it,
/// but this process knows its address: NCCL, UCX and libfabric pass the pointer as iova.
fn dmabuf_of_gpu(device: &Device, iova: u64, length: usize, why: &str) -> Result<MemRef, c_int> {
    let memory = device.locate(iova, length as u64);
    let memory = memory.map_err(|error| errno_of(&error))?;
    match memory.space() {
        MemorySpace::Gpu(_) => Ok(memory),
        MemorySpace::Host => Err(refuse(
            libc::EOPNOTSUPP,
            format_args!(
                "{why}, and iova {iova:#x} is not the address of a GPU's memory in this process"
            ),
        )),
    }
}

/// `ibv_alloc_null_mr`
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    let object =
        object!(pd as PdObject, "ibv_alloc_null_mr: the protection domain is NULL" => null);
    match object.device().register_null(object.pd()) {
        Err(error) => null(errno_of(&error)),
        Ok(mr) => {
            let region = Region::new(object, mr, None);
            MrObject::create(pd, ptr::null_mut(), usize::MAX, region)
        }
    }
}

/// `ibv_dereg_mr`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    provoke!("ibv_dereg_mr" => errno);
    let object = object!(mr as MrObject, "ibv_dereg_mr: the memory region is NULL" => errno);
    let region = &object.region;
    // SAFETY: a context is open as long as it has memory regions.
    let settings = unsafe { context_of((*object.c.get()).context) }.settings;
    let unused = memory::check_deregister(&settings, &region.device, region.mr.lkey());
    if let Err(errno) = unused {
        return errno;
    }
    match region.device.deregister(&region.mr) {
        Ok(()) => {}
        // Another import of the region deregistered it first.
        Err(VerbsError::NotFound(_)) => {
            return refuse(
                libc::EINVAL,
                "ibv_dereg_mr: the memory region is no longer registered",
            );
        }
        Err(error) => return errno_of(&error),
    }
    if settings.is_strict() {
        memory::deregistered(&region.device, region.mr.lkey());
    }
    region.move_to(None);
    // SAFETY: the field changes only in `ibv_rereg_mr`, which must not run meanwhile.
    import::remove(unsafe { (*object.c.get()).handle });
    free!(mr as MrObject);
    0
}

/// `ibv_rereg_mr`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // IBV_REREG_MR_ERR_INPUT: the region is valid as before.
    provoke!("ibv_rereg_mr" => minus_one);
    // SAFETY: the program's objects are live, or NULL.
    let (object, pd_object) = unsafe { (from_c::<MrObject>(mr), from_c::<PdObject>(pd)) };
    let (flags, access) = (flags.cast_unsigned(), access.cast_unsigned());
    let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let permits = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
    let migrates = flags & IBV_REREG_MR_CHANGE_PD != 0;
    let known = IBV_REREG_MR_FLAGS_SUPPORTED | REREG_KEEP_VALID;
    let Some(object) = object.filter(|_| {
        flags & !known == 0
            && flags & !REREG_KEEP_VALID != 0
            && !(moves && (length == 0 || addr.is_null()))
            && (access == 0 || permits)
            && !(migrates && pd.is_null())
    }) else {
        refuse(
            libc::EINVAL,
            format_args!(
                "ibv_rereg_mr: flags {flags:#x}, access {access:#x}, {length} bytes at {addr:?}: do not fit"
            ),
        );
        return IBV_REREG_MR_ERR_INPUT;
    };
    let region = &object.region;
    let change = Change {
        place: moves.then_some((addr as u64, length)),
        pd: pd_object.filter(|_| migrates),
        access: permits.then_some(access),
    };
    if let Err(errno) = change.apply(region) {
        set_errno(errno);
        return IBV_REREG_MR_ERR_CMD;
    }
    let c = object.c.get();
    // SAFETY: the program does not use the region during this call, and `pd` was checked.
    unsafe {
        if moves {
            (*c).addr = addr;
            (*c).length = length;
        }
        if migrates {
            (*c).pd = pd;
            (*c).context = (*pd).context;
        }
    }
    0
}

/// The changes of a re-registration.
struct Change<'a> {
    place: Option<(u64, usize)>,
    pd: Option<&'a PdObject>,
    access: Option<u32>,
}

impl Change<'_> {
    fn apply(&self, region: &Region) -> Result<(), c_int> {
        if self
            .pd
            .is_some_and(|pd| !Arc::ptr_eq(pd.device(), &region.device))
        {
            return Err(refuse(
                libc::EINVAL,
                "ibv_rereg_mr: the protection domain is of another context",
            ));
        }
        let access = self.access.unwrap_or(region.mr.access().bits());
        let translation = match self.place {
            None => None,
            Some((addr, length)) => {
                let memory = locate(&region.device, addr, length, addr, access)?;
                Some((memory, length as u64, addr))
            }
        };
        let change = Rereg {
            translation,
            pd: self.pd.map(|pd| Arc::clone(pd.pd())),
            access: self.access.map(Access::from_bits_retain),
        };
        // SAFETY: the program gives the memory of the new translation to the device until it
        // deregisters or changes the region again: that is the contract of `ibv_rereg_mr`.
        unsafe { region.device.reregister(&region.mr, &change) }
            .map_err(|error| errno_of(&error))?;
        if let Some(pd) = self.pd {
            region.move_to(Some(pd.hold()));
        }
        Ok(())
    }
}
