//! Multicast groups. The GID of a group is its IP address.

use core::ffi::c_int;

use crate::ah::unmapped;
use crate::context::context_of;
use crate::convert::raw_gid;
use crate::errno::{code, refuse};
use crate::ffi::{ibv_gid, ibv_qp};
use crate::iwarp::check_roce;
use crate::object::from_c;
use crate::provoke::provoke;
use crate::qp::QpObject;

/// `ibv_attach_mcast`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    provoke!("ibv_attach_mcast" => errno);
    // SAFETY: the program passes NULL, or a queue pair and a GID that it keeps during the call.
    unsafe { change(qp, gid, true) }
}

/// `ibv_detach_mcast`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program passes NULL, or a queue pair and a GID that it keeps during the call.
    unsafe { change(qp, gid, false) }
}

/// Attaches a queue pair to a group, or detaches it.
///
/// # Safety
///
/// The queue pair and the GID are live, or NULL.
unsafe fn change(qp: *mut ibv_qp, gid: *const ibv_gid, join: bool) -> c_int {
    // SAFETY: both are live, or NULL: see `# Safety`.
    let arguments = unsafe { (from_c::<QpObject>(qp), gid.as_ref()) };
    let (Some(object), Some(gid)) = arguments else {
        return refuse(libc::EINVAL, "multicast: the queue pair or the GID is NULL");
    };
    // SAFETY: the context of a live queue pair is open.
    let device = unsafe { &context_of((*qp).context).device };
    if let Err(errno) = check_roce(device, "multicast", "multicast") {
        return errno;
    }
    let group = unmapped(raw_gid(gid));
    if !object.sends_datagrams() || !group.is_multicast() {
        return refuse(
            libc::EINVAL,
            format_args!("multicast group {group}: needs a UD queue pair and a multicast address"),
        );
    }
    code(object.qp.multicast(group, join))
}
