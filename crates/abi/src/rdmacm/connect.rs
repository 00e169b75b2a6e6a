//! `rdma_connect`, `rdma_establish`, `rdma_disconnect` and `rdma_notify`.

use core::ffi::{c_int, c_void};

use ferroce_device::transport::QpType;
use ferroce_rdmacm::{ConnParams, PortSpace};

use super::event::complete;
use super::id::{IdObject, id_of, id_with_qp};
use super::{Outcome, finish, refused};
use crate::arguments::slice;
use crate::context::context_of;
use crate::errno::refuse;
use crate::ffi::*;
use crate::provoke::provoke;
use crate::strict::connect::check_params;
use crate::unused;

/// Reads the parameters of a connection.
///
/// # Safety
/// `param` is NULL or points to a structure whose private data has the length that the
/// structure names.
pub(crate) unsafe fn conn_params(
    id: &IdObject,
    verb: &str,
    param: *const rdma_conn_param,
) -> Outcome<ConnParams> {
    // SAFETY: `param` is NULL or a whole structure.
    let param = unsafe { param.as_ref() };
    let qp = id.c.qp().get();
    if id.id.port_space() == PortSpace::Tcp && qp.is_null() && param.is_none() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_connect, rdma_accept: without a queue pair the parameters must not be NULL",
        ));
    }
    let mut params = ConnParams::with_private_data(&id.extra().connect_data);
    if let Some(param) = param {
        params.flow_control = param.flow_control != 0;
        params.retry_count = param.retry_count;
        params.rnr_retry_count = param.rnr_retry_count;
        params.qpn = param.qp_num;
        params.srq = param.srq != 0;
        params.responder_resources = depth(param.responder_resources);
        params.initiator_depth = depth(param.initiator_depth);
        // SAFETY: the private data has the length that the structure names.
        let data = unsafe { bytes(param.private_data, param.private_data_len) };
        params.private_data.extend_from_slice(data);
        let context = id.c.verbs().get();
        if !context.is_null() && id.id.qp_type() != QpType::Ud {
            // SAFETY: the context of an id that is bound to a device stays open.
            check_params(unsafe { context_of(context) }, verb, &params)?;
        }
    }
    if !qp.is_null() {
        // SAFETY: the field of the id is a queue pair that the program keeps during calls
        // that use it, and this member does not change.
        params.srq = unsafe { !(*qp).srq.is_null() };
    }
    Ok(params)
}

/// Returns a number of READs and atomics; None for 255, which stands for the largest.
fn depth(number: u8) -> Option<u8> {
    (number != RDMA_MAX_RESP_RES).then_some(number)
}

/// Returns private data of a program.
///
/// # Safety
/// `data` is NULL or points to `len` bytes that stay valid.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    // SAFETY: `data` is NULL, or points to `len` bytes that stay valid.
    unsafe { slice(data.cast(), len.into()) }.unwrap_or_default()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    provoke!("rdma_connect" => minus_one);
    finish(id_with_qp(id).and_then(|id| {
        // SAFETY: the program passes NULL or a whole structure.
        let params = unsafe { conn_params(&id, "rdma_connect", conn_param) }?;
        id.id.connect(&params).map_err(refused("rdma_connect"))?;
        id.extra().connect_data.clear();
        complete(&id)
    }))
}

/// For programs that move their queue pair themselves, after `CONNECT_RESPONSE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    finish(id_of(id).and_then(|id| {
        if !id.c.qp().get().is_null() {
            return Err(refuse(
                libc::EINVAL,
                "rdma_establish: the id has a queue pair, which rdma_get_cm_event establishes",
            ));
        }
        id.id.establish().map_err(refused("rdma_establish"))?;
        unused::connects();
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    provoke!("rdma_disconnect" => minus_one);
    finish(id_with_qp(id).and_then(|id| {
        let disconnected = id.id.disconnect();
        id.update_qp_state();
        disconnected.map_err(refused("rdma_disconnect"))?;
        complete(&id)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    finish(id_of(id).and_then(|id| {
        if event != IBV_EVENT_COMM_EST {
            return Err(refuse(
                libc::EINVAL,
                format_args!("rdma_notify: event {event} is not IBV_EVENT_COMM_EST"),
            ));
        }
        id.id.notify_established().map_err(refused("rdma_notify"))
    }))
}
