//! The devices of connections: one open context for each link, which all ids of the
//! process share, with a protection domain for programs that bring none.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use ferroce_cm::ports::Host;
use ferroce_control::{Error, LinkInfo};
use ferroce_device::list_links;

use super::line::Line;
use super::{Outcome, last_errno, lock};
use crate::context::context_of;
use crate::device_list::{
    ibv_free_device_list, ibv_get_device_index, ibv_get_device_list, ibv_open_device,
};
use crate::errno::{null, refuse};
use crate::ffi::*;
use crate::limits::MAX_RD_ATOMIC;
use crate::pd::alloc_pd;
use crate::xrcd::open_xrcd;

/// READs and atomics that a queue pair can serve or have outstanding.
pub(crate) const MAX_DEPTH: u8 = MAX_RD_ATOMIC as u8;

/// A link that connections use. Never closed: programs hold its context as long
/// as they like.
#[derive(Debug)]
pub(crate) struct CmDevice {
    /// The index of the link.
    pub(crate) index: u32,
    pub(crate) verbs: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    xrcd: Mutex<Option<Xrcd>>,
}

#[derive(Debug)]
struct Xrcd(*mut ibv_xrcd);

// SAFETY: domains may be used by all threads.
unsafe impl Send for Xrcd {}
// SAFETY: verbs objects may be used by all threads, and what changes is locked.
unsafe impl Send for CmDevice {}
// SAFETY: as above.
unsafe impl Sync for CmDevice {}

static DEVICES: Mutex<Vec<&'static CmDevice>> = Mutex::new(Vec::new());
/// Whose devices these are: threads and sockets do not survive a fork.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static SEEN: AtomicBool = AtomicBool::new(false);

impl CmDevice {
    /// The link as it is now.
    pub(crate) fn link(&self) -> LinkInfo {
        // SAFETY: never closed.
        unsafe { context_of(self.verbs) }.device.link()
    }

    /// The domain for XRC of those who bring none.
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
        // SAFETY: an open context, and a structure of ours.
        let new = unsafe { open_xrcd(self.verbs, &raw mut attr) };
        if new.is_null() {
            return Err(last_errno());
        }
        *xrcd = Some(Xrcd(new));
        Ok(new)
    }
}

/// ENODEV unless there is, or was, a link.
pub(crate) fn any() -> Outcome {
    if SEEN.load(Ordering::Relaxed) {
        return Ok(());
    }
    let links = links(&opened()).unwrap_or_default();
    if links.is_empty() {
        return Err(refuse(
            libc::ENODEV,
            "there is no link; `ferroce link` shows them, `ferroce link add NAME type rxe netdev IF` adds one",
        ));
    }
    SEEN.store(true, Ordering::Relaxed);
    Ok(())
}

/// The device with this address of ours.
pub(crate) fn by_address(host: Host) -> Outcome<&'static CmDevice> {
    let has = |link: &LinkInfo| {
        link.gids
            .iter()
            .any(|gid| gid.address == host.ip && (host.scope == 0 || host.scope == gid.ifindex))
    };
    let mut devices = opened();
    if let Some(device) = devices.iter().find(|device| has(&device.link())) {
        return Ok(device);
    }
    let links = links(&devices)?;
    let link = links.iter().find(|link| has(link)).ok_or_else(|| {
        refuse(
            libc::ENODEV,
            format_args!(
                "no link has the address {}; `ferroce gids` lists those that links have",
                host.ip
            ),
        )
    })?;
    find_or_open(&mut devices, link.index)
}

/// Any device with an address of this IP version, and that address.
pub(crate) fn first(v4: bool) -> Outcome<Host> {
    let links = links(&opened())?;
    let mut gids = links.iter().flat_map(|link| &link.gids);
    let gid = gids.find(|gid| gid.address.is_ipv4() == v4);
    gid.map(|gid| Host::new(gid.address)).ok_or_else(|| {
        refuse(
            libc::ENODEV,
            format_args!(
                "no link has an {} address",
                if v4 { "IPv4" } else { "IPv6" }
            ),
        )
    })
}

/// The device of a link, which is opened if it is not yet.
pub(crate) fn by_index(index: u32) -> Outcome<&'static CmDevice> {
    find_or_open(&mut opened(), index)
}

fn find_or_open(devices: &mut Opened, index: u32) -> Outcome<&'static CmDevice> {
    if let Some(device) = devices.iter().find(|device| device.index == index) {
        return Ok(device);
    }
    let device = open(index)?;
    devices.push(device);
    Ok(device)
}

/// All links. Asking takes a connection to ferroced: one of a process at a time, for
/// its threads may all begin at once.
fn links(_one_at_a_time: &Opened) -> Outcome<Vec<LinkInfo>> {
    let mut links = list_links();
    let died = |error: &Error| !matches!(error, Error::Timeout { .. });
    if let (Err(error), Some(line)) = (&links, Line::current())
        && died(error)
    {
        tracing::debug!("ferroced died while it was asked for links: {error}");
        line.await_ferroced()?;
        links = list_links();
    }
    links.map_err(|error| {
        tracing::warn!("no devices for connections: {error}");
        error.errno()
    })
}

/// The link was removed: one of the same number is another.
pub(crate) fn forget(index: u32) {
    opened().retain(|device| device.index != index);
}

type Opened = MutexGuard<'static, Vec<&'static CmDevice>>;

fn opened() -> Opened {
    let mut devices = lock(&DEVICES);
    let process = std::process::id();
    if PROCESS.swap(process, Ordering::Relaxed) != process {
        devices.clear();
    }
    devices
}

fn open(index: u32) -> Outcome<&'static CmDevice> {
    // SAFETY: a list of ours, walked to its end and freed.
    let verbs = unsafe {
        let list = ibv_get_device_list(ptr::null_mut());
        if list.is_null() {
            return Err(last_errno());
        }
        let devices = (0..).map(|place| *list.add(place));
        let mut devices = devices.take_while(|device| !device.is_null());
        let found = devices.find(|&device| ibv_get_device_index(device) == index as c_int);
        let verbs = found.map(|device| ibv_open_device(device));
        ibv_free_device_list(list);
        verbs.ok_or_else(|| refuse(libc::ENODEV, "the link is gone"))?
    };
    if verbs.is_null() {
        return Err(last_errno());
    }
    // SAFETY: just opened.
    let pd = unsafe { alloc_pd(verbs) };
    if pd.is_null() {
        return Err(last_errno());
    }
    Ok(Box::leak(Box::new(CmDevice {
        index,
        verbs,
        pd,
        xrcd: Mutex::new(None),
    })))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let contexts = match contexts() {
        Ok(contexts) => contexts,
        Err(errno) => {
            // SAFETY: by contract NULL or valid.
            if let Some(count) = unsafe { num_devices.as_mut() } {
                *count = 0;
            }
            return null(errno);
        }
    };
    // SAFETY: plain allocation of zeros.
    let list = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
    let list = list.cast::<*mut ibv_context>();
    // SAFETY: room for one more than these; the program's pointer is NULL or valid.
    unsafe {
        if !list.is_null() {
            ptr::copy_nonoverlapping(contexts.as_ptr(), list, contexts.len());
        }
        if let Some(count) = num_devices.as_mut() {
            *count = if list.is_null() {
                0
            } else {
                contexts.len() as c_int
            };
        }
    }
    list
}

fn contexts() -> Outcome<Vec<*mut ibv_context>> {
    any()?;
    let links = links(&opened())?;
    let devices = links.iter().filter_map(|link| by_index(link.index).ok());
    Ok(devices.map(|device| device.verbs).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: by contract the list came from `rdma_get_devices`, or is NULL.
    unsafe { libc::free(list.cast()) };
}
