//! C objects of the devices of ids: one context for each link, which all ids of the process
//! share, with a protection domain for programs that have none.

use core::ffi::c_int;
use core::ptr;
use std::sync::{Arc, Mutex};

use ferroce_device::Device;
use ferroce_rdmacm::LinkDevice;

use super::{Outcome, last_errno, lock, refused};
use crate::context::ContextObject;
use crate::device_list::device_of_link;
use crate::errno::null;
use crate::ffi::*;
use crate::pd::alloc_pd;
use crate::xrcd::open_xrcd;

/// The C objects of a link's device. Never freed: programs keep them without limit.
#[derive(Debug)]
pub(crate) struct CmDevice {
    device: Arc<Device>,
    pub(crate) verbs: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    xrcd: Mutex<Option<Xrcd>>,
}

#[derive(Debug)]
struct Xrcd(*mut ibv_xrcd);

// SAFETY: all threads may use the domain, which is never closed.
unsafe impl Send for Xrcd {}
// SAFETY: all threads may use the context and the domain, which are never freed.
unsafe impl Send for CmDevice {}
// SAFETY: as for `Send`; the XRC domain is behind a lock.
unsafe impl Sync for CmDevice {}

static DEVICES: Mutex<Vec<&'static CmDevice>> = Mutex::new(Vec::new());

impl CmDevice {
    /// Returns the XRC domain of ids whose program brings none.
    pub(crate) fn xrcd(&self) -> Outcome<*mut ibv_xrcd> {
        let mut xrcd = lock(&self.xrcd);
        if let Some(xrcd) = &*xrcd {
            return Ok(xrcd.0);
        }
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        // SAFETY: the context is never closed, and `attr` is valid during the call.
        let new = unsafe { open_xrcd(self.verbs, &raw mut attr) };
        if new.is_null() {
            return Err(last_errno());
        }
        *xrcd = Some(Xrcd(new));
        Ok(new)
    }
}

/// Returns the C objects of a link's device; the first call creates them.
pub(crate) fn context_of(link: &LinkDevice) -> Outcome<&'static CmDevice> {
    let mut devices = lock(&DEVICES);
    let mut known = devices.iter();
    if let Some(device) = known.find(|known| Arc::ptr_eq(&known.device, link.device())) {
        return Ok(device);
    }
    let c_device = device_of_link((*link.link()).clone());
    let verbs = ContextObject::create(c_device, Arc::clone(link.device()))?;
    let pd = alloc_pd(verbs, link.device());
    let device: &'static CmDevice = Box::leak(Box::new(CmDevice {
        device: Arc::clone(link.device()),
        verbs,
        pd,
        xrcd: Mutex::new(None),
    }));
    devices.push(device);
    Ok(device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: the pointer is NULL or points to an int of the program.
    let count = unsafe { num_devices.as_mut() };
    let contexts = contexts();
    let list = match &contexts {
        Ok(contexts) => copy_to_c(contexts),
        Err(_) => ptr::null_mut(),
    };
    if let Some(count) = count {
        let contexts = contexts.as_ref().map_or(0, Vec::len);
        *count = if list.is_null() { 0 } else { contexts as c_int };
    }
    match contexts {
        Ok(_) => list,
        Err(errno) => null(errno),
    }
}

/// Returns a list that ends with NULL and that `rdma_free_devices` frees; NULL without memory.
fn copy_to_c(contexts: &[*mut ibv_context]) -> *mut *mut ibv_context {
    // SAFETY: `calloc` has no requirements. The list has room for one more pointer than is
    // copied to it.
    unsafe {
        let list = libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>());
        let list = list.cast::<*mut ibv_context>();
        if !list.is_null() {
            ptr::copy_nonoverlapping(contexts.as_ptr(), list, contexts.len());
        }
        list
    }
}

fn contexts() -> Outcome<Vec<*mut ibv_context>> {
    let devices = ferroce_rdmacm::all_devices().map_err(refused("rdma_get_devices"))?;
    let contexts = devices.iter().filter_map(|link| context_of(link).ok());
    Ok(contexts.map(|device| device.verbs).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the list is NULL, or `rdma_get_devices` allocated it.
    unsafe { libc::free(list.cast()) };
}
