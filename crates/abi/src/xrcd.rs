//! XRC domains.
//!
//! A domain opened without a file is the program's own. One that is opened with
//! a file is the same for all who open it with that file, on that device, in this
//! process: what other processes have lies in engines of their own.

use core::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferroce_device::{Device, Qp, transport::Xrcd};

use crate::context::context_of;
use crate::errno::{null, refuse};
use crate::ffi::*;
use crate::object::{Object, from_c, into_c, take};
use crate::users::Users;

/// An XRC domain as the program sees it.
#[repr(C)]
pub(crate) struct XrcdObject {
    c: ibv_xrcd,
    pub(crate) domain: Arc<Domain>,
    /// Queue pairs and shared receive queues made with this object.
    pub(crate) users: Users,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for XrcdObject {
    type C = ibv_xrcd;
}

/// What all who opened the same domain share.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) xrcd: Arc<Xrcd>,
    /// Receiving queue pairs, to be opened by others.
    targets: Mutex<Vec<Weak<Qp>>>,
    file: Option<Identity>,
}

/// A file, for a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Identity {
    device: usize,
    file: (u64, u64),
}

/// Domains that have a file.
static SHARED: Mutex<Vec<Weak<Domain>>> = Mutex::new(Vec::new());

impl Domain {
    fn new(file: Option<Identity>) -> Arc<Domain> {
        Arc::new(Domain {
            xrcd: Xrcd::new(),
            targets: Mutex::default(),
            file,
        })
    }

    /// A receiving queue pair was made in this domain.
    pub(crate) fn add_target(&self, qp: &Arc<Qp>) {
        let mut targets = lock(&self.targets);
        targets.retain(|known| known.strong_count() > 0);
        targets.push(Arc::downgrade(qp));
    }

    /// The receiving queue pair with this number.
    pub(crate) fn target(&self, qpn: u32) -> Option<Arc<Qp>> {
        let targets = lock(&self.targets);
        let mut live = targets.iter().filter_map(Weak::upgrade);
        live.find(|qp| qp.qpn() == qpn)
    }

    /// The domain of a file, or a new one.
    fn open(device: &Arc<Device>, fd: c_int, oflags: c_int) -> Result<Arc<Domain>, c_int> {
        if fd == -1 {
            return Ok(Domain::new(None));
        }
        if fd < 0 {
            return Err(refuse(
                libc::EBADF,
                format_args!("file descriptor {fd} of the XRC domain"),
            ));
        }
        // SAFETY: the descriptor is only asked what it is, and may be anything.
        let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) })
            .map_err(|error| error.raw_os_error())?;
        let file = Some(Identity {
            device: Arc::as_ptr(device) as usize,
            file: (stat.st_dev, stat.st_ino),
        });
        let mut shared = lock(&SHARED);
        shared.retain(|known| known.strong_count() > 0);
        let mut live = shared.iter().filter_map(Weak::upgrade);
        match live.find(|domain| domain.file == file) {
            Some(_) if oflags & libc::O_EXCL != 0 => Err(refuse(
                libc::EINVAL,
                "the XRC domain of this file exists, and O_EXCL asks for a new one",
            )),
            Some(domain) => Ok(domain),
            None if oflags & libc::O_CREAT == 0 => Err(refuse(
                libc::EAGAIN,
                "no XRC domain exists for this file, and O_CREAT is not set",
            )),
            None => {
                let domain = Domain::new(file);
                shared.push(Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }
}

/// `ibv_open_xrcd`
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: NULL, or the program's structure.
    let Some(attr) = (unsafe { attr.as_ref() }) else {
        return null(refuse(
            libc::EINVAL,
            "ibv_open_xrcd: the attributes are NULL",
        ));
    };
    if context.is_null() {
        return null(refuse(libc::EINVAL, "ibv_open_xrcd: the context is NULL"));
    }
    if attr.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
        return null(refuse(
            libc::EOPNOTSUPP,
            format_args!(
                "ibv_open_xrcd: comp_mask {:#x} has unknown bits",
                attr.comp_mask
            ),
        ));
    }
    if attr.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
        return null(refuse(
            libc::EINVAL,
            "ibv_open_xrcd: comp_mask must name both the file descriptor and the flags",
        ));
    }
    // SAFETY: an open context.
    let device = unsafe { &context_of(context).device };
    match Domain::open(device, attr.fd, attr.oflags) {
        Err(errno) => null(errno),
        Ok(domain) => into_c(Box::new(XrcdObject {
            c: ibv_xrcd { context },
            domain,
            users: Users::default(),
        })),
    }
}

/// `ibv_close_xrcd`
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: NULL, or a domain of ours.
    let Some(object) = (unsafe { from_c::<XrcdObject>(xrcd) }) else {
        return refuse(libc::EINVAL, "ibv_close_xrcd: the XRC domain is NULL");
    };
    if object.users.any() {
        return refuse(
            libc::EBUSY,
            "ibv_close_xrcd: queue pairs or shared receive queues still use the XRC domain",
        );
    }
    // SAFETY: the program gives it back.
    drop(unsafe { take::<XrcdObject>(xrcd) });
    0
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
