//! Creating queue pairs, and opening XRC targets.

use core::ffi::c_int;
use core::ptr;
use std::sync::Arc;

use ferroce_device::transport::{QpInit, QpType};

use crate::context::context_of;
use crate::convert;
use crate::cq::CqObject;
use crate::errno::{errno_of, null, refuse};
use crate::ffi::*;
use crate::object::{argument, from_c};
use crate::pd::{PdObject, PdUse};
use crate::profile;
use crate::provoke::provoke;
use crate::qp::give;
use crate::qp_ex;
use crate::srq::SrqObject;
use crate::strict::connect;
use crate::users::Use;
use crate::xrcd::XrcdObject;

/// `ibv_create_qp`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    provoke!("ibv_create_qp" => null);
    if pd.is_null() || init.is_null() {
        return null(refuse(
            libc::EINVAL,
            "ibv_create_qp: the protection domain or the attributes are NULL",
        ));
    }
    // SAFETY: both are live, and not NULL as checked above.
    let (init, context) = unsafe { (&mut *init, (*pd).context) };
    let order = Order {
        context,
        pd,
        xrcd: ptr::null_mut(),
        send_ops: None,
    };
    // SAFETY: the program's objects are live, or NULL.
    unsafe { create(&order, init) }.unwrap_or_else(null)
}

/// `ibv_create_qp_ex`
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    provoke!("ibv_create_qp" => null);
    if context.is_null() || init.is_null() {
        return null(refuse(
            libc::EINVAL,
            "ibv_create_qp_ex: the context or the attributes are NULL",
        ));
    }
    // SAFETY: the structure is live up to the fields that its mask names. An older program's
    // structure is shorter, and fields that the mask does not name are not read.
    let order = match unsafe { Order::extended(context, init) } {
        Ok(order) => order,
        Err(errno) => return null(errno),
    };
    // SAFETY: an `ibv_qp_init_attr_ex` begins with an `ibv_qp_init_attr`, and the program's
    // objects are live, or NULL.
    unsafe { create(&order, &mut *init.cast()) }.unwrap_or_else(null)
}

/// The arguments in which the ways to create a queue pair differ.
struct Order {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    /// The operations of `ibv_wr_*`, if the program wants those functions.
    send_ops: Option<u64>,
}

impl Order {
    /// Reads the attributes that the mask of `init` names.
    ///
    /// # Safety
    ///
    /// `init` points to a structure that has each field which its mask names.
    unsafe fn extended(
        context: *mut ibv_context,
        init: *mut ibv_qp_init_attr_ex,
    ) -> Result<Order, c_int> {
        const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        // SAFETY: the mask is in every version of the structure. Other fields are read if the
        // mask names them, and without a reference to the whole structure.
        unsafe {
            let mask = (*init).comp_mask;
            let has = |flag| mask & flag != 0;
            if mask & !KNOWN != 0 {
                return Err(refuse(
                    libc::EOPNOTSUPP,
                    format_args!(
                        "ibv_create_qp_ex: comp_mask {mask:#x}: only a protection domain, an XRC domain, create_flags of 0 and send_ops_flags are supported"
                    ),
                ));
            }
            if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && (*init).create_flags != 0 {
                return Err(refuse(
                    libc::EOPNOTSUPP,
                    format_args!(
                        "ibv_create_qp_ex: creation flags {:#x}: this device has none",
                        (*init).create_flags
                    ),
                ));
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

/// The objects that a queue pair uses.
struct Parts<'a> {
    pd: Option<&'a PdObject>,
    send_cq: Option<&'a CqObject>,
    recv_cq: Option<&'a CqObject>,
    srq: Option<&'a SrqObject>,
    xrcd: Option<&'a XrcdObject>,
}

/// The objects that a queue pair keeps busy. The engine counts the users of completion
/// queues.
#[derive(Default)]
pub(crate) struct Uses {
    _pd: Option<PdUse>,
    _srq: Option<Use>,
    _xrcd: Option<Use>,
}

impl Parts<'_> {
    /// Finds the program's objects, which must be of one context.
    ///
    /// # Safety
    ///
    /// The objects are live, or NULL.
    unsafe fn find(order: &Order, init: &ibv_qp_init_attr) -> Result<Self, c_int> {
        let here = |context: *mut ibv_context| context == order.context;
        // SAFETY: the objects are live, or NULL. They outlive the queue pair, which keeps them
        // busy. Their context does not change; it is read without a reference to the
        // structure, whose other fields other threads may write.
        unsafe {
            let foreign = !init.send_cq.is_null() && !here((*init.send_cq).context)
                || !init.recv_cq.is_null() && !here((*init.recv_cq).context)
                || !init.srq.is_null() && !here((*init.srq).context)
                || !order.pd.is_null() && !here((*order.pd).context)
                || !order.xrcd.is_null() && !here((*order.xrcd).context);
            if foreign {
                return Err(refuse(
                    libc::EINVAL,
                    "the queue pair's completion queues, shared receive queue and domains belong to different contexts",
                ));
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

/// Creates the program's object of a new queue pair, and writes the granted sizes to `init`.
///
/// # Safety
///
/// The context in `order` is open; the objects in `order` and `init` are live, or NULL.
unsafe fn create(order: &Order, init: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, c_int> {
    let qp_type = convert::qp_type(init.qp_type)?;
    if let Some(ops) = order.send_ops
        && ops & !qp_ex::possible(qp_type) != 0
    {
        return Err(refuse(
            libc::EOPNOTSUPP,
            format_args!(
                "send_ops_flags {ops:#x}: a queue pair of type {qp_type:?} can do {:#x}",
                qp_ex::possible(qp_type)
            ),
        ));
    }
    if qp_type == QpType::XrcTarget && order.xrcd.is_null() {
        return Err(refuse(
            libc::EINVAL,
            "a queue pair of type XRC_RECV needs an XRC domain: name it with ibv_create_qp_ex",
        ));
    }
    let mut asked = *init;
    if qp_type == QpType::XrcTarget {
        // An XRC target has no queues; programs may leave these fields uninitialised.
        asked.send_cq = ptr::null_mut();
        asked.recv_cq = ptr::null_mut();
        asked.srq = ptr::null_mut();
    }
    // SAFETY: the objects are live or NULL, and the context is open: see `# Safety`.
    let (parts, context) = unsafe { (Parts::find(order, &asked)?, context_of(order.context)) };
    let settings = &context.settings;
    profile::check_qp(settings, qp_type, &asked, context.objects.qps.len())?;
    profile::check_send_ops(settings, order.send_ops.unwrap_or(0))?;
    connect::check_new_qp(settings, &asked.cap)?;
    let cqs: Vec<_> = [parts.send_cq, parts.recv_cq]
        .into_iter()
        .flatten()
        .collect();
    let cqs: Vec<_> = cqs.iter().map(|cq| &cq.cq).collect();
    let qp = context.device.create_qp(&parts.init(qp_type, &asked), &cqs);
    let qp = Arc::new(qp.map_err(|error| errno_of(&error))?);
    init.cap = convert::c_qp_cap(&qp.cap());
    profile::lower_cap(settings, &mut init.cap);
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
    if settings.is_strict() {
        connect::add_qp(&context.device, &qp, &base, asked.sq_sig_all != 0);
    }
    // SAFETY: the context is open: see `# Safety`.
    Ok(unsafe { give(base, qp, order.send_ops.is_some(), parts.hold()) })
}

/// `ibv_open_qp`: another object for an XRC target of this process.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let attr = argument!(attr, "ibv_open_qp: the attributes are NULL" => null);
    if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
        return null(refuse(
            libc::EOPNOTSUPP,
            format_args!(
                "ibv_open_qp: comp_mask {:#x} has unknown bits",
                attr.comp_mask
            ),
        ));
    }
    let complete = attr.comp_mask & NEEDED == NEEDED && attr.qp_type == IBV_QPT_XRC_RECV;
    // SAFETY: the program's XRC domain is live, or NULL.
    let xrcd = unsafe { from_c::<XrcdObject>(attr.xrcd) };
    let Some(xrcd) = xrcd.filter(|_| complete && !context.is_null()) else {
        return null(refuse(
            libc::EINVAL,
            "ibv_open_qp: comp_mask must name the queue pair number, an XRC domain and the type XRC_RECV",
        ));
    };
    let Some(qp) = xrcd.domain.target(attr.qp_num) else {
        return null(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_open_qp: the XRC domain has no queue pair {:#x}",
                attr.qp_num
            ),
        ));
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
    // SAFETY: the program passes a context that it has not closed, and not NULL as checked
    // above.
    unsafe { give(base, qp, false, uses) }
}
