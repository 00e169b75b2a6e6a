//! The active side, and the end of connections.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use ferroce_cm::{IpHeader, Kind, PrivateData, Request};
use ferroce_control::{CmAnswer, CmCall};

use super::attributes::to_error;
use super::datagram;
use super::devices::MAX_DEPTH;
use super::event::{complete, establish};
use super::id::{Id, Inner, State, id_of};
use super::line::Line;
use super::path::Path;
use super::{Outcome, finish};
use super::{no_address, no_connection, no_destination, no_device, no_port, unexpected};
use crate::errno::refuse;
use crate::ffi::*;

/// What a program says when it connects or accepts.
pub(crate) struct Wishes {
    pub(crate) private_data: Vec<u8>,
    pub(crate) flow_control: bool,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) qpn: u32,
    pub(crate) srq: bool,
    /// None: as many as there are.
    pub(crate) responder_resources: Option<u8>,
    pub(crate) initiator_depth: Option<u8>,
}

impl Wishes {
    /// # Safety
    /// NULL, or the program's structure, with as much private data as it says.
    pub(crate) unsafe fn read(id: &Id, param: *const rdma_conn_param) -> Outcome<Wishes> {
        // SAFETY: by contract; the object is the program's.
        let (param, qp) = unsafe { (param.as_ref(), (*id.c()).qp.as_ref()) };
        if id.space == ferroce_cm::PortSpace::Tcp && qp.is_none() && param.is_none() {
            return Err(refuse(
                libc::EINVAL,
                "rdma_connect, rdma_accept: without a queue pair the parameters must not be NULL",
            ));
        }
        let mut wishes = Wishes {
            private_data: id.inner().connect_data.clone(),
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            qpn: 0,
            srq: false,
            responder_resources: None,
            initiator_depth: None,
        };
        if let Some(param) = param {
            wishes.flow_control = param.flow_control != 0;
            wishes.retry_count = param.retry_count.min(7);
            wishes.rnr_retry_count = param.rnr_retry_count.min(7);
            wishes.qpn = param.qp_num & 0xff_ffff;
            wishes.srq = param.srq != 0;
            wishes.responder_resources = depth(id, param.responder_resources)?;
            wishes.initiator_depth = depth(id, param.initiator_depth)?;
            // SAFETY: by contract.
            let data = unsafe { bytes(param.private_data, param.private_data_len) };
            wishes.private_data.extend_from_slice(data);
        }
        if let Some(qp) = qp {
            wishes.qpn = qp.qp_num;
            wishes.srq = !qp.srq.is_null();
        }
        Ok(wishes)
    }
}

/// A wish for READs and atomics: 255 is as many as there are.
fn depth(id: &Id, wish: u8) -> Outcome<Option<u8>> {
    match wish {
        RDMA_MAX_RESP_RES => Ok(None),
        wish if wish > MAX_DEPTH && id.space == ferroce_cm::PortSpace::Tcp => Err(refuse(
            libc::EINVAL,
            format_args!("{wish} outstanding READs and atomics: at most {MAX_DEPTH}"),
        )),
        wish => Ok(Some(wish)),
    }
}

/// # Safety
/// NULL, or `len` bytes.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { core::slice::from_raw_parts(data.cast(), len.into()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: the program's id and structure.
    finish(unsafe {
        id_of(id).and_then(|id| {
            let wishes = Wishes::read(id, conn_param)?;
            connect(id, &wishes)
        })
    })
}

fn connect(id: &Arc<Id>, wishes: &Wishes) -> Outcome {
    id.advance(State::RouteResolved, State::Connect)?;
    let asked = match id.datagrams() {
        true => datagram::ask(id, wishes),
        false => ask(id, wishes),
    };
    if asked.is_err() {
        id.inner().state = State::RouteResolved;
        return asked;
    }
    id.inner().connect_data.clear();
    complete(id)
}

fn ask(id: &Arc<Id>, wishes: &Wishes) -> Outcome {
    let (link, request) = {
        let mut inner = id.inner();
        inner.responder_resources = wishes.responder_resources.unwrap_or(MAX_DEPTH);
        inner.initiator_depth = wishes.initiator_depth.unwrap_or(MAX_DEPTH);
        let link = inner.device.ok_or_else(no_device)?.index;
        (link, request(id, &inner, wishes)?)
    };
    let call = CmCall::Connect {
        link,
        request: Box::new(request),
    };
    match Line::get()?.call(call, Some(id))? {
        CmAnswer::Connection { .. } => Ok(()),
        _ => Err(unexpected()),
    }
}

fn request(id: &Id, inner: &Inner, wishes: &Wishes) -> Outcome<Request> {
    let address = inner.address.ok_or_else(no_address)?;
    let port = inner.port.ok_or_else(no_port)?;
    let (_, to) = port.destination.ok_or_else(no_destination)?;
    let path = Path::of(inner)?;
    let mut private_data =
        PrivateData::at(IpHeader::LEN, &wishes.private_data).map_err(|_too_long| {
            refuse(
                libc::EINVAL,
                "the private data is longer than the message has room for",
            )
        })?;
    header(inner)?.emit(&mut private_data.0);
    let kind = match id.qp_type {
        IBV_QPT_UC => Kind::Uc,
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Kind::Xrc,
        _ => Kind::Rc,
    };
    Ok(Request {
        kind,
        srq: wishes.srq,
        flow_control: wishes.flow_control,
        responder_resources: inner.responder_resources,
        initiator_depth: inner.initiator_depth,
        retry_count: wishes.retry_count,
        rnr_retry_count: wishes.rnr_retry_count,
        path_mtu: path.mtu,
        packet_life_time: path.life_time,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        ece: inner.local_ece,
        private_data,
        ..Request::new(address, id.space.service_id(to), wishes.qpn)
    })
}

/// Who asks whom, in terms of IP.
pub(crate) fn header(inner: &Inner) -> Outcome<IpHeader> {
    let address = inner.address.ok_or_else(no_address)?;
    let port = inner.port.ok_or_else(no_port)?;
    Ok(IpHeader {
        source_port: port.number,
        source: address.local,
        destination: address.remote,
    })
}

/// For programs that move their queue pair themselves, after `CONNECT_RESPONSE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's id.
    finish(unsafe {
        id_of(id).and_then(|shared| {
            if !(*id).qp.is_null() {
                return Err(refuse(
                    libc::EINVAL,
                    "rdma_establish: the id has a queue pair, which rdma_accept establishes",
                ));
            }
            let conn = shared.inner().conn.ok_or_else(no_connection)?;
            establish(shared, conn)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's id.
    finish(unsafe { id_of(id).and_then(disconnect) })
}

fn disconnect(id: &Arc<Id>) -> Outcome {
    if id.inner().device.is_none() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_disconnect: the id has no device, its address is not resolved",
        ));
    }
    to_error(id)?;
    let call = || {
        let conn = id.inner().conn.ok_or_else(no_connection)?;
        Ok(CmCall::Disconnect { conn })
    };
    call()?;
    // In whatever state: there is nothing to end, or it ends.
    match Line::get()?.insist(call, None) {
        Err(errno @ libc::ETIMEDOUT) => return Err(errno),
        Err(errno) => tracing::debug!("nothing to disconnect: errno {errno}"),
        Ok(_) => {}
    }
    complete(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    // SAFETY: the program's id.
    finish(unsafe {
        id_of(id).and_then(|id| {
            let conn = id.inner().conn.ok_or_else(no_connection)?;
            if event != IBV_EVENT_COMM_EST {
                return Err(refuse(
                    libc::EINVAL,
                    format_args!("rdma_notify: event {event} is not IBV_EVENT_COMM_EST"),
                ));
            }
            if id.inner().snapshot.is_some() {
                return Err(refuse(
                    libc::EISCONN,
                    "rdma_notify: the connection is established",
                ));
            }
            Line::get()?.perform(CmCall::CommunicationEstablished { conn })
        })
    })
}
