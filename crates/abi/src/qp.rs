//! Queue pairs: what the program gets, and how it is changed, looked at and destroyed.
//! [`crate::qp_create`] makes them.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use std::sync::Arc;

use ferroce_device::Qp;
use ferroce_device::transport::{AttrMask, QpQuery, VerbsError};

use crate::context::context_of;
use crate::convert;
use crate::cq::CqObject;
use crate::errno::{errno_of, refuse};
use crate::ffi::*;
use crate::object::{Object, from_c, into_c, take};
use crate::qp_create::Uses;
use crate::qp_ex::{self, Builder};

/// A queue pair as the program sees it.
#[repr(C)]
pub(crate) struct QpObject {
    c: UnsafeCell<ibv_qp_ex>,
    /// Zeros, for function pointers that do not exist yet.
    _room: [u64; 16],
    /// The queue pair; an XRC target may have several objects.
    pub(crate) qp: Arc<Qp>,
    /// Where inline data is collected. Only touched while the queue pair is
    /// held for posting.
    pub(crate) inline: UnsafeCell<Box<[u8]>>,
    /// Work requests between `wr_start` and `wr_complete`. Only touched by who
    /// holds the mutex of the C structure.
    pub(crate) builder: UnsafeCell<Builder>,
    /// Whether work requests are built by function calls.
    extended: bool,
    /// Whether it stands in the context's list.
    listed: bool,
    sends_datagrams: bool,
    _uses: Uses,
}

// SAFETY: `repr(C)`, and the C structure, which begins with an `ibv_qp`, comes
// first, in a transparent cell.
unsafe impl Object for QpObject {
    type C = ibv_qp;
}

impl QpObject {
    /// The C structure, which the program reads while we write.
    #[inline]
    pub(crate) fn c(&self) -> *mut ibv_qp_ex {
        self.c.get()
    }

    /// Whether each work request needs an address.
    #[inline]
    pub(crate) fn sends_datagrams(&self) -> bool {
        self.sends_datagrams
    }

    /// Takes back what it has completed and nobody has polled, as adapters do for
    /// a queue pair that begins anew: the program that resets it to go on does
    /// not expect completions of what it gave up.
    fn forget_completions(&self) {
        // SAFETY: these fields never change.
        let cqs = unsafe { [(*self.c()).qp_base.send_cq, (*self.c()).qp_base.recv_cq] };
        for cq in cqs {
            // SAFETY: completion queues outlive the queue pairs that use them.
            if let Some(cq) = unsafe { from_c::<CqObject>(cq) } {
                cq.cq.queue().forget(self.qp.qpn());
            }
        }
    }

    fn set_state(&self, state: ibv_qp_state) {
        // SAFETY: inside the structure; the program only reads the field.
        unsafe { (&raw mut (*self.c()).qp_base.state).write_volatile(state) };
    }
}

/// Makes the object of a queue pair. `base` says what the program gave.
pub(crate) unsafe fn give(
    mut base: ibv_qp,
    qp: Arc<Qp>,
    extended: bool,
    uses: Uses,
) -> *mut ibv_qp {
    // SAFETY: the caller's word that the context is open.
    let context = unsafe { context_of(base.context) };
    base.handle = context.new_handle();
    base.qp_num = qp.qpn();
    base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    base.cond = libc::PTHREAD_COND_INITIALIZER;
    let sends_datagrams = base.qp_type == IBV_QPT_UD;
    let mut c = ibv_qp_ex {
        qp_base: base,
        ..zeroed()
    };
    if extended {
        qp_ex::fill(&mut c);
    }
    let number = qp.qpn();
    // Events of an XRC target go to who made it.
    let listed = context.objects.qps.find(number).is_none();
    let inline = vec![0; qp.cap().max_inline_data as usize];
    let c = into_c(Box::new(QpObject {
        c: UnsafeCell::new(c),
        _room: [0; 16],
        qp,
        inline: UnsafeCell::new(inline.into_boxed_slice()),
        builder: UnsafeCell::default(),
        extended,
        listed,
        sends_datagrams,
        _uses: uses,
    }));
    if listed {
        context.objects.qps.insert(number, c, Arc::default());
    }
    c
}

/// `ibv_modify_qp`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: an object of ours and the program's structure, or NULL.
    let (object, attr) = unsafe { (from_c::<QpObject>(qp), attr.as_ref()) };
    let (Some(object), Some(attr)) = (object, attr) else {
        return refuse(
            libc::EINVAL,
            "ibv_modify_qp: the queue pair or the attributes are NULL",
        );
    };
    modify(object, attr, mask).map_or_else(|errno| errno, |()| 0)
}

fn modify(object: &QpObject, c: &ibv_qp_attr, mask: c_int) -> Result<(), c_int> {
    // SAFETY: inside the structure; the type does not change.
    let qp_type = unsafe { (*object.c()).qp_base.qp_type };
    let mask = convert::attr_mask(mask, qp_type)?;
    let attr = convert::qp_attr(c, mask)?;
    // SAFETY: its context is open.
    let context = unsafe { context_of((*object.c()).qp_base.context) };
    let way = match mask.contains(AttrMask::AV) {
        true => Some(convert::ah_attr(&c.ah_attr, &context.device)?),
        false => None,
    };
    let modified = object.qp.modify(&attr, mask, way.as_ref());
    modified.map_err(|error| errno_of(&error))?;
    if mask.contains(AttrMask::STATE) {
        object.set_state(c.qp_state);
        if c.qp_state == IBV_QPS_RESET {
            object.forget_completions();
        }
    }
    Ok(())
}

/// `ibv_query_qp`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: an object of ours, or NULL.
    let Some(object) = (unsafe { from_c::<QpObject>(qp) }) else {
        return refuse(libc::EINVAL, "ibv_query_qp: the queue pair is NULL");
    };
    let query = match object.qp.query() {
        Ok(query) => query,
        Err(error) => return errno_of(&error),
    };
    object.set_state(convert::c_qp_state(query.attr.state));
    // SAFETY: the program's structures, or NULL.
    unsafe {
        if let Some(attr) = attr.as_mut() {
            *attr = convert::c_qp_attr(&query);
        }
        if let Some(init) = init.as_mut() {
            *init = c_init(object, &query);
        }
    }
    0
}

fn c_init(object: &QpObject, query: &QpQuery) -> ibv_qp_init_attr {
    let c = object.c();
    // SAFETY: inside the structure; these fields do not change.
    unsafe {
        ibv_qp_init_attr {
            qp_context: (*c).qp_base.qp_context,
            send_cq: (*c).qp_base.send_cq,
            recv_cq: (*c).qp_base.recv_cq,
            srq: (*c).qp_base.srq,
            cap: convert::c_qp_cap(&query.cap),
            qp_type: (*c).qp_base.qp_type,
            sq_sig_all: query.sq_sig_all.into(),
        }
    }
}

/// `ibv_destroy_qp`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: an object of ours, or NULL.
    let Some(object) = (unsafe { from_c::<QpObject>(qp) }) else {
        return refuse(libc::EINVAL, "ibv_destroy_qp: the queue pair is NULL");
    };
    let last = Arc::strong_count(&object.qp) == 1;
    if last && let Err(error @ VerbsError::Busy(_)) = object.qp.destroy() {
        return errno_of(&error);
    }
    // SAFETY: its context is open.
    let context = unsafe { context_of((*object.c()).qp_base.context) };
    if object.listed {
        context.objects.qps.retire(object.qp.qpn());
    }
    // SAFETY: the program gives it back.
    drop(unsafe { take::<QpObject>(qp) });
    0
}

/// `ibv_qp_to_qp_ex`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: an object of ours, or NULL.
    match unsafe { from_c::<QpObject>(qp) } {
        Some(object) if object.extended => object.c(),
        _ => ptr::null_mut(),
    }
}

/// `ibv_query_qp_data_in_order`: nothing is promised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// `ibv_query_ece`: there are no extensions to negotiate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    refuse(
        libc::EOPNOTSUPP,
        "ibv_query_ece: this device has no connection extensions",
    )
}

/// `ibv_set_ece`: see [`ibv_query_ece`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    refuse(
        libc::EOPNOTSUPP,
        "ibv_set_ece: this device has no connection extensions",
    )
}

/// `ibv_modify_qp_rate_limit`: the device reports no rate it could be set to.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    _qp: *mut ibv_qp,
    _attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    refuse(
        libc::EOPNOTSUPP,
        "ibv_modify_qp_rate_limit: this device does not limit rates",
    )
}
