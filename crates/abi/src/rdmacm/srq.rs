//! `rdma_create_srq` and `rdma_destroy_srq`.

use core::ffi::c_int;

use super::id::{IdObject, id_of, object_of};
use super::qp::{create_cqs, destroy_cqs, xrcd};
use super::{Outcome, finish, last_errno};
use crate::errno::refuse;
use crate::ffi::*;
use crate::provoke::provoke;
use crate::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    provoke!("rdma_create_srq" => minus_one);
    if attr.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_srq: the attributes are NULL",
        )));
    }
    finish(id_of(id).and_then(|id| {
        let mut extended: ibv_srq_init_attr_ex = zeroed();
        let wanted = &raw mut extended;
        // SAFETY: the program's attributes are not NULL and whole. `ibv_srq_init_attr_ex`
        // begins with the fields of `ibv_srq_init_attr`; the others are set here or zero.
        unsafe {
            wanted.cast::<ibv_srq_init_attr>().write(*attr);
            (*wanted).comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
            (*wanted).srq_type = match id.c.qp_type() {
                IBV_QPT_XRC_RECV => IBV_SRQT_XRC,
                _ => IBV_SRQT_BASIC,
            };
            (*wanted).pd = pd;
            let created = create(&id, wanted);
            attr.write(*wanted.cast());
            created
        }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    provoke!("rdma_create_srq" => minus_one);
    if attr.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_srq_ex: the attributes are NULL",
        )));
    }
    // SAFETY: the attributes are not NULL, and have the fields that their mask names.
    finish(id_of(id).and_then(|id| unsafe { create(&id, attr) }))
}

/// # Safety
/// `attr` points to attributes that have the fields which their mask names.
unsafe fn create(id: &IdObject, attr: *mut ibv_srq_init_attr_ex) -> Outcome {
    // SAFETY: fields beyond the end of an older structure are used only after this function
    // or the mask names them.
    let a = unsafe { &mut *attr };
    let (verbs, own_pd) = (id.c.verbs().get(), id.c.pd().get());
    if a.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || verbs.is_null() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_create_srq_ex: the type is not named in comp_mask, or the id has no device",
        ));
    }
    if a.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || a.pd.is_null() {
        a.pd = own_pd;
        a.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    if a.srq_type == IBV_SRQT_XRC {
        if a.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || a.xrcd.is_null() {
            a.xrcd = xrcd(id)?;
        }
        if a.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || a.cq.is_null() {
            create_cqs(id, 0, a.attr.max_wr)?;
            a.cq = id.c.recv_cq().get();
        }
        a.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    let basic = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    // SAFETY: the objects in the attributes are the program's or this id's, and the
    // structure begins with the fields of `ibv_srq_init_attr`.
    let srq = unsafe {
        if a.comp_mask == basic && a.srq_type == IBV_SRQT_BASIC {
            ibv_create_srq(a.pd, attr.cast())
        } else {
            create_srq_ex(verbs, attr)
        }
    };
    if srq.is_null() {
        let errno = last_errno();
        destroy_cqs(id);
        return Err(errno);
    }
    id.c.pd().set_if_null(a.pd);
    id.c.srq().set(srq);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    destroy_srq(id);
}

/// Destroys the shared receive queue of an id, if it has one, with its completion queues.
pub(crate) fn destroy_srq(id: *mut rdma_cm_id) {
    let Ok(id) = object_of(id) else { return };
    let srq = id.c.srq().take();
    if srq.is_null() {
        return;
    }
    // SAFETY: the queue was created for this id, whose field held it until now.
    unsafe { ibv_destroy_srq(srq) };
    destroy_cqs(&id);
}
