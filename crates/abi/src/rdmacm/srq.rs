//! Shared receive queues of ids.

use core::ffi::c_int;
use core::ptr;

use super::id::{Id, id_of};
use super::no_device;
use super::qp::{create_cqs, destroy_cqs};
use super::{Outcome, finish, last_errno};
use crate::errno::refuse;
use crate::ffi::*;
use crate::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    if id.is_null() || attr.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_srq: the id or the attributes are NULL",
        )));
    }
    let mut extended: ibv_srq_init_attr_ex = zeroed();
    // SAFETY: the extended structure begins with the plain one.
    unsafe {
        let plain = (&raw mut extended).cast::<ibv_srq_init_attr>();
        *plain = *attr;
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        extended.srq_type = match (*id).qp_type {
            IBV_QPT_XRC_RECV => IBV_SRQT_XRC,
            _ => IBV_SRQT_BASIC,
        };
        extended.pd = pd;
        let code = rdma_create_srq_ex(id, &raw mut extended);
        *attr = *plain;
        code
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    if attr.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_srq_ex: the attributes are NULL",
        )));
    }
    // SAFETY: the program's id and structure.
    finish(unsafe { id_of(id).and_then(|shared| create(shared, &mut *id, attr)) })
}

unsafe fn create(id: &Id, c: &mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> Outcome {
    // SAFETY: the program's structure; see `rdma_create_qp_ex`.
    let a = unsafe { &mut *attr };
    if a.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || c.verbs.is_null() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_create_srq_ex: the type is not named in comp_mask, or the id has no device",
        ));
    }
    if a.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || a.pd.is_null() {
        a.pd = c.pd;
        a.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    if a.srq_type == IBV_SRQT_XRC {
        if a.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || a.xrcd.is_null() {
            a.xrcd = id.inner().device.ok_or_else(no_device)?.xrcd()?;
        }
        if a.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || a.cq.is_null() {
            // SAFETY: an open context.
            unsafe { create_cqs(c, 0, a.attr.max_wr)? };
            a.cq = c.recv_cq;
        }
        a.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    let basic = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    // SAFETY: objects of ours; the plain structure is the beginning of this one.
    let srq = unsafe {
        if a.comp_mask == basic && a.srq_type == IBV_SRQT_BASIC {
            ibv_create_srq(a.pd, attr.cast())
        } else {
            create_srq_ex(c.verbs, attr)
        }
    };
    if srq.is_null() {
        let errno = last_errno();
        // SAFETY: made above, or nothing.
        unsafe { destroy_cqs(c) };
        return Err(errno);
    }
    if c.pd.is_null() {
        c.pd = a.pd;
    }
    c.srq = srq;
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the program's id, and its queue or NULL.
    unsafe {
        if (*id).srq.is_null() {
            return;
        }
        ibv_destroy_srq((*id).srq);
        (*id).srq = ptr::null_mut();
        destroy_cqs(&mut *id);
    }
}
