//! Memory windows.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use std::sync::Arc;

use ferroce_device::Device;
use ferroce_device::transport::{Mw, MwKind};

use crate::errno::{errno_of, null};
use crate::ffi::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_type, ibv_pd, zeroed};
use crate::object::{Object, from_c, into_c, take};
use crate::pd::{PdObject, PdUse};

/// `ibv_mw`
#[repr(C)]
pub(crate) struct MwObject {
    c: UnsafeCell<ibv_mw>,
    pub(crate) mw: Arc<Mw>,
    device: Arc<Device>,
    _domain: PdUse,
}

// SAFETY: `repr(C)`, and the C structure, in a cell, comes first.
unsafe impl Object for MwObject {
    type C = ibv_mw;
}

/// `ibv_alloc_mw`
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's protection domain.
    let Some(object) = (unsafe { from_c::<PdObject>(pd) }) else {
        return null(libc::EINVAL);
    };
    let kind = match type_ {
        IBV_MW_TYPE_1 => MwKind::Type1,
        IBV_MW_TYPE_2 => MwKind::Type2B,
        _ => return null(libc::EINVAL),
    };
    let device = object.device();
    match device.regions().alloc_mw(object.pd(), kind) {
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
    // SAFETY: the caller's window.
    let Some(object) = (unsafe { from_c::<MwObject>(mw) }) else {
        return libc::EINVAL;
    };
    if let Err(error) = object.device.dealloc_mw(&object.mw) {
        return errno_of(&error);
    }
    // SAFETY: its key is gone, and the caller is done with it.
    drop(unsafe { take::<MwObject>(mw) });
    0
}
