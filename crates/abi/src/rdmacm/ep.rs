//! `rdma_create_ep`: an id in one step, from the result of `rdma_getaddrinfo`.

use core::ffi::c_int;
use core::ptr;

use ferroce_rdmacm::RESOLVE_TIMEOUT;

use super::address::read;
use super::id::{self, IdObject, create};
use super::qp::destroy_qp;
use super::resolve::{bind, resolve, route};
use super::srq::destroy_srq;
use super::{Outcome, finish, last_errno, rdma_create_qp};
use crate::arguments::slice;
use crate::errno::refuse;
use crate::ffi::*;
use crate::provoke::provoke;

/// Largest length of private data, whose length is a byte in `rdma_conn_param`.
const MAX_CONNECT_DATA: usize = u8::MAX as usize;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    provoke!("rdma_create_ep" => minus_one);
    // SAFETY: the program passes NULL, or a pointer for the id and whole structures.
    let arguments = unsafe { (id.as_mut(), res.as_ref(), qp_init_attr.as_mut()) };
    let (Some(place), Some(res), init) = arguments else {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_ep: an argument is NULL",
        )));
    };
    let (space, qp_type) = (
        res.ai_port_space.cast_unsigned(),
        res.ai_qp_type.cast_unsigned(),
    );
    let created = create(ptr::null_mut(), ptr::null_mut(), space, qp_type);
    finish(created.and_then(|object| {
        // SAFETY: the structures are the program's; the domain is NULL or the program's.
        match unsafe { prepare(&object, res, pd, init) } {
            Ok(()) => {
                *place = object.as_ptr();
                Ok(())
            }
            Err(errno) => {
                destroy(object.as_ptr());
                Err(errno)
            }
        }
    }))
}

/// # Safety
/// `res` has NULL or whole addresses, and `ai_connect_len` bytes of private data; `pd` is
/// NULL or a protection domain of this library.
unsafe fn prepare(
    id: &IdObject,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Outcome {
    let qp_type = res.ai_qp_type.cast_unsigned();
    if res.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: the address is NULL or of the size of its family.
        bind(id, unsafe { read(res.ai_src_addr) }?)?;
        if !pd.is_null() {
            id.c.pd().set(pd);
        }
        id.extra().qp_init = init.map(|init| ibv_qp_init_attr { qp_type, ..*init });
        return Ok(());
    }
    // SAFETY: the addresses are NULL or of the size of their family.
    let (source, destination) = unsafe {
        let source = match res.ai_src_addr.is_null() {
            true => None,
            false => Some(read(res.ai_src_addr)?),
        };
        (source, read(res.ai_dst_addr)?)
    };
    resolve(id, source, destination, RESOLVE_TIMEOUT)?;
    route(id)?;
    if let Some(init) = init {
        init.qp_type = qp_type;
        // SAFETY: the id is live; the domain and the attributes are the program's.
        if unsafe { rdma_create_qp(id.as_ptr(), pd, init) } != 0 {
            return Err(last_errno());
        }
    }
    if !res.ai_connect.is_null() {
        // SAFETY: the private data has the length that the structure names.
        let data = unsafe { slice(res.ai_connect.cast_const().cast(), res.ai_connect_len) };
        let data = data.filter(|data| data.len() <= MAX_CONNECT_DATA);
        let data = data.ok_or_else(|| {
            let length = res.ai_connect_len;
            refuse(
                libc::EINVAL,
                format_args!(
                    "rdma_create_ep: {length} bytes of private data; at most {MAX_CONNECT_DATA} fit"
                ),
            )
        })?;
        id.extra().connect_data = data.to_vec();
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    destroy(id);
}

fn destroy(id: *mut rdma_cm_id) {
    destroy_qp(id);
    destroy_srq(id);
    let _refusal_is_logged = id::destroy(id);
}
