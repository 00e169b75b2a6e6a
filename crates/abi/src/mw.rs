//! Memory windows.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::sync::Arc;

use ferroce_device::Device;
use ferroce_device::transport::{Access, BindMw, Mw, MwKind, SendData, SendFlags, SendOp, SendWr};

use crate::context::context_of;
use crate::errno::{errno_of, null, refuse};
use crate::ffi::*;
use crate::mr::MrObject;
use crate::object::{Object, argument, free, from_c, into_c, object};
use crate::pd::{PdObject, PdUse};
use crate::profile;
use crate::provoke::provoke;
use crate::qp::QpObject;

/// `ibv_mw`
#[repr(C)]
pub(crate) struct MwObject {
    c: UnsafeCell<ibv_mw>,
    pub(crate) mw: Arc<Mw>,
    device: Arc<Device>,
    _domain: PdUse,
}

// SAFETY: `repr(C)`, and the first field is a cell of the C structure.
unsafe impl Object for MwObject {
    type C = ibv_mw;
}

/// `ibv_alloc_mw`
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    provoke!("ibv_alloc_mw" => null);
    let object = object!(pd as PdObject, "ibv_alloc_mw: the protection domain is NULL" => null);
    // SAFETY: a context is open as long as it has domains.
    let settings = unsafe { context_of(object.context()) }.settings;
    let has_windows = |limits: &ferroce_strict::Limits| limits.max_mw > 0;
    if let Err(errno) = profile::check_feature(&settings, "memory windows", has_windows) {
        return null(errno);
    }
    let kind = match type_ {
        IBV_MW_TYPE_1 => MwKind::Type1,
        IBV_MW_TYPE_2 => MwKind::Type2B,
        _ => {
            return null(refuse(
                libc::EINVAL,
                format_args!("ibv_alloc_mw: memory window type {type_} is neither 1 nor 2"),
            ));
        }
    };
    let device = object.device();
    match device.alloc_mw(object.pd(), kind) {
        Err(error) => null(errno_of(&error)),
        Ok(mw) => into_c(Box::new(MwObject {
            c: UnsafeCell::new(ibv_mw {
                context: object.context(),
                pd,
                rkey: mw.rkey(),
                type_,
                ..zeroed()
            }),
            mw,
            device: Arc::clone(device),
            _domain: object.hold(),
        })),
    }
}

/// `ibv_dealloc_mw`
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let object = object!(mw as MwObject, "ibv_dealloc_mw: the memory window is NULL" => errno);
    if let Err(error) = object.device.dealloc_mw(&object.mw) {
        return errno_of(&error);
    }
    free!(mw as MwObject);
    0
}

/// `ibv_bind_mw`: posts the bind of a type 1 window; with a length of 0, its unbind. The
/// window has the new rkey when the call returns.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    provoke!("ibv_bind_mw" => errno);
    let queue = object!(qp as QpObject, "ibv_bind_mw: the queue pair is NULL" => errno);
    let object = object!(mw as MwObject, "ibv_bind_mw: the memory window is NULL" => errno);
    let bind = argument!(mw_bind, "ibv_bind_mw: the bind is NULL" => errno);
    let info = &bind.bind_info;
    // SAFETY: the program's region is live, or NULL.
    let region = unsafe { from_c::<MrObject>(info.mr) };
    if object.mw.kind() != MwKind::Type1
        || info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0
        || region.is_none() && (info.addr != 0 || info.length != 0)
    {
        return refuse(
            libc::EINVAL,
            "ibv_bind_mw: needs a type 1 window, no zero-based access, and a memory region unless the window is unbound",
        );
    }
    if region.is_some_and(|region| region.mr().pd().id() != object.mw.pd().id()) {
        return refuse(
            libc::EPERM,
            "ibv_bind_mw: the memory region is of another protection domain than the window",
        );
    }
    let rkey = object.device.next_type1_rkey(&object.mw);
    let known = SendFlags::FENCE | SendFlags::SIGNALED | SendFlags::SOLICITED;
    let posted = queue.qp.post_send(SendWr {
        wr_id: bind.wr_id,
        op: SendOp::BindMw(Box::new(BindMw {
            mw: Arc::clone(&object.mw),
            rkey,
            mr: region.map(|region| Arc::clone(region.mr())),
            addr: info.addr,
            length: info.length,
            access: Access::from_bits_retain(info.mw_access_flags),
        })),
        flags: SendFlags::from_bits_truncate(bind.send_flags) & known,
        data: SendData::Sges(&[]),
        ud: None,
        xrc_srq: 0,
    });
    match posted {
        Err(error) => errno_of(&error),
        Ok(()) => {
            // SAFETY: the field is inside the live structure, and the program only reads it.
            unsafe { (&raw mut (*object.c.get()).rkey).write_volatile(rkey) };
            0
        }
    }
}
