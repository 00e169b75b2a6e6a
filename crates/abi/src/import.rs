//! Importing devices, protection domains, memory regions and device memory of another
//! context of this process.
//!
//! Objects are imported by their handles, which are unique in the process. An import is a
//! second C object of the same Rust object.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::context::{
    COMMAND_FILE, ContextObject, context, context_of, context_of_fd, is_command_fd,
};
use crate::dm::{DmObject, Memory};
use crate::errno::{null, refuse};
use crate::ffi::{ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::mr::{MrObject, Region};
use crate::object::{from_c, take};
use crate::pd::{Domain, PdObject};

/// An object with a handle.
enum Shared {
    Pd(Weak<Domain>),
    Mr(Weak<Region>),
    Dm(Weak<Memory>),
}

static SHARED: Mutex<BTreeMap<u32, Shared>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Returns a new handle for a protection domain.
pub(crate) fn add_pd(domain: &Arc<Domain>) -> u32 {
    add(Shared::Pd(Arc::downgrade(domain)))
}

/// Returns a new handle for a memory region.
pub(crate) fn add_mr(region: &Arc<Region>) -> u32 {
    add(Shared::Mr(Arc::downgrade(region)))
}

/// Returns a new handle for device memory.
pub(crate) fn add_dm(memory: &Arc<Memory>) -> u32 {
    add(Shared::Dm(Arc::downgrade(memory)))
}

/// Frees a handle.
pub(crate) fn remove(handle: u32) {
    shared().remove(&handle);
}

fn add(what: Shared) -> u32 {
    let mut shared = shared();
    loop {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed) & 0x7fff_ffff;
        if handle != 0 && !shared.contains_key(&handle) {
            shared.insert(handle, what);
            return handle;
        }
    }
}

fn shared() -> MutexGuard<'static, BTreeMap<u32, Shared>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `ibv_import_device`. The new context owns the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    let Some(context) = context_of_fd(cmd_fd) else {
        return null(refuse_fd(cmd_fd));
    };
    // SAFETY: the context is in the list of open contexts, and the program does not close it
    // during this call.
    let (owner, device) = unsafe { (context_of(context), (*context).device) };
    let mut cmd_fd = cmd_fd;
    if is_command_fd(cmd_fd) {
        // The first context owns this descriptor, so the new one gets a duplicate.
        // SAFETY: the call creates a descriptor and accesses no memory.
        cmd_fd = unsafe { libc::fcntl(cmd_fd, libc::F_DUPFD_CLOEXEC, 0) };
        if cmd_fd < 0 {
            return null(refuse(
                libc::EMFILE,
                "ibv_import_device: no file descriptor is left",
            ));
        }
    }
    // SAFETY: the program hands over its duplicate, or it was created above.
    let file = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
    ContextObject::with_file(device, Arc::clone(&owner.device), file)
}

/// Refuses a descriptor that is not the `cmd_fd` of a context of this process.
fn refuse_fd(fd: c_int) -> c_int {
    match std::fs::read_link(format!("/proc/self/fd/{fd}")) {
        Err(_) => refuse(
            libc::EBADF,
            format_args!("ibv_import_device: file descriptor {fd} is not open"),
        ),
        Ok(file) if file.to_string_lossy().contains(COMMAND_FILE) => refuse(
            libc::EOPNOTSUPP,
            format_args!(
                "ibv_import_device: file descriptor {fd} is of another process, whose memory this one does not share"
            ),
        ),
        Ok(_) => refuse(
            libc::EINVAL,
            format_args!("ibv_import_device: file descriptor {fd} is not the cmd_fd of a context"),
        ),
    }
}

/// `ibv_import_pd`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    let domain = match shared().get(&pd_handle) {
        Some(Shared::Pd(domain)) => domain.upgrade(),
        _ => None,
    };
    let device = &context!(context, "ibv_import_pd: the context is NULL" => null).device;
    let Some(domain) = domain else {
        return null(refuse(
            libc::EINVAL,
            format_args!("ibv_import_pd: no protection domain has handle {pd_handle}"),
        ));
    };
    match Arc::ptr_eq(device, domain.device()) {
        false => null(refuse(
            libc::EINVAL,
            format_args!("ibv_import_pd: protection domain {pd_handle} is of another device"),
        )),
        true => PdObject::create(context, domain, pd_handle, None),
    }
}

/// `ibv_unimport_pd`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    if !pd.is_null() {
        // SAFETY: this is the program's last use. Objects in the domain hold its Rust object.
        drop(unsafe { take::<PdObject>(pd) });
    }
}

/// `ibv_import_mr`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    let region = match shared().get(&mr_handle) {
        Some(Shared::Mr(region)) => region.upgrade(),
        _ => None,
    };
    // SAFETY: the program's protection domain is live, or NULL.
    let (Some(region), Some(object)) = (region, unsafe { from_c::<PdObject>(pd) }) else {
        return null(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_import_mr: no memory region has handle {mr_handle}, or the protection domain is NULL"
            ),
        ));
    };
    if !Arc::ptr_eq(object.device(), region.device()) {
        return null(refuse(
            libc::EINVAL,
            format_args!("ibv_import_mr: memory region {mr_handle} is of another device"),
        ));
    }
    let length = usize::try_from(region.mr().length()).unwrap_or(usize::MAX);
    MrObject::with_handle(pd, ptr::null_mut(), length, region, mr_handle)
}

/// `ibv_unimport_mr`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    if !mr.is_null() {
        // SAFETY: this is the program's last use of the object.
        drop(unsafe { take::<MrObject>(mr) });
    }
}

/// `ibv_import_dm`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    let memory = match shared().get(&dm_handle) {
        Some(Shared::Dm(memory)) => memory.upgrade(),
        _ => None,
    };
    let device = &context!(context, "ibv_import_dm: the context is NULL" => null).device;
    let Some(memory) = memory else {
        return null(refuse(
            libc::EINVAL,
            format_args!("ibv_import_dm: no device memory has handle {dm_handle}"),
        ));
    };
    match Arc::ptr_eq(device, memory.device()) {
        false => null(refuse(
            libc::EINVAL,
            format_args!("ibv_import_dm: device memory {dm_handle} is of another device"),
        )),
        true => DmObject::create(context, memory, dm_handle),
    }
}

/// `ibv_unimport_dm`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    if !dm.is_null() {
        // SAFETY: this is the program's last use of the object.
        drop(unsafe { take::<DmObject>(dm) });
    }
}
