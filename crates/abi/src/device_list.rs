//! The list of devices; opening and closing devices.
//!
//! An `ibv_device` is never freed: a program may use it after it has freed the list. All
//! lists have the same pointer for the same link.

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
use crate::object::{Object, into_c};
use crate::provoke::provoke;

/// Number of words after `ibv_device`: provider libraries read fields there.
const ROOM: usize = 16;

/// `ibv_device`: a link.
#[repr(C)]
pub(crate) struct DeviceObject {
    c: UnsafeCell<ibv_device>,
    _room: [u64; ROOM],
    /// The link as of the last list.
    link: Mutex<LinkInfo>,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for DeviceObject {
    type C = ibv_device;
}

/// All devices that were ever in a list.
static DEVICES: Mutex<Vec<Pointer>> = Mutex::new(Vec::new());

#[derive(Copy, Clone)]
struct Pointer(*mut ibv_device);

// SAFETY: devices are never freed, and their changing part is locked.
unsafe impl Send for Pointer {}

impl Pointer {
    /// Returns the device. Pointers come from [`DeviceObject::create`] only.
    fn object<'a>(self) -> &'a DeviceObject {
        // SAFETY: the pointer came from `create`, and devices are never freed.
        unsafe { &*self.0.cast::<DeviceObject>() }
    }
}

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

    /// Returns the link as of the last list.
    pub(crate) fn link(&self) -> MutexGuard<'_, LinkInfo> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the device of a program's pointer, if it is in the table.
pub(crate) fn device_of<'a>(device: *mut ibv_device) -> Option<&'a DeviceObject> {
    let devices = devices();
    let known = devices.iter().find(|known| known.0 == device);
    known.map(|known| known.object())
}

/// Returns the device with this name.
pub(crate) fn device_named<'a>(name: &str) -> Option<&'a DeviceObject> {
    let devices = devices();
    let mut objects = devices.iter().map(|device| device.object());
    objects.find(|device| device.link().name == name)
}

/// Returns the device of a link, which is created if the link is new.
fn device_for(devices: &mut Vec<Pointer>, link: LinkInfo) -> *mut ibv_device {
    for known in devices.iter() {
        let mut current = known.object().link();
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
    provoke!("ibv_get_device_list" => null);
    log::start();
    let links = match list_links() {
        Ok(links) => links,
        Err(error) => {
            tracing::warn!("no devices: {error}");
            // Unlike a missing ferroced, one that does not answer may have links.
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
    // SAFETY: `calloc` has no preconditions.
    let list = unsafe { libc::calloc(pointers.len() + 1, size_of::<*mut ibv_device>()) };
    let list = list.cast::<*mut ibv_device>();
    if list.is_null() {
        return null(refuse(
            libc::ENOMEM,
            "ibv_get_device_list: the process has no memory left",
        ));
    }
    // SAFETY: the list has room for one pointer more than these.
    unsafe { ptr::copy_nonoverlapping(pointers.as_ptr(), list, pointers.len()) };
    if !num_devices.is_null() {
        // SAFETY: the program's variable is writable.
        unsafe { *num_devices = pointers.len() as c_int };
    }
    list
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the program's list came from `ibv_get_device_list`, or is NULL.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the program's device is valid.
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
    provoke!("ibv_open_device" => null);
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
    // SAFETY: the program's context is open, and this is its last use.
    unsafe { ContextObject::close(context) };
    0
}

fn devices() -> MutexGuard<'static, Vec<Pointer>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies a string into a C field, whose last byte stays 0.
fn put<const N: usize>(field: &mut [c_char; N], text: &str) {
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}
