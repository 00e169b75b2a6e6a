//! The list of devices; opening and closing them.
//!
//! Each link is one device, for as long as the process lives: a program may hold
//! on to an `ibv_device` longer than to the list it came from, and two lists
//! name the same device by the same pointer.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferroce_control::Error;
use ferroce_device::{Device, LinkInfo, list_links};

use crate::context::ContextObject;
use crate::errno::{errno_of_device, null, refuse};
use crate::ffi::{
    __be64, IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_context,
    ibv_device, zeroed,
};
use crate::log;
use crate::object::{Object, from_c, into_c};

/// Bytes behind `ibv_device` that provider libraries look at, and some more.
const ROOM: usize = 16;

/// A link as programs see it.
#[repr(C)]
pub(crate) struct DeviceObject {
    c: UnsafeCell<ibv_device>,
    _room: [u64; ROOM],
    /// The link when it was last listed.
    link: Mutex<LinkInfo>,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for DeviceObject {
    type C = ibv_device;
}

/// All devices this process has ever seen.
static DEVICES: Mutex<Vec<Pointer>> = Mutex::new(Vec::new());

#[derive(Copy, Clone)]
struct Pointer(*mut ibv_device);

// SAFETY: devices are never freed, and what changes in them is behind a lock.
unsafe impl Send for Pointer {}

impl DeviceObject {
    fn create(link: LinkInfo) -> *mut ibv_device {
        let mut c: ibv_device = zeroed();
        (c.node_type, c.transport_type) = match link.kind.as_str() {
            "siw" => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
            _ => (IBV_NODE_CA, IBV_TRANSPORT_IB),
        };
        let verbs = format!("uverbs{}", link.index);
        put(&mut c.name, &link.name);
        put(&mut c.dev_name, &verbs);
        put(
            &mut c.dev_path,
            &format!("/sys/class/infiniband_verbs/{verbs}"),
        );
        put(
            &mut c.ibdev_path,
            &format!("/sys/class/infiniband/{}", link.name),
        );
        into_c(Box::new(DeviceObject {
            c: UnsafeCell::new(c),
            _room: [0; ROOM],
            link: Mutex::new(link),
        }))
    }

    /// The link when it was last listed.
    pub(crate) fn link(&self) -> MutexGuard<'_, LinkInfo> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device a program means, if it is one.
pub(crate) fn device_of<'a>(device: *mut ibv_device) -> Option<&'a DeviceObject> {
    let known = devices().iter().any(|known| known.0 == device);
    // SAFETY: it is one of ours, and those are never freed.
    known.then(|| unsafe { from_c(device) }).flatten()
}

/// The device with this `ibdev_path` or name.
pub(crate) fn device_named<'a>(name: &str) -> Option<&'a DeviceObject> {
    let devices = devices();
    // SAFETY: devices are never freed.
    let mut objects = devices
        .iter()
        .filter_map(|d| unsafe { from_c::<DeviceObject>(d.0) });
    objects.find(|device| device.link().name == name)
}

/// The device of a link: the one it had, or a new one.
fn device_for(devices: &mut Vec<Pointer>, link: LinkInfo) -> *mut ibv_device {
    for known in devices.iter() {
        // SAFETY: devices are never freed.
        let Some(object) = (unsafe { from_c::<DeviceObject>(known.0) }) else {
            continue;
        };
        let mut current = object.link();
        if (current.index, &current.name) == (link.index, &link.name) {
            *current = link;
            return known.0;
        }
    }
    let device = DeviceObject::create(link);
    devices.push(Pointer(device));
    device
}

/// Returns the device of a link for the program.
pub(crate) fn device_of_link(link: LinkInfo) -> *mut ibv_device {
    device_for(&mut devices(), link)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    log::start();
    let links = match list_links() {
        Ok(links) => links,
        Err(error) => {
            tracing::warn!("no devices: {error}");
            // A ferroced that does not answer may have any number of links.
            if matches!(error, Error::Timeout { .. }) {
                return null(error.errno());
            }
            Vec::new()
        }
    };
    let mut devices = devices();
    let pointers: Vec<_> = links
        .into_iter()
        .map(|link| device_for(&mut devices, link))
        .collect();
    // SAFETY: plain allocation of zeros.
    let list = unsafe { libc::calloc(pointers.len() + 1, size_of::<*mut ibv_device>()) };
    let list = list.cast::<*mut ibv_device>();
    if list.is_null() {
        return null(refuse(
            libc::ENOMEM,
            "ibv_get_device_list: the process has no memory left",
        ));
    }
    // SAFETY: the list has room for one more than these.
    unsafe { ptr::copy_nonoverlapping(pointers.as_ptr(), list, pointers.len()) };
    if !num_devices.is_null() {
        // SAFETY: by contract the program's pointer is valid.
        unsafe { *num_devices = pointers.len() as c_int };
    }
    list
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: by contract the list came from `ibv_get_device_list`, or is NULL.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: by contract the device is valid.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    let guid = device_of(device).map_or([0; 8], |device| device.link().guid());
    u64::from_ne_bytes(guid)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    let index = device_of(device).map(|device| device.link().index);
    index.and_then(|index| index.try_into().ok()).unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    log::start();
    let Some(object) = device_of(device) else {
        return null(refuse(
            libc::EINVAL,
            "ibv_open_device: the device is NULL or not of this library",
        ));
    };
    let name = object.link().name.clone();
    match Device::open(&name) {
        Ok(opened) => ContextObject::create(device, opened).unwrap_or_else(null),
        Err(error) => {
            tracing::warn!("cannot open {name}: {error}");
            null(errno_of_device(&error))
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return refuse(libc::EINVAL, "ibv_close_device: the context is NULL");
    }
    // SAFETY: by contract the context is open, and this is its last use.
    unsafe { ContextObject::close(context) };
    0
}

fn devices() -> MutexGuard<'static, Vec<Pointer>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a string into a field of C, which keeps its final zero.
fn put<const N: usize>(field: &mut [c_char; N], text: &str) {
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}
