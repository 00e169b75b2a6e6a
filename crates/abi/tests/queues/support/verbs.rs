//! Verbs as the headers declare them: exported functions, and inline functions that call
//! through pointers. They are safe to call here, because tests pass live objects only.

use core::ffi::{c_int, c_uint};

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline;
pub(crate) use crate::common::{errno, zeros as zeroed};

/// Defines functions that call an exported function.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $function:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $($(#[$doc])*
        pub(crate) fn $name($($arg: $type),*) -> $result {
            // SAFETY: tests pass live objects only.
            unsafe { $function($($arg),*) }
        })*
    };
}

calls! {
    alloc_pd = ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    dealloc_pd = ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    destroy_cq = ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    create_ah = ibv_create_ah(pd: *mut ibv_pd, attr: &mut ibv_ah_attr) -> *mut ibv_ah;
    create_qp = ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp = ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    query_qp = ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    destroy_qp = ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    query_ece = ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    set_ece = ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    qp_to_qp_ex = ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    create_srq = ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    modify_srq = ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    query_srq = ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    destroy_srq = ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    attach_mcast = ibv_attach_mcast(qp: *mut ibv_qp, gid: &ibv_gid, lid: u16) -> c_int;
    detach_mcast = ibv_detach_mcast(qp: *mut ibv_qp, gid: &ibv_gid, lid: u16) -> c_int;
    get_async_event = ibv_get_async_event(context: *mut ibv_context, event: &mut ibv_async_event) -> c_int;
    ack_async_event = ibv_ack_async_event(event: &mut ibv_async_event) -> ();
}

pub(crate) fn create_cq(context: *mut ibv_context, cqe: c_int) -> *mut ibv_cq {
    let none = core::ptr::null_mut;
    // SAFETY: tests pass live objects only.
    let cq = unsafe { ibv_create_cq(context, cqe, none(), core::ptr::null_mut(), 0) };
    assert!(!cq.is_null());
    cq
}

pub(crate) fn reg_mr(pd: *mut ibv_pd, bytes: &mut [u8], access: u32) -> *mut ibv_mr {
    let (addr, length) = (bytes.as_mut_ptr().cast(), bytes.len());
    // SAFETY: tests pass live objects and memory only.
    let mr = unsafe { ibv_reg_mr(pd, addr, length, access as c_int) };
    assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
    mr
}

/// Returns the `verbs_context` around a context, as the inline functions find it.
fn table(context: *mut ibv_context) -> &'static verbs_context {
    // SAFETY: each context of the library is in a `verbs_context`.
    unsafe { inline::verbs(context) }
}

/// Defines functions that call through a pointer, as the inline functions do.
macro_rules! pointers {
    ($($name:ident($context:ident = $from:expr; $($arg:ident: $type:ty),*) -> $result:ty = $slot:expr;)*) => {
        $(pub(crate) fn $name($($arg: $type),*) -> $result {
            // SAFETY: tests pass live objects only.
            unsafe {
                let $context = $from;
                ($slot).expect("filled")($($arg),*)
            }
        })*
    };
}

pointers! {
    post_send_list(context = (*qp).context; qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int
        = (*context).ops.post_send;
    post_recv_list(context = (*qp).context; qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int
        = (*context).ops.post_recv;
    post_srq_recv_list(context = (*srq).context; srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int
        = (*context).ops.post_srq_recv;
    poll_cq(context = (*cq).context; cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int
        = (*context).ops.poll_cq;
    alloc_mw(context = (*pd).context; pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw
        = (*context).ops.alloc_mw;
    create_qp_ex(_c = context; context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp
        = table(context).create_qp_ex;
    open_qp(_c = context; context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp
        = table(context).open_qp;
    create_srq_ex(_c = context; context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq
        = table(context).create_srq_ex;
    open_xrcd(_c = context; context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        = table(context).open_xrcd;
    close_xrcd(context = (*xrcd).context; xrcd: *mut ibv_xrcd) -> c_int
        = table(context).close_xrcd;
    get_srq_num(context = (*srq).context; srq: *mut ibv_srq, number: &mut u32) -> c_int
        = table(context).get_srq_num;
}

/// Posts work requests as one list; returns the index and errno of the refused one.
pub(crate) fn post_send(qp: *mut ibv_qp, wrs: &mut [ibv_send_wr]) -> Result<(), (usize, c_int)> {
    for at in 1..wrs.len() {
        wrs[at - 1].next = &raw mut wrs[at];
    }
    let mut bad = core::ptr::null_mut();
    let first = wrs.as_mut_ptr();
    match post_send_list(qp, first, &raw mut bad) {
        0 => Ok(()),
        errno => Err((
            (bad as usize - first as usize) / size_of::<ibv_send_wr>(),
            errno,
        )),
    }
}

/// Posts receives as one list, as [`post_send`] does.
pub(crate) fn post_recv(qp: *mut ibv_qp, wrs: &mut [ibv_recv_wr]) -> Result<(), (usize, c_int)> {
    receives(wrs, |first, bad| post_recv_list(qp, first, bad))
}

/// Posts receives to a shared receive queue, as [`post_recv`] does.
pub(crate) fn post_srq_recv(
    srq: *mut ibv_srq,
    wrs: &mut [ibv_recv_wr],
) -> Result<(), (usize, c_int)> {
    receives(wrs, |first, bad| post_srq_recv_list(srq, first, bad))
}

fn receives(
    wrs: &mut [ibv_recv_wr],
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<(), (usize, c_int)> {
    for at in 1..wrs.len() {
        wrs[at - 1].next = &raw mut wrs[at];
    }
    let mut bad = core::ptr::null_mut();
    let first = wrs.as_mut_ptr();
    match post(first, &raw mut bad) {
        0 => Ok(()),
        errno => Err((
            (bad as usize - first as usize) / size_of::<ibv_recv_wr>(),
            errno,
        )),
    }
}
