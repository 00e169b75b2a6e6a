//! Queue pairs: modify, query, destroy. [`crate::qp_create`] creates them.

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
use crate::object::{Object, argument, free, from_c, into_c, object};
use crate::profile;
use crate::provoke::provoke;
use crate::qp_create::Uses;
use crate::qp_ex::{self, Builder};
use crate::strict::connect;

/// `ibv_qp`, which is also an `ibv_qp_ex`.
#[repr(C)]
pub(crate) struct QpObject {
    c: UnsafeCell<ibv_qp_ex>,
    /// Zeros, for function pointers of newer headers.
    _room: [u64; 16],
    /// The queue pair. An XRC target may have several objects.
    pub(crate) qp: Arc<Qp>,
    /// Buffer for inline data. Used only inside [`Qp::posting`], which holds a lock.
    pub(crate) inline: UnsafeCell<Box<[u8]>>,
    /// Work requests between `wr_start` and `wr_complete`. Used only by the holder of the
    /// mutex in the C structure.
    pub(crate) builder: UnsafeCell<Builder>,
    /// True if work requests are built by function calls.
    extended: bool,
    /// True if the context's list has this object.
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
    /// Returns the C structure. The program may read it at any time.
    #[inline]
    pub(crate) fn c(&self) -> *mut ibv_qp_ex {
        self.c.get()
    }

    /// True if each work request needs an address handle.
    #[inline]
    pub(crate) fn sends_datagrams(&self) -> bool {
        self.sends_datagrams
    }

    /// Removes completions of this queue pair that were not polled, as adapters do at a
    /// reset: a program that reuses the queue pair does not expect old completions.
    fn forget_completions(&self) {
        // SAFETY: these fields do not change after creation.
        let cqs = unsafe { [(*self.c()).qp_base.send_cq, (*self.c()).qp_base.recv_cq] };
        for cq in cqs {
            // SAFETY: a completion queue outlives the queue pairs that use it.
            if let Some(cq) = unsafe { from_c::<CqObject>(cq) } {
                cq.cq.queue().forget(self.qp.qpn());
            }
        }
    }

    fn set_state(&self, state: ibv_qp_state) {
        // SAFETY: the field is inside the live structure, and the program only reads it.
        unsafe { (&raw mut (*self.c()).qp_base.state).write_volatile(state) };
    }
}

/// Creates the program's object of a queue pair. `base` has the fields that it asked for.
///
/// # Safety
///
/// The context in `base` is open.
pub(crate) unsafe fn give(
    mut base: ibv_qp,
    qp: Arc<Qp>,
    extended: bool,
    uses: Uses,
) -> *mut ibv_qp {
    // SAFETY: the context in `base` is open: see `# Safety`.
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
        qp_ex::fill(&mut c, context.settings.are_active());
    }
    let number = qp.qpn();
    // Events of an XRC target name the object that was created first.
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
    provoke!("ibv_modify_qp" => errno);
    let object = object!(qp as QpObject, "ibv_modify_qp: the queue pair is NULL" => errno);
    let attr = argument!(attr, "ibv_modify_qp: the attributes are NULL" => errno);
    modify(object, attr, mask).map_or_else(|errno| errno, |()| 0)
}

fn modify(object: &QpObject, c: &ibv_qp_attr, mask: c_int) -> Result<(), c_int> {
    // SAFETY: the field does not change after creation.
    let qp_type = unsafe { (*object.c()).qp_base.qp_type };
    let mask = convert::attr_mask(mask, qp_type)?;
    let attr = convert::qp_attr(c, mask)?;
    // SAFETY: a context is open as long as it has queue pairs.
    let context = unsafe { context_of((*object.c()).qp_base.context) };
    let (settings, device) = (&context.settings, &context.device);
    connect::check_modify(settings, device, c, mask)?;
    let named = |flag, value| if mask.contains(flag) { value } else { 0 };
    let outstanding = [
        named(AttrMask::MAX_QP_RD_ATOMIC, c.max_rd_atomic),
        named(AttrMask::MAX_DEST_RD_ATOMIC, c.max_dest_rd_atomic),
    ];
    profile::check(settings, |profile| {
        profile.check_rd_atomic(outstanding[0], outstanding[1])
    })?;
    let way = match mask.contains(AttrMask::AV) {
        true => Some(convert::ah_attr(&c.ah_attr, &context.device)?),
        false => None,
    };
    let modified = object.qp.modify(&attr, mask, way.as_ref());
    modified.map_err(|error| errno_of(&error))?;
    if mask.contains(AttrMask::STATE) {
        object.set_state(c.qp_state);
        if settings.is_strict() {
            connect::modified(device, object.qp.qpn(), c.qp_state);
        }
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
    provoke!("ibv_query_qp" => errno);
    let object = object!(qp as QpObject, "ibv_query_qp: the queue pair is NULL" => errno);
    let query = match object.qp.query() {
        Ok(query) => query,
        Err(error) => return errno_of(&error),
    };
    object.set_state(convert::c_qp_state(query.attr.state));
    // SAFETY: the program's structures are live, or NULL.
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
    // SAFETY: these fields do not change after creation.
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
    provoke!("ibv_destroy_qp" => errno);
    let object = object!(qp as QpObject, "ibv_destroy_qp: the queue pair is NULL" => errno);
    let last = Arc::strong_count(&object.qp) == 1;
    if last && let Err(error @ VerbsError::Busy(_)) = object.qp.destroy() {
        return errno_of(&error);
    }
    // SAFETY: a context is open as long as it has queue pairs.
    let context = unsafe { context_of((*object.c()).qp_base.context) };
    if context.settings.is_strict() && last {
        connect::remove_qp(&context.device, object.qp.qpn());
    }
    if object.listed {
        context.objects.qps.retire(object.qp.qpn());
    }
    free!(qp as QpObject);
    0
}

/// `ibv_qp_to_qp_ex`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program's queue pair is live, or NULL.
    match unsafe { from_c::<QpObject>(qp) } {
        Some(object) if object.extended => object.c(),
        _ => ptr::null_mut(),
    }
}

/// `ibv_query_qp_data_in_order`: no order is guaranteed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// `ibv_query_ece`: the device has no extensions.
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

/// `ibv_modify_qp_rate_limit`: the device has no packet pacing.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    _qp: *mut ibv_qp,
    _attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    refuse(
        libc::EOPNOTSUPP,
        "ibv_modify_qp_rate_limit: this device does not limit rates",
    )
}
