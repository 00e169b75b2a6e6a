//! Queue pairs: made, changed, looked at and destroyed.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use std::sync::Arc;

use ferroce_device::Qp;
use ferroce_device::transport::{AttrMask, QpInit, QpQuery, QpType, VerbsError};

use crate::context::context_of;
use crate::convert;
use crate::cq::CqObject;
use crate::errno::{errno_of, null};
use crate::ffi::*;
use crate::object::{Object, from_c, into_c, take};
use crate::pd::{PdObject, PdUse};
use crate::qp_ex::{self, Builder};
use crate::srq::SrqObject;
use crate::users::Use;
use crate::xrcd::XrcdObject;

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

/// `ibv_create_qp`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    if pd.is_null() || init.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: the program's structure and a protection domain of ours.
    let (init, context) = unsafe { (&mut *init, (*pd).context) };
    let order = Order {
        context,
        pd,
        xrcd: ptr::null_mut(),
        send_ops: None,
    };
    // SAFETY: all objects are what the program got from us.
    unsafe { create(&order, init) }.unwrap_or_else(null)
}

/// `ibv_create_qp_ex`
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    if context.is_null() || init.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: the program's structure; fields that its mask does not name may
    // lie beyond the end of an older one, and are not touched.
    let order = match unsafe { Order::extended(context, init) } {
        Ok(order) => order,
        Err(errno) => return null(errno),
    };
    // SAFETY: an `ibv_qp_init_attr_ex` begins with an `ibv_qp_init_attr`, and all
    // objects are what the program got from us.
    unsafe { create(&order, &mut *init.cast()) }.unwrap_or_else(null)
}

/// What the ways to create a queue pair differ in.
struct Order {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    /// What `ibv_wr_*` shall be able to do, if they are wanted.
    send_ops: Option<u64>,
}

impl Order {
    unsafe fn extended(
        context: *mut ibv_context,
        init: *mut ibv_qp_init_attr_ex,
    ) -> Result<Order, c_int> {
        const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        // SAFETY: by the caller's word; each field is named by the mask.
        unsafe {
            let mask = (*init).comp_mask;
            let has = |flag| mask & flag != 0;
            if mask & !KNOWN != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && (*init).create_flags != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let mut order = Order {
                context,
                pd: ptr::null_mut(),
                xrcd: ptr::null_mut(),
                send_ops: None,
            };
            if has(IBV_QP_INIT_ATTR_PD) {
                order.pd = (*init).pd;
            }
            if has(IBV_QP_INIT_ATTR_XRCD) {
                order.xrcd = (*init).xrcd;
            }
            if has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
                order.send_ops = Some((*init).send_ops_flags);
            }
            Ok(order)
        }
    }
}

/// What a queue pair is made with.
struct Parts<'a> {
    pd: Option<&'a PdObject>,
    send_cq: Option<&'a CqObject>,
    recv_cq: Option<&'a CqObject>,
    srq: Option<&'a SrqObject>,
    xrcd: Option<&'a XrcdObject>,
}

/// What cannot go before the queue pair; of completion queues the engine knows.
#[derive(Default)]
struct Uses {
    _pd: Option<PdUse>,
    _srq: Option<Use>,
    _xrcd: Option<Use>,
}

impl Parts<'_> {
    /// Finds what the program means; all must be of one context.
    unsafe fn find(order: &Order, init: &ibv_qp_init_attr) -> Result<Self, c_int> {
        let here = |context: *mut ibv_context| context == order.context;
        // SAFETY: NULL, or objects of ours that live as long as the queue pair.
        unsafe {
            let foreign = init.send_cq.as_ref().is_some_and(|cq| !here(cq.context))
                || init.recv_cq.as_ref().is_some_and(|cq| !here(cq.context))
                || init.srq.as_ref().is_some_and(|srq| !here(srq.context))
                || order.pd.as_ref().is_some_and(|pd| !here(pd.context))
                || order.xrcd.as_ref().is_some_and(|xrcd| !here(xrcd.context));
            if foreign {
                return Err(libc::EINVAL);
            }
            Ok(Parts {
                pd: from_c(order.pd),
                send_cq: from_c(init.send_cq),
                recv_cq: from_c(init.recv_cq),
                srq: from_c(init.srq),
                xrcd: from_c(order.xrcd),
            })
        }
    }

    fn hold(&self) -> Uses {
        Uses {
            _pd: self.pd.map(PdObject::hold),
            _srq: self.srq.map(|srq| srq.users.hold()),
            _xrcd: self.xrcd.map(|xrcd| xrcd.users.hold()),
        }
    }

    fn init(&self, qp_type: QpType, init: &ibv_qp_init_attr) -> QpInit {
        let queue = |cq: &CqObject| Arc::clone(cq.cq.queue());
        QpInit {
            qp_type,
            pd: self.pd.map(|pd| Arc::clone(pd.pd())),
            send_cq: self.send_cq.map(queue),
            recv_cq: self.recv_cq.map(queue),
            srq: self.srq.map(|srq| Arc::clone(&srq.srq)),
            xrcd: self.xrcd.map(|xrcd| Arc::clone(&xrcd.domain.xrcd)),
            cap: convert::qp_cap(&init.cap),
            sq_sig_all: init.sq_sig_all != 0,
        }
    }
}

unsafe fn create(order: &Order, init: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, c_int> {
    let qp_type = convert::qp_type(init.qp_type)?;
    if let Some(ops) = order.send_ops
        && ops & !qp_ex::possible(qp_type) != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    let mut asked = *init;
    if qp_type == QpType::XrcTarget {
        // It has none of these, and programs may leave anything there.
        asked.send_cq = ptr::null_mut();
        asked.recv_cq = ptr::null_mut();
        asked.srq = ptr::null_mut();
    }
    // SAFETY: the objects are the program's, the context is open.
    let (parts, context) = unsafe { (Parts::find(order, &asked)?, context_of(order.context)) };
    let cqs: Vec<_> = [parts.send_cq, parts.recv_cq]
        .into_iter()
        .flatten()
        .collect();
    let cqs: Vec<_> = cqs.iter().map(|cq| &cq.cq).collect();
    let qp = context.device.create_qp(&parts.init(qp_type, &asked), &cqs);
    let qp = Arc::new(qp.map_err(|error| errno_of(&error))?);
    init.cap = convert::c_qp_cap(&qp.cap());
    if let (QpType::XrcTarget, Some(xrcd)) = (qp_type, parts.xrcd) {
        xrcd.domain.add_target(&qp);
    }
    let base = ibv_qp {
        context: order.context,
        qp_context: asked.qp_context,
        pd: order.pd,
        send_cq: asked.send_cq,
        recv_cq: asked.recv_cq,
        srq: asked.srq,
        qp_type: asked.qp_type,
        ..zeroed()
    };
    // SAFETY: the context is open.
    Ok(unsafe { give(base, qp, order.send_ops.is_some(), parts.hold()) })
}

/// Makes the object of a queue pair. `base` says what the program gave.
unsafe fn give(mut base: ibv_qp, qp: Arc<Qp>, extended: bool, uses: Uses) -> *mut ibv_qp {
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

/// `ibv_open_qp`: an XRC target that somebody else in the process has made.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: the program's structure, or NULL.
    let Some(attr) = (unsafe { attr.as_ref() }) else {
        return null(libc::EINVAL);
    };
    if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
        return null(libc::EOPNOTSUPP);
    }
    let complete = attr.comp_mask & NEEDED == NEEDED && attr.qp_type == IBV_QPT_XRC_RECV;
    // SAFETY: an object of ours, or NULL.
    let xrcd = unsafe { from_c::<XrcdObject>(attr.xrcd) };
    let Some(xrcd) = xrcd.filter(|_| complete && !context.is_null()) else {
        return null(libc::EINVAL);
    };
    let Some(qp) = xrcd.domain.target(attr.qp_num) else {
        return null(libc::EINVAL);
    };
    let qp_context = match attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
        true => attr.qp_context,
        false => ptr::null_mut(),
    };
    let state = qp
        .query()
        .map_or(IBV_QPS_RESET, |query| convert::c_qp_state(query.attr.state));
    let base = ibv_qp {
        context,
        qp_context,
        state,
        qp_type: IBV_QPT_XRC_RECV,
        ..zeroed()
    };
    let uses = Uses {
        _xrcd: Some(xrcd.users.hold()),
        ..Uses::default()
    };
    // SAFETY: the context is open.
    unsafe { give(base, qp, false, uses) }
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
        return libc::EINVAL;
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
    if mask.contains(AttrMask::PATH_MTU)
        && attr.path_mtu.bytes() > context.device.link().active_mtu as usize
    {
        return Err(libc::EINVAL);
    }
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
        return libc::EINVAL;
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
        return libc::EINVAL;
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
    libc::EOPNOTSUPP
}

/// `ibv_set_ece`: see [`ibv_query_ece`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_modify_qp_rate_limit`: the device reports no rate it could be set to.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    _qp: *mut ibv_qp,
    _attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    libc::EOPNOTSUPP
}
