//! XRC domains.
//!
//! A domain without a file is private. All opens with the same file, on the same device and
//! in the same process, share one domain. Processes do not share domains, because each has
//! its own engine.

use core::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ferroce_device::{Device, Qp, transport::Xrcd};

use crate::context::context;
use crate::errno::{null, refuse};
use crate::ffi::*;
use crate::iwarp::check_roce;
use crate::object::{Object, argument, free, into_c, object};
use crate::users::Users;

/// `ibv_xrcd`
#[repr(C)]
pub(crate) struct XrcdObject {
    c: ibv_xrcd,
    pub(crate) domain: Arc<Domain>,
    /// The queue pairs and shared receive queues that use this object.
    pub(crate) users: Users,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for XrcdObject {
    type C = ibv_xrcd;
}

/// The part that all opens of one domain share.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) xrcd: Arc<Xrcd>,
    /// XRC targets, for `ibv_open_qp`.
    targets: Mutex<Vec<Weak<Qp>>>,
    file: Option<Identity>,
}

/// The identity of a domain: its device and its file.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Identity {
    device: usize,
    file: (u64, u64),
}

/// All domains with a file.
static SHARED: Mutex<Vec<Weak<Domain>>> = Mutex::new(Vec::new());

impl Domain {
    fn new(file: Option<Identity>) -> Arc<Domain> {
        Arc::new(Domain {
            xrcd: Xrcd::new(),
            targets: Mutex::default(),
            file,
        })
    }

    /// Adds a new XRC target.
    pub(crate) fn add_target(&self, qp: &Arc<Qp>) {
        let mut targets = lock(&self.targets);
        targets.retain(|known| known.strong_count() > 0);
        targets.push(Arc::downgrade(qp));
    }

    /// Returns the XRC target with this number.
    pub(crate) fn target(&self, qpn: u32) -> Option<Arc<Qp>> {
        let targets = lock(&self.targets);
        let mut live = targets.iter().filter_map(Weak::upgrade);
        live.find(|qp| qp.qpn() == qpn)
    }

    /// Returns the domain of a file, or a new one.
    fn open(device: &Arc<Device>, fd: c_int, oflags: c_int) -> Result<Arc<Domain>, c_int> {
        if fd == -1 {
            return Ok(Domain::new(None));
        }
        if fd < 0 {
            return Err(refuse(
                libc::EBADF,
                format_args!(
                    "the file descriptor of the XRC domain is {fd}: -1 stands for no file"
                ),
            ));
        }
        // SAFETY: `fstat` is the only use of the descriptor, and the kernel checks it.
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
                "the file has an XRC domain, and O_EXCL requires a new one",
            )),
            Some(domain) => Ok(domain),
            None if oflags & libc::O_CREAT == 0 => Err(refuse(
                libc::EAGAIN,
                "the file has no XRC domain, and O_CREAT is not set",
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
    let attr = argument!(attr, "ibv_open_xrcd: the attributes are NULL" => null);
    let device = &context!(context, "ibv_open_xrcd: the context is NULL" => null).device;
    if let Err(errno) = check_roce(device, "ibv_open_xrcd", "XRC") {
        return null(errno);
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
    let object = object!(xrcd as XrcdObject, "ibv_close_xrcd: the XRC domain is NULL" => errno);
    if object.users.any() {
        return refuse(
            libc::EBUSY,
            "ibv_close_xrcd: queue pairs or shared receive queues still use the XRC domain",
        );
    }
    free!(xrcd as XrcdObject);
    0
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
