//! The function pointers of a context.
//!
//! Inline functions of `verbs.h` call those in `ibv_context_ops` without a check, so all of
//! them are set. A NULL pointer in `verbs_context` makes an inline function return
//! EOPNOTSUPP.

use crate::ffi::*;
use crate::strict::{Settings, hooks};
use crate::{
    advise, buf, cq, cq_ex, dm, domain, mr, mw, newer, post, provoke, qp, qp_create, query, srq,
    xrcd,
};

/// Sets the function pointers of a new context.
pub(crate) fn fill(verbs: &mut verbs_context, settings: &Settings) {
    fill_context(&mut verbs.context.ops, settings);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_port = Some(query::query_port);
    verbs.query_rt_values = Some(query::query_rt_values);
    fill_memory(verbs);
    fill_completions(verbs);
    fill_queues(verbs);
}

fn fill_memory(verbs: &mut verbs_context) {
    verbs.alloc_td = Some(domain::alloc_td);
    verbs.dealloc_td = Some(domain::dealloc_td);
    verbs.alloc_parent_domain = Some(domain::alloc_parent_domain);
    verbs.advise_mr = Some(advise::advise_mr);
    verbs.reg_mr_ex = Some(newer::ibv_reg_mr_ex);
    verbs.alloc_buf = Some(buf::ibv_alloc_buf);
    verbs.free_buf = Some(buf::ibv_free_buf);
    verbs.alloc_null_mr = Some(mr::alloc_null_mr);
    verbs.alloc_dm = Some(dm::alloc_dm);
    verbs.free_dm = Some(dm::free_dm);
    verbs.reg_dm_mr = Some(dm::reg_dm_mr);
}

fn fill_completions(verbs: &mut verbs_context) {
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
}

fn fill_queues(verbs: &mut verbs_context) {
    verbs.create_qp_ex = Some(qp_create::create_qp_ex);
    verbs.open_qp = Some(qp_create::open_qp);
    verbs.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.open_xrcd = Some(xrcd::open_xrcd);
    verbs.close_xrcd = Some(xrcd::close_xrcd);
}

fn fill_context(ops: &mut ibv_context_ops, settings: &Settings) {
    // called by very old programs
    ops._compat_query_device = Some(query::ibv_query_device);
    ops._compat_query_port = Some(query::ibv_query_port);
    // memory windows
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    // completions
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    // work requests
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(post::post_srq_recv);
    if settings.are_active() {
        hooks::fill(ops);
    }
    provoke::fill(ops);
}
