//! `rdma_create_qp` and `rdma_destroy_qp`, and the completion queues of ids.

use core::ffi::c_int;

use ferroce_device::transport::QpType;

use super::fields::Field;
use super::id::{IdObject, id_of, object_of};
use super::{Outcome, finish, last_errno, refused};
use crate::channel::{create_channel_of_id, ibv_destroy_comp_channel};
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::refuse;
use crate::ffi::*;
use crate::object::from_c;
use crate::provoke::provoke;
use crate::qp::{QpObject, ibv_destroy_qp};
use crate::qp_create::{create_qp_ex, ibv_create_qp};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    provoke!("rdma_create_qp" => minus_one);
    if qp_init_attr.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_qp: the attributes are NULL",
        )));
    }
    finish(id_of(id).and_then(|id| {
        let mut extended: ibv_qp_init_attr_ex = zeroed();
        let attr = &raw mut extended;
        // SAFETY: the program's attributes are not NULL and whole. `ibv_qp_init_attr_ex`
        // begins with the fields of `ibv_qp_init_attr`, and its mask names no others but `pd`.
        unsafe {
            attr.cast::<ibv_qp_init_attr>().write(*qp_init_attr);
            (*attr).comp_mask = IBV_QP_INIT_ATTR_PD;
            (*attr).pd = if pd.is_null() { id.c.pd().get() } else { pd };
            let created = create(&id, attr);
            qp_init_attr.write(*attr.cast());
            created
        }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    provoke!("rdma_create_qp" => minus_one);
    if qp_init_attr.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_qp_ex: the attributes are NULL",
        )));
    }
    // SAFETY: the attributes are not NULL, and have the fields that their mask names.
    finish(id_of(id).and_then(|id| unsafe { create(&id, qp_init_attr) }))
}

/// # Safety
/// `attr` points to attributes that have the fields which their mask names.
unsafe fn create(id: &IdObject, attr: *mut ibv_qp_init_attr_ex) -> Outcome {
    let (verbs, own_pd, srq) = (id.c.verbs().get(), id.c.pd().get(), id.c.srq().get());
    if !id.c.qp().get().is_null() || verbs.is_null() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_create_qp: the id has a queue pair, or its address is not resolved",
        ));
    }
    // SAFETY: fields beyond the end of an older structure are used only after this function
    // or the mask names them.
    let a = unsafe { &mut *attr };
    if a.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || a.pd.is_null() {
        a.comp_mask |= IBV_QP_INIT_ATTR_PD;
        a.pd = own_pd;
    // SAFETY: the domain is not NULL, and the program's.
    } else if unsafe { (*a.pd).context } != verbs {
        return Err(refuse(
            libc::EINVAL,
            "rdma_create_qp: the protection domain is of another context than the id",
        ));
    }
    let differ = |ours: *mut ibv_cq, theirs: *mut ibv_cq| {
        !ours.is_null() && !theirs.is_null() && ours != theirs
    };
    let (send_cq, recv_cq) = (id.c.send_cq().get(), id.c.recv_cq().get());
    if differ(recv_cq, a.recv_cq) || differ(send_cq, a.send_cq) {
        return Err(refuse(
            libc::EINVAL,
            "rdma_create_qp: the id has other completion queues",
        ));
    }
    let wants_xrcd = a.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || a.xrcd.is_null();
    if id.id.qp_type() == QpType::XrcTarget && wants_xrcd {
        a.xrcd = xrcd(id)?;
        a.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    let missing = |theirs: *mut ibv_cq, ours: *mut ibv_cq, size: u32| {
        if theirs.is_null() && ours.is_null() {
            size
        } else {
            0
        }
    };
    let send = missing(a.send_cq, send_cq, a.cap.max_send_wr);
    let receive = missing(a.recv_cq, recv_cq, a.cap.max_recv_wr);
    create_cqs(id, send, receive)?;
    let (send_cq, recv_cq) = (id.c.send_cq().get(), id.c.recv_cq().get());
    if a.send_cq.is_null() {
        a.send_cq = send_cq;
    }
    if a.recv_cq.is_null() {
        a.recv_cq = recv_cq;
    }
    if a.srq.is_null() {
        a.srq = srq;
    }
    // SAFETY: the objects in the attributes are the program's or this id's, and the structure
    // begins with the fields of `ibv_qp_init_attr`.
    let qp = unsafe {
        if a.comp_mask == IBV_QP_INIT_ATTR_PD {
            ibv_create_qp(a.pd, attr.cast())
        } else {
            create_qp_ex(verbs, attr)
        }
    };
    // SAFETY: the queue pair was just created, or is NULL.
    let Some(object) = (unsafe { from_c::<QpObject>(qp) }) else {
        let errno = last_errno();
        destroy_cqs(id);
        return Err(errno);
    };
    if let Err(error) = id.id.initialize_qp(&object.qp) {
        let errno = refused("rdma_create_qp")(error);
        // SAFETY: the queue pair was just created, and the program has not seen it.
        unsafe { ibv_destroy_qp(qp) };
        destroy_cqs(id);
        return Err(errno);
    }
    id.c.pd().set(a.pd);
    id.c.qp().set(qp);
    id.attach_qp();
    id.update_qp_state();
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    destroy_qp(id);
}

/// Destroys the queue pair of an id, if it has one, with its completion queues.
pub(crate) fn destroy_qp(id: *mut rdma_cm_id) {
    let Ok(id) = object_of(id) else { return };
    let qp = id.c.qp().take();
    if qp.is_null() {
        return;
    }
    // SAFETY: the program's queue pair, which the id held until now.
    unsafe { ibv_destroy_qp(qp) };
    destroy_cqs(&id);
}

/// Returns the XRC domain of an id whose program brings none.
pub(crate) fn xrcd(id: &IdObject) -> Outcome<*mut ibv_xrcd> {
    let device = id.device()?.ok_or_else(|| {
        refuse(
            libc::EINVAL,
            "the id has no device: its address is not resolved",
        )
    })?;
    device.xrcd()
}

/// Creates completion queues of an id's own, with channels; those of size 0 are not wanted.
pub(crate) fn create_cqs(id: &IdObject, send: u32, receive: u32) -> Outcome {
    let verbs = id.c.verbs().get();
    let make = |size: u32| {
        // SAFETY: the context of an id is never closed, and the channel was just created.
        unsafe {
            let channel = create_channel_of_id(verbs);
            if channel.is_null() {
                return Err((channel, last_errno()));
            }
            let size = c_int::try_from(size).unwrap_or(c_int::MAX);
            let cq = ibv_create_cq(verbs, size, id.as_ptr().cast(), channel, 0);
            if cq.is_null() {
                return Err((channel, last_errno()));
            }
            Ok((channel, cq))
        }
    };
    let mut failed = None;
    if receive > 0 {
        let made = make(receive);
        failed = keep(made, &id.c.recv_cq_channel(), &id.c.recv_cq());
    }
    if send > 0 && failed.is_none() {
        let made = make(send);
        failed = keep(made, &id.c.send_cq_channel(), &id.c.send_cq());
    }
    match failed {
        None => Ok(()),
        Some(errno) => {
            destroy_cqs(id);
            Err(errno)
        }
    }
}

type Made = Result<(*mut ibv_comp_channel, *mut ibv_cq), (*mut ibv_comp_channel, c_int)>;

/// Keeps a completion queue in an id; returns the errno if there is none.
fn keep(
    made: Made,
    channel: &Field<'_, ibv_comp_channel>,
    cq: &Field<'_, ibv_cq>,
) -> Option<c_int> {
    match made {
        Ok((made, queue)) => {
            channel.set(made);
            cq.set(queue);
            None
        }
        Err((made, errno)) => {
            channel.set(made);
            Some(errno)
        }
    }
}

/// Destroys the completion queues of an id's own.
pub(crate) fn destroy_cqs(id: &IdObject) {
    let c = &id.c;
    // The shared receive queue completes there.
    if c.qp_type() == IBV_QPT_XRC_RECV && !c.srq().get().is_null() {
        return;
    }
    let cqs = [c.recv_cq().take(), c.send_cq().take()];
    let channels = [c.recv_cq_channel().take(), c.send_cq_channel().take()];
    // SAFETY: the queues and channels are NULL or were created for this id, whose fields held
    // them until now. Queues go before their channels.
    unsafe {
        for cq in cqs.into_iter().filter(|cq| !cq.is_null()) {
            ibv_destroy_cq(cq);
        }
        for channel in channels.into_iter().filter(|channel| !channel.is_null()) {
            ibv_destroy_comp_channel(channel);
        }
    }
}
