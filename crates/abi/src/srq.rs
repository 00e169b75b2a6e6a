//! Shared receive queues, those of XRC among them.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::sync::Arc;

use ferroce_device::transport::{Srq, SrqInit};

use crate::arguments::put;
use crate::context::context_of;
use crate::cq::CqObject;
use crate::errno::{code, errno_of, null, refuse};
use crate::ffi::*;
use crate::iwarp::check_roce;
use crate::object::{Object, argument, free, from_c, into_c, object};
use crate::pd::{PdObject, PdUse};
use crate::profile;
use crate::provoke::provoke;
use crate::strict::connect;
use crate::users::{Use, Users};
use crate::xrcd::XrcdObject;

/// `ibv_srq`
#[repr(C)]
pub(crate) struct SrqObject {
    c: UnsafeCell<ibv_srq>,
    pub(crate) srq: Arc<Srq>,
    /// The queue pairs that use it.
    pub(crate) users: Users,
    _pd: PdUse,
    _xrcd: Option<Use>,
}

// SAFETY: `repr(C)`, and the first field is a cell of the C structure.
unsafe impl Object for SrqObject {
    type C = ibv_srq;
}

/// The arguments that `ibv_create_srq` and `ibv_create_srq_ex` have in common.
struct Order {
    context: *mut ibv_context,
    srq_context: *mut core::ffi::c_void,
    pd: *mut ibv_pd,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
}

/// `ibv_create_srq`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    provoke!("ibv_create_srq" => null);
    if pd.is_null() || init.is_null() {
        return null(refuse(
            libc::EINVAL,
            "ibv_create_srq: the protection domain or the attributes are NULL",
        ));
    }
    // SAFETY: both are live, and not NULL as checked above.
    let (init, context) = unsafe { (&mut *init, (*pd).context) };
    let order = Order {
        context,
        srq_context: init.srq_context,
        pd,
        xrc: None,
    };
    // SAFETY: the program's context is open, and its objects are live or NULL.
    unsafe { create(&order, &mut init.attr) }.unwrap_or_else(null)
}

/// `ibv_create_srq_ex`
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    provoke!("ibv_create_srq" => null);
    if context.is_null() || init.is_null() {
        return null(refuse(
            libc::EINVAL,
            "ibv_create_srq_ex: the context or the attributes are NULL",
        ));
    }
    // SAFETY: the structure is live up to the fields that its mask names. An older program's
    // structure is shorter, and fields that the mask does not name are not read.
    let (mask, srq_context) = unsafe { ((*init).comp_mask, (*init).srq_context) };
    let has = |flag| mask & flag != 0;
    if mask >= IBV_SRQ_INIT_ATTR_RESERVED || has(IBV_SRQ_INIT_ATTR_TM) {
        return null(refuse(
            libc::EOPNOTSUPP,
            format_args!(
                "ibv_create_srq_ex: comp_mask {mask:#x} asks for tag matching, which this device lacks, or has unknown bits"
            ),
        ));
    }
    if !has(IBV_SRQ_INIT_ATTR_PD) {
        return null(refuse(
            libc::EINVAL,
            "ibv_create_srq_ex: the protection domain is not named in comp_mask",
        ));
    }
    let srq_type = match has(IBV_SRQ_INIT_ATTR_TYPE) {
        // SAFETY: the mask names the field.
        true => unsafe { (*init).srq_type },
        false => IBV_SRQT_BASIC,
    };
    if srq_type == IBV_SRQT_XRC {
        // SAFETY: the program passes a context that it has not closed, and not NULL as checked
        // above.
        let device = unsafe { &context_of(context).device };
        if let Err(errno) = check_roce(device, "ibv_create_srq_ex", "XRC") {
            return null(errno);
        }
    }
    let xrc = match srq_type {
        IBV_SRQT_BASIC => None,
        IBV_SRQT_XRC if has(IBV_SRQ_INIT_ATTR_XRCD) && has(IBV_SRQ_INIT_ATTR_CQ) => {
            // SAFETY: the mask names both fields.
            Some(unsafe { ((*init).xrcd, (*init).cq) })
        }
        IBV_SRQT_TM => {
            return null(refuse(
                libc::EOPNOTSUPP,
                "ibv_create_srq_ex: this device has no tag matching",
            ));
        }
        _ => {
            return null(refuse(
                libc::EINVAL,
                "ibv_create_srq_ex: the type is unknown, or an XRC queue has no XRC domain or no completion queue",
            ));
        }
    };
    // SAFETY: the mask names the domain, and `attr` is in every version of the structure.
    let (pd, attr) = unsafe { ((*init).pd, &mut (*init).attr) };
    let order = Order {
        context,
        srq_context,
        pd,
        xrc,
    };
    // SAFETY: the program's context is open, and its objects are live or NULL.
    unsafe { create(&order, attr) }.unwrap_or_else(null)
}

/// Creates the program's object of a new queue, and writes the granted sizes to `attr`.
///
/// # Safety
///
/// The context in `order` is open, and its objects are live or NULL.
unsafe fn create(order: &Order, attr: &mut ibv_srq_attr) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: the context is open, and the domain is live or NULL: see `# Safety`.
    let (context, pd) = unsafe { (context_of(order.context), from_c::<PdObject>(order.pd)) };
    let pd = pd.filter(|pd| Arc::ptr_eq(pd.device(), &context.device));
    let pd = pd.ok_or_else(|| {
        refuse(
            libc::EINVAL,
            "the protection domain of the shared receive queue is NULL or of another context",
        )
    })?;
    let (max_wr, max_sge) = (attr.max_wr, attr.max_sge);
    profile::check(&context.settings, |profile| {
        profile.check_srq(max_wr, max_sge)?;
        let (live, most) = (context.objects.srqs.len(), profile.limits().max_srq);
        profile.check_count("shared receive queues", live, most)
    })?;
    let (srq, xrcd) = match order.xrc {
        None => {
            let init = SrqInit {
                max_wr,
                max_sge,
                xrc: None,
            };
            (context.device.create_srq(pd.pd(), init), None)
        }
        Some((xrcd, cq)) => {
            // SAFETY: both objects are live, or NULL: see `# Safety`.
            let (xrcd, cq) = unsafe { (from_c::<XrcdObject>(xrcd), from_c::<CqObject>(cq)) };
            let cq = cq.filter(|cq| Arc::ptr_eq(&cq.device, &context.device));
            let (xrcd, cq) = (
                xrcd.ok_or_else(|| {
                    refuse(libc::EINVAL, "ibv_create_srq_ex: the XRC domain is NULL")
                })?,
                cq.ok_or_else(|| {
                    refuse(
                        libc::EINVAL,
                        "ibv_create_srq_ex: the completion queue is NULL or of another context",
                    )
                })?,
            );
            let (size, domain) = ((max_wr, max_sge), &xrcd.domain.xrcd);
            let srq = context.device.create_xrc_srq(pd.pd(), size, domain, &cq.cq);
            (srq, Some(xrcd.users.hold()))
        }
    };
    let srq = srq.map_err(|error| errno_of(&error))?;
    (attr.max_wr, attr.max_sge, _) = srq.query();
    let number = srq.number();
    let c = into_c(Box::new(SrqObject {
        c: UnsafeCell::new(ibv_srq {
            context: order.context,
            srq_context: order.srq_context,
            pd: order.pd,
            handle: context.new_handle(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        }),
        srq,
        users: Users::default(),
        _pd: pd.hold(),
        _xrcd: xrcd,
    }));
    context.objects.srqs.insert(number, c, Arc::default());
    Ok(c)
}

/// `ibv_modify_srq`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    provoke!("ibv_modify_srq" => errno);
    let object = object!(srq as SrqObject, "ibv_modify_srq: the queue is NULL" => errno);
    let attr = argument!(attr, "ibv_modify_srq: the attributes are NULL" => errno);
    let mask = mask as u32;
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return refuse(
            libc::EINVAL,
            format_args!("ibv_modify_srq: mask {mask:#x} has unknown bits"),
        );
    }
    let srq = &object.srq;
    let (resize, limit) = (mask & IBV_SRQ_MAX_WR != 0, mask & IBV_SRQ_LIMIT != 0);
    if resize && limit && attr.srq_limit > attr.max_wr {
        return refuse(
            libc::EINVAL,
            format_args!(
                "ibv_modify_srq: limit {} is above max_wr {}",
                attr.srq_limit, attr.max_wr
            ),
        );
    }
    let mut result = Ok(());
    if resize {
        result = srq.resize(attr.max_wr);
    }
    if limit && result.is_ok() {
        result = srq.set_limit(attr.srq_limit);
    }
    code(result)
}

/// `ibv_query_srq`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let object = object!(srq as SrqObject, "ibv_query_srq: the queue is NULL" => errno);
    let (max_wr, max_sge, srq_limit) = object.srq.query();
    let found = ibv_srq_attr {
        max_wr,
        max_sge,
        srq_limit,
    };
    put!(attr, found, "ibv_query_srq: the place for the attributes is NULL" => errno);
    0
}

/// `ibv_get_srq_num`
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    let object = object!(srq as SrqObject, "ibv_get_srq_num: the queue is NULL" => errno);
    let found = object.srq.number();
    put!(number, found, "ibv_get_srq_num: the place for the number is NULL" => errno);
    0
}

/// `ibv_destroy_srq`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    provoke!("ibv_destroy_srq" => errno);
    let object = object!(srq as SrqObject, "ibv_destroy_srq: the queue is NULL" => errno);
    if object.users.any() {
        return refuse(
            libc::EBUSY,
            "ibv_destroy_srq: queue pairs still use the queue",
        );
    }
    // SAFETY: a context is open as long as it has shared receive queues.
    let context = unsafe { context_of((*object.c.get()).context) };
    connect::remove_srq(srq);
    context.objects.srqs.retire(object.srq.number());
    free!(srq as SrqObject);
    0
}
