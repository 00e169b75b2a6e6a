//! The function pointers of a context: one line for each slot.
//!
//! Inline code calls the eight of `ibv_context_ops` without looking, so all of
//! them are there. Slots of `verbs_context` that stay NULL make the caller's
//! inline code answer `EOPNOTSUPP`.

use core::ffi::c_int;

use crate::ffi::*;
use crate::{advise, cq, cq_ex, dm, domain, mr, mw, query};

/// Fills the tables of a new context.
pub(crate) fn fill(verbs: &mut verbs_context) {
    fill_context(&mut verbs.context.ops);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_port = Some(query::query_port);
    verbs.query_rt_values = Some(query::query_rt_values);
    fill_memory(verbs);
    fill_completions(verbs);
}

fn fill_memory(verbs: &mut verbs_context) {
    verbs.alloc_td = Some(domain::alloc_td);
    verbs.dealloc_td = Some(domain::dealloc_td);
    verbs.alloc_parent_domain = Some(domain::alloc_parent_domain);
    verbs.advise_mr = Some(advise::advise_mr);
    verbs.alloc_null_mr = Some(mr::alloc_null_mr);
    verbs.alloc_dm = Some(dm::alloc_dm);
    verbs.free_dm = Some(dm::free_dm);
    verbs.reg_dm_mr = Some(dm::reg_dm_mr);
}

fn fill_completions(verbs: &mut verbs_context) {
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
}

fn fill_context(ops: &mut ibv_context_ops) {
    // what very old programs call
    ops._compat_query_device = Some(query::ibv_query_device);
    ops._compat_query_port = Some(query::ibv_query_port);
    // memory windows
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(no_bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    // completions
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    // work requests
    ops.post_send = Some(no_post_send);
    ops.post_recv = Some(no_post_recv);
    ops.post_srq_recv = Some(no_post_srq_recv);
}

extern "C" fn no_bind_mw(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
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
