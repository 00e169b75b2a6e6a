//! The passive side: yes, no, and the next request.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::Arc;

use ferroce_cm::message::SidrStatus;
use ferroce_cm::{Accept, PrivateData, Reason};
use ferroce_control::CmCall;

use super::attributes::{to_error, to_ready};
use super::connect::{Wishes, bytes};
use super::datagram;
use super::devices::MAX_DEPTH;
use super::event::complete;
use super::id::{Id, State, id_of};
use super::line::Line;
use super::no_connection;
use super::{Outcome, finish, last_errno, rdma_ack_cm_event, rdma_create_qp, rdma_get_cm_event};
use crate::errno::refuse;
use crate::ffi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: the program's id and structure.
    finish(unsafe {
        id_of(id).and_then(|id| {
            let wishes = Wishes::read(id, conn_param)?;
            accept(id, &wishes)
        })
    })
}

fn accept(id: &Arc<Id>, wishes: &Wishes) -> Outcome {
    if id.inner().state != State::Connect {
        return Err(refuse(
            libc::EINVAL,
            "rdma_accept: the id is not that of a connection request",
        ));
    }
    if id.datagrams() {
        datagram::answer(id, SidrStatus::VALID, wishes.qpn, &wishes.private_data)?;
        // There is no event to wait for.
        // SAFETY: the program's object; its threads call us.
        unsafe {
            let c = id.c();
            if id.inner().synchronous && !(*c).event.is_null() {
                rdma_ack_cm_event((*c).event);
                (*c).event = ptr::null_mut();
            }
        }
        return Ok(());
    }
    let private_data = PrivateData::new(&wishes.private_data).map_err(|_too_long| {
        refuse(
            libc::EINVAL,
            "the private data is longer than the message has room for",
        )
    })?;
    let (conn, depths, ece) = {
        let mut inner = id.inner();
        let conn = inner.conn.ok_or_else(no_connection)?;
        let wished = |wish: Option<u8>, asked: u8| wish.unwrap_or(asked.min(MAX_DEPTH));
        inner.responder_resources = wished(wishes.responder_resources, inner.responder_resources);
        inner.initiator_depth = wished(wishes.initiator_depth, inner.initiator_depth);
        let ece = ferroce_cm::Ece {
            vendor_id: inner.remote_ece.vendor_id,
            options: inner.local_ece.options,
        };
        let depths = (inner.responder_resources, inner.initiator_depth);
        if let Some(qp) = &mut inner.qp {
            (qp.responder_resources, qp.initiator_depth) = depths;
        }
        (conn, depths, ece)
    };
    // Data may arrive as soon as the peer has our yes.
    to_ready(id, Some(depths))?;
    let line = Line::get()?;
    line.who().conns.insert(conn, Arc::clone(id));
    let accepted = line.perform(CmCall::Accept {
        conn,
        accept: Box::new(Accept {
            qpn: wishes.qpn,
            srq: wishes.srq,
            flow_control: wishes.flow_control,
            responder_resources: depths.0,
            initiator_depth: depths.1,
            rnr_retry_count: wishes.rnr_retry_count,
            ece,
            private_data,
        }),
    });
    if let Err(errno) = accepted {
        line.who().conns.remove(&conn);
        let _anyway = to_error(id);
        return Err(errno);
    }
    complete(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the program's id and data.
    finish(unsafe {
        id_of(id).and_then(|id| reject(id, Reason::CONSUMER, bytes(private_data, private_data_len)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the program's id and data.
    finish(unsafe {
        id_of(id).and_then(|id| {
            let data = bytes(private_data, private_data_len);
            reject(id, Reason::VENDOR_OPTION, data)
        })
    })
}

fn reject(id: &Arc<Id>, reason: Reason, data: &[u8]) -> Outcome {
    if id.datagrams() {
        return datagram::answer(id, SidrStatus::REJECTED, 0, data);
    }
    let private_data = PrivateData::new(data).map_err(|_too_long| {
        refuse(
            libc::EINVAL,
            "the private data is longer than the message has room for",
        )
    })?;
    let conn = id.inner().conn.ok_or_else(no_connection)?;
    Line::get()?.perform(CmCall::Reject {
        conn,
        reason,
        private_data: Box::new(private_data),
    })?;
    id.inner().ended = true;
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: the program's id, and a place for another.
    finish(unsafe { id_of(listen).and_then(|listener| next(listener, listen, id)) })
}

/// The next request of a synchronous listener, with a queue pair if the listener
/// was told how to make them.
unsafe fn next(listener: &Arc<Id>, listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> Outcome {
    if !listener.inner().synchronous || id.is_null() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_get_request: needs a listener without an event channel, and a place for the id",
        ));
    }
    // SAFETY: by contract these are the program's; the event is ours until it goes.
    unsafe {
        if !(*listen).event.is_null() {
            rdma_ack_cm_event((*listen).event);
            (*listen).event = ptr::null_mut();
        }
        let mut event = ptr::null_mut();
        if rdma_get_cm_event((*listen).channel, &raw mut event) != 0 {
            return Err(last_errno());
        }
        let usable = match ((*event).event, (*event).status) {
            (RDMA_CM_EVENT_REJECTED, _) => Err(refuse(
                libc::ECONNREFUSED,
                "rdma_get_request: the request was rejected",
            )),
            (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => Ok(()),
            (_, 0) => Err(refuse(
                libc::EINVAL,
                "rdma_get_request: the event is no connection request",
            )),
            (_, status) => Err(status.abs()),
        };
        let usable = usable.and_then(|()| give_queue_pair(listener, (*event).id, (*listen).pd));
        if let Err(errno) = usable {
            (*listen).event = event;
            return Err(errno);
        }
        *id = (*event).id;
        (**id).event = event;
        Ok(())
    }
}

unsafe fn give_queue_pair(listener: &Id, id: *mut rdma_cm_id, pd: *mut ibv_pd) -> Outcome {
    let init = listener.inner().qp_init.as_ref().map(|init| init.0.clone());
    let Some(init) = init else { return Ok(()) };
    // SAFETY: these bytes are such a structure.
    let mut init: ibv_qp_init_attr =
        unsafe { init.as_ptr().cast::<ibv_qp_init_attr>().read_unaligned() };
    // SAFETY: a new id, and the program's protection domain.
    match unsafe { rdma_create_qp(id, pd, &raw mut init) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}
