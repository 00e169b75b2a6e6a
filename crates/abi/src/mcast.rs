//! Multicast groups. A group's GID is its IP address.

use core::ffi::c_int;

use crate::ah::unmapped;
use crate::errno::{code, refuse};
use crate::ffi::{IBV_QPT_UD, ibv_gid, ibv_qp};
use crate::object::from_c;
use crate::qp::QpObject;

/// `ibv_attach_mcast`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe { change(qp, gid, true) }
}

/// `ibv_detach_mcast`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe { change(qp, gid, false) }
}

unsafe fn change(qp: *mut ibv_qp, gid: *const ibv_gid, join: bool) -> c_int {
    // SAFETY: the caller's objects, or NULL.
    let arguments = unsafe { (from_c::<QpObject>(qp), gid.as_ref()) };
    let (Some(object), Some(gid)) = arguments else {
        return refuse(libc::EINVAL, "multicast: the queue pair or the GID is NULL");
    };
    // SAFETY: all of a GID's bytes are there, whichever way it was written.
    let group = unmapped(unsafe { gid.raw });
    // SAFETY: the type never changes.
    let datagrams = unsafe { (*qp).qp_type } == IBV_QPT_UD;
    if !datagrams || !group.is_multicast() {
        return refuse(
            libc::EINVAL,
            format_args!(
                "multicast needs a UD queue pair and a multicast address; {group} is the address"
            ),
        );
    }
    code(object.qp.multicast(group, join))
}
