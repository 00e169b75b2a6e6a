//! Queue pairs of ids, with the queues that complete them.

use core::ffi::c_int;
use core::ptr;

use super::attributes::to_init;
use super::id::{Id, id_of};
use super::no_device;
use super::{Outcome, finish, last_errno};
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::refuse;
use crate::ffi::*;
use crate::qp::ibv_destroy_qp;
use crate::qp_create::{create_qp_ex, ibv_create_qp};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    if id.is_null() || qp_init_attr.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_qp: the id or the attributes are NULL",
        )));
    }
    let mut attr: ibv_qp_init_attr_ex = zeroed();
    // SAFETY: the extended structure begins with the plain one.
    unsafe {
        let plain = (&raw mut attr).cast::<ibv_qp_init_attr>();
        *plain = *qp_init_attr;
        attr.comp_mask = IBV_QP_INIT_ATTR_PD;
        attr.pd = if pd.is_null() { (*id).pd } else { pd };
        let code = rdma_create_qp_ex(id, &raw mut attr);
        *qp_init_attr = *plain;
        code
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    if qp_init_attr.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_qp_ex: the attributes are NULL",
        )));
    }
    // SAFETY: the program's id and structure.
    finish(unsafe { id_of(id).and_then(|shared| create(shared, &mut *id, qp_init_attr)) })
}

unsafe fn create(id: &Id, c: &mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> Outcome {
    if !c.qp.is_null() || c.verbs.is_null() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_create_qp: the id has a queue pair, or its address is not resolved",
        ));
    }
    // SAFETY: the program's structure; fields that its mask does not name may lie
    // beyond the end of an older one, and are touched only after they are named.
    let a = unsafe { &mut *attr };
    if a.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || a.pd.is_null() {
        a.comp_mask |= IBV_QP_INIT_ATTR_PD;
        a.pd = c.pd;
    // SAFETY: a protection domain of ours.
    } else if unsafe { (*a.pd).context } != c.verbs {
        return Err(refuse(
            libc::EINVAL,
            "rdma_create_qp: the protection domain is of another context than the id",
        ));
    }
    let differ = |ours: *mut ibv_cq, theirs: *mut ibv_cq| {
        !ours.is_null() && !theirs.is_null() && ours != theirs
    };
    if differ(c.recv_cq, a.recv_cq) || differ(c.send_cq, a.send_cq) {
        return Err(refuse(
            libc::EINVAL,
            "rdma_create_qp: the id has other completion queues",
        ));
    }
    let wants_xrcd = a.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || a.xrcd.is_null();
    if id.qp_type == IBV_QPT_XRC_RECV && wants_xrcd {
        a.xrcd = id.inner().device.ok_or_else(no_device)?.xrcd()?;
        a.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    let missing = |theirs: *mut ibv_cq, ours: *mut ibv_cq, size: u32| {
        if theirs.is_null() && ours.is_null() {
            size
        } else {
            0
        }
    };
    let send = missing(a.send_cq, c.send_cq, a.cap.max_send_wr);
    let receive = missing(a.recv_cq, c.recv_cq, a.cap.max_recv_wr);
    // SAFETY: an open context.
    unsafe { create_cqs(c, send, receive)? };
    if a.send_cq.is_null() {
        a.send_cq = c.send_cq;
    }
    if a.recv_cq.is_null() {
        a.recv_cq = c.recv_cq;
    }
    if a.srq.is_null() {
        a.srq = c.srq;
    }
    // SAFETY: objects of ours; the plain structure is the beginning of this one.
    let qp = unsafe {
        if a.comp_mask == IBV_QP_INIT_ATTR_PD {
            ibv_create_qp(a.pd, attr.cast())
        } else {
            create_qp_ex(c.verbs, attr)
        }
    };
    if qp.is_null() {
        let errno = last_errno();
        // SAFETY: what was made above, or before by the program.
        unsafe { destroy_cqs(c) };
        return Err(errno);
    }
    if let Err(errno) = to_init(id, qp) {
        // SAFETY: made above.
        unsafe {
            ibv_destroy_qp(qp);
            destroy_cqs(c);
        }
        return Err(errno);
    }
    // SAFETY: a queue pair of ours.
    c.pd = unsafe { (*qp).pd };
    c.qp = qp;
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the program's id, and its queue pair or NULL.
    unsafe {
        if (*id).qp.is_null() {
            return;
        }
        ibv_destroy_qp((*id).qp);
        (*id).qp = ptr::null_mut();
        destroy_cqs(&mut *id);
    }
}

/// Completion queues of an id's own, with channels.
pub(crate) unsafe fn create_cqs(c: &mut rdma_cm_id, send: u32, receive: u32) -> Outcome {
    let context = ptr::from_mut(c).cast();
    // SAFETY: by contract an open context.
    let make = |verbs, size: u32| unsafe {
        let channel = ibv_create_comp_channel(verbs);
        if channel.is_null() {
            return Err((channel, last_errno()));
        }
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        let cq = ibv_create_cq(verbs, size, context, channel, 0);
        if cq.is_null() {
            return Err((channel, last_errno()));
        }
        Ok((channel, cq))
    };
    let mut failed = None;
    if receive > 0 {
        match make(c.verbs, receive) {
            Ok((channel, cq)) => (c.recv_cq_channel, c.recv_cq) = (channel, cq),
            Err((channel, errno)) => {
                c.recv_cq_channel = channel;
                failed = Some(errno);
            }
        }
    }
    if send > 0 && failed.is_none() {
        match make(c.verbs, send) {
            Ok((channel, cq)) => (c.send_cq_channel, c.send_cq) = (channel, cq),
            Err((channel, errno)) => {
                c.send_cq_channel = channel;
                failed = Some(errno);
            }
        }
    }
    match failed {
        None => Ok(()),
        Some(errno) => {
            // SAFETY: by contract.
            unsafe { destroy_cqs(c) };
            Err(errno)
        }
    }
}

/// Gives up an id's own completion queues.
pub(crate) unsafe fn destroy_cqs(c: &mut rdma_cm_id) {
    // The shared receive queue completes there.
    if c.qp_type == IBV_QPT_XRC_RECV && !c.srq.is_null() {
        return;
    }
    // SAFETY: objects of ours or NULL, each once.
    unsafe {
        for cq in [c.recv_cq, c.send_cq] {
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
        }
        for channel in [c.recv_cq_channel, c.send_cq_channel] {
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
    (c.recv_cq, c.send_cq) = (ptr::null_mut(), ptr::null_mut());
    (c.recv_cq_channel, c.send_cq_channel) = (ptr::null_mut(), ptr::null_mut());
}
