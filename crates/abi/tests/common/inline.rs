//! The inline functions of `verbs.h`: calls through pointers.

use core::ffi::c_int;
use core::mem::offset_of;

use ferroce_abi::ffi::*;

/// Returns the `verbs_context` around a context, as the inline functions find it.
pub(crate) unsafe fn verbs<'a>(context: *mut ibv_context) -> &'a verbs_context {
    assert_eq!((*context).abi_compat as usize, usize::MAX);
    &*context
        .byte_sub(offset_of!(verbs_context, context))
        .cast::<verbs_context>()
}

/// Calls a function pointer of `verbs_context`, which must be set.
macro_rules! slot {
    ($context:expr, $slot:ident ( $($argument:expr),* )) => {
        ($crate::common::inline::verbs($context).$slot.expect(stringify!($slot)))($($argument),*)
    };
}
pub(crate) use slot;

pub(crate) unsafe fn poll_cq(cq: *mut ibv_cq, wcs: &mut [ibv_wc]) -> c_int {
    let poll = (*(*cq).context).ops.poll_cq.expect("filled");
    poll(cq, wcs.len() as c_int, wcs.as_mut_ptr())
}

pub(crate) unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    (*(*cq).context).ops.req_notify_cq.expect("filled")(cq, solicited_only)
}

pub(crate) unsafe fn alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    (*(*pd).context).ops.alloc_mw.expect("filled")(pd, type_)
}

pub(crate) unsafe fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    (*(*mw).context).ops.dealloc_mw.expect("filled")(mw)
}

pub(crate) unsafe fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    (*(*mw).context).ops.bind_mw.expect("filled")(qp, mw, bind)
}

pub(crate) unsafe fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    (*(*qp).context).ops.post_send.expect("filled")(qp, wr, bad)
}

pub(crate) unsafe fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    (*(*qp).context).ops.post_recv.expect("filled")(qp, wr, bad)
}

pub(crate) unsafe fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    (*(*srq).context).ops.post_srq_recv.expect("filled")(srq, wr, bad)
}
