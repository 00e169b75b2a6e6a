//! Endpoints: ids in one step, from what `rdma_getaddrinfo` found.

use core::ffi::c_int;
use std::sync::Arc;

use super::address::read;
use super::id::{Id, QpInitAttr, create, id_of};
use super::resolve::{RESOLVE_TIMEOUT, bind, resolve, route};
use super::{
    Outcome, finish, last_errno, rdma_create_qp, rdma_destroy_id, rdma_destroy_qp, rdma_destroy_srq,
};
use crate::errno::refuse;
use crate::ffi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    if id.is_null() || res.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_ep: an argument is NULL",
        )));
    }
    // SAFETY: the program's structures, and a place for the id.
    finish(unsafe {
        let res = &*res;
        let null = core::ptr::null_mut();
        let created = create(
            null,
            null.cast(),
            res.ai_port_space.cast_unsigned(),
            res.ai_qp_type.cast_unsigned(),
        );
        created.and_then(|new| match prepare(new, res, pd, qp_init_attr) {
            Ok(()) => {
                *id = new;
                Ok(())
            }
            Err(errno) => {
                rdma_destroy_ep(new);
                Err(errno)
            }
        })
    })
}

unsafe fn prepare(
    c: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Outcome {
    // SAFETY: an id of ours, and the program's structures.
    unsafe {
        let id = id_of(c)?;
        if res.ai_flags & RAI_PASSIVE != 0 {
            bind(id, read(res.ai_src_addr)?)?;
            if !pd.is_null() {
                (*c).pd = pd;
            }
            keep(id, res, init);
            return Ok(());
        }
        let source = match res.ai_src_addr.is_null() {
            true => None,
            false => Some(read(res.ai_src_addr)?),
        };
        resolve(id, source, read(res.ai_dst_addr)?, RESOLVE_TIMEOUT)?;
        route(id)?;
        if !init.is_null() {
            (*init).qp_type = res.ai_qp_type.cast_unsigned();
            if rdma_create_qp(c, pd, init) != 0 {
                return Err(last_errno());
            }
        }
        if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
            let data = core::slice::from_raw_parts(res.ai_connect.cast(), res.ai_connect_len);
            id.inner().connect_data = data.to_vec();
        }
        Ok(())
    }
}

/// How to make queue pairs for those who connect.
unsafe fn keep(id: &Arc<Id>, res: &rdma_addrinfo, init: *mut ibv_qp_init_attr) {
    // SAFETY: by contract NULL or valid.
    if let Some(init) = unsafe { init.as_ref() } {
        let mut init = *init;
        init.qp_type = res.ai_qp_type.cast_unsigned();
        let bytes: *const [u8; size_of::<ibv_qp_init_attr>()] = (&raw const init).cast();
        // SAFETY: the bytes of the structure, kept to become one again; padding is
        // made of what `zeroed` or the program left there.
        id.inner().qp_init = Some(QpInitAttr(Box::new(unsafe { bytes.read() })));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the program's id, which it gives back.
    unsafe {
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        rdma_destroy_id(id);
    }
}
