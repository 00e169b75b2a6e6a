//! The function pointers of a context: one line for each slot.
//!
//! Inline code calls the eight of `ibv_context_ops` without looking, so all of
//! them are there. Slots of `verbs_context` that stay NULL make the caller's
//! inline code answer `EOPNOTSUPP`.

use core::ffi::c_int;

use crate::errno::null;
use crate::ffi::*;
use crate::query;

/// Fills the tables of a new context.
pub(crate) fn fill(verbs: &mut verbs_context) {
    fill_context(&mut verbs.context.ops);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_port = Some(query::query_port);
    verbs.query_rt_values = Some(query::query_rt_values);
}

fn fill_context(ops: &mut ibv_context_ops) {
    // what very old programs call
    ops._compat_query_device = Some(query::ibv_query_device);
    ops._compat_query_port = Some(query::ibv_query_port);
    // memory windows
    ops.alloc_mw = Some(no_alloc_mw);
    ops.bind_mw = Some(no_bind_mw);
    ops.dealloc_mw = Some(no_dealloc_mw);
    // completions
    ops.poll_cq = Some(no_poll_cq);
    ops.req_notify_cq = Some(no_req_notify_cq);
    // work requests
    ops.post_send = Some(no_post_send);
    ops.post_recv = Some(no_post_recv);
    ops.post_srq_recv = Some(no_post_srq_recv);
}

extern "C" fn no_alloc_mw(_: *mut ibv_pd, _: ibv_mw_type) -> *mut ibv_mw {
    null(libc::EOPNOTSUPP)
}

extern "C" fn no_bind_mw(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    libc::EOPNOTSUPP
}

extern "C" fn no_dealloc_mw(_: *mut ibv_mw) -> c_int {
    libc::EOPNOTSUPP
}

extern "C" fn no_poll_cq(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    -libc::EOPNOTSUPP
}

extern "C" fn no_req_notify_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    libc::EOPNOTSUPP
}

extern "C" fn no_post_send(_: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    libc::EOPNOTSUPP
}

extern "C" fn no_post_recv(_: *mut ibv_qp, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    libc::EOPNOTSUPP
}

extern "C" fn no_post_srq_recv(
    _: *mut ibv_srq,
    _: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    libc::EOPNOTSUPP
}
