//! `rdma_init_qp_attr`.

use core::ffi::c_int;

use ferroce_rdmacm::QpAttributes;

use super::event::c_ah_attr;
use super::id::id_of;
use super::{finish, refused};
use crate::convert::{c_qp_state, qp_state};
use crate::errno::refuse;
use crate::ffi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: the program passes NULL or whole structures.
    let (Some(attr), Some(mask)) = (unsafe { (qp_attr.as_mut(), qp_attr_mask.as_mut()) }) else {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_init_qp_attr: an argument is NULL",
        )));
    };
    finish(id_of(id).and_then(|id| {
        let state = qp_state(attr.qp_state)?;
        let attributes = id.id.qp_attributes(state);
        let attributes = attributes.map_err(refused("rdma_init_qp_attr"))?;
        *attr = to_c(&attributes);
        *mask = attributes.mask.bits() as c_int;
        Ok(())
    }))
}

/// Returns the attributes as a C structure; those that the mask does not name are zero.
fn to_c(attributes: &QpAttributes) -> ibv_qp_attr {
    use ferroce_device::transport::AttrMask;
    let QpAttributes { attr, mask, ah } = attributes;
    let mut c = ibv_qp_attr {
        qp_state: c_qp_state(attr.state),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access.bits(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..zeroed()
    };
    if mask.contains(AttrMask::PORT) {
        c.port_num = attr.port;
    }
    if mask.contains(AttrMask::PATH_MTU) {
        c.path_mtu = attr.path_mtu.to_enum();
    }
    if let Some(ah) = ah {
        c.ah_attr = c_ah_attr(ah);
    }
    c
}
