//! `rdma_accept`, `rdma_reject` and `rdma_get_request`.

use core::ffi::{c_int, c_void};

use ferroce_device::transport::QpType;
use ferroce_rdmacm::Reason;

use super::connect::{bytes, conn_params};
use super::event::{complete, next_request};
use super::id::{IdObject, id_of, id_with_qp, object_of};
use super::{Outcome, finish, last_errno, rdma_create_qp, refused};
use crate::errno::refuse;
use crate::ffi::*;
use crate::provoke::provoke;
use crate::unused;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    provoke!("rdma_accept" => minus_one);
    finish(id_with_qp(id).and_then(|id| {
        // SAFETY: the program passes NULL or a whole structure.
        let params = unsafe { conn_params(&id, "rdma_accept", conn_param) }?;
        let accepted = id.id.accept(&params);
        id.update_qp_state();
        accepted.map_err(refused("rdma_accept"))?;
        if id.id.qp_type() == QpType::Ud {
            // No event follows.
            unused::connects();
            // A synchronous id is done with its request.
            let synchronous = id.extra().synchronous;
            if synchronous {
                id.acknowledge_own_event();
            }
            return Ok(());
        }
        complete(&id)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    provoke!("rdma_reject" => minus_one);
    // SAFETY: the program passes NULL or as many bytes as it says.
    let data = unsafe { bytes(private_data, private_data_len) };
    finish(id_of(id).and_then(|id| id.id.reject(data).map_err(refused("rdma_reject"))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    provoke!("rdma_reject" => minus_one);
    // SAFETY: the program passes NULL or as many bytes as it says.
    let data = unsafe { bytes(private_data, private_data_len) };
    finish(id_of(id).and_then(|id| {
        let rejected = id.id.reject_because(Reason::VENDOR_OPTION, data);
        rejected.map_err(refused("rdma_reject_ece"))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    provoke!("rdma_get_request" => minus_one);
    let next = id_of(listen).and_then(|listener| {
        let synchronous = listener.extra().synchronous;
        if !synchronous || id.is_null() {
            return Err(refuse(
                libc::EINVAL,
                "rdma_get_request: needs a listener without an event channel, and a pointer for the id",
            ));
        }
        next_request(&listener, |event| check_request(&listener, event))
    });
    // SAFETY: `id` is not NULL, and points to a pointer of the program.
    finish(next.map(|new| unsafe { *id = new }))
}

/// Fails unless the event is a request. Gives its id a queue pair if the listener has
/// attributes for one.
fn check_request(listener: &IdObject, event: &rdma_cm_event) -> Outcome {
    match (event.event, event.status) {
        (RDMA_CM_EVENT_REJECTED, _) => Err(refuse(
            libc::ECONNREFUSED,
            "rdma_get_request: the request was rejected",
        )),
        (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => create_qp(listener, event.id),
        (_, 0) => Err(refuse(
            libc::EINVAL,
            "rdma_get_request: the event is no connection request",
        )),
        (_, status) => Err(status.abs()),
    }
}

fn create_qp(listener: &IdObject, id: *mut rdma_cm_id) -> Outcome {
    let Some(mut init) = listener.extra().qp_init else {
        return Ok(());
    };
    object_of(id)?;
    let pd = listener.c.pd().get();
    // SAFETY: the id is live, and the program keeps the listener's domain and the objects in
    // the attributes for as long as the listener.
    match unsafe { rdma_create_qp(id, pd, &raw mut init) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}
