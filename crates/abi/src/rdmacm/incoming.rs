//! Somebody asks a listener: a new id for what may come of it.

use core::net::SocketAddr;
use std::sync::Arc;

use ferroce_cm::ports::Host;
use ferroce_cm::{Address, Incoming, IpHeader, PortSpace, QpParameters, SidrIncoming};
use ferroce_control::{CmCall, CmId};

use super::address::with_port;
use super::devices;
use super::id::{Id, Port, State, hand_out, migrate};
use super::line::Line;
use super::{Outcome, path, rdma_destroy_id};
use crate::ffi::rdma_cm_id;

/// An id for a request for a connection; none if it cannot be served.
pub(crate) fn connection(
    listener: &Arc<Id>,
    link: u32,
    incoming: &Incoming,
    qp: Option<QpParameters>,
) -> Option<*mut rdma_cm_id> {
    let conn = CmId {
        link,
        id: incoming.conn,
    };
    let line = Line::get().ok()?;
    let made = derive(
        listener,
        link,
        incoming.address,
        incoming.ip,
        incoming.service_id,
    )
    .and_then(|id| {
        {
            let mut inner = id.inner();
            inner.conn = Some(conn);
            inner.qp = qp;
            inner.remote_ece = incoming.ece;
            inner.responder_resources = incoming.responder_resources;
            inner.initiator_depth = incoming.initiator_depth;
        }
        finish(listener, &id, qp.as_ref())
    });
    answer(line, made, CmCall::Taken { conn }, CmCall::Destroy { conn })
}

/// An id for a question about datagrams; none if it cannot be served.
pub(crate) fn question(
    listener: &Arc<Id>,
    link: u32,
    incoming: &SidrIncoming,
) -> Option<*mut rdma_cm_id> {
    let question = CmId {
        link,
        id: incoming.sidr,
    };
    let line = Line::get().ok()?;
    let made = derive(
        listener,
        link,
        incoming.address,
        incoming.ip,
        incoming.service_id,
    )
    .and_then(|id| {
        id.inner().question = Some(question);
        finish(listener, &id, None)
    });
    answer(
        line,
        made,
        CmCall::SidrTaken { sidr: question },
        CmCall::SidrDestroy { sidr: question },
    )
}

/// Tells ferroced what became of it: it no longer waits, or it is not wanted. Whether
/// ferroced still knows it shows later.
fn answer(
    line: &Line,
    made: Outcome<*mut rdma_cm_id>,
    taken: CmCall,
    unwanted: CmCall,
) -> Option<*mut rdma_cm_id> {
    let (id, call) = match made {
        Ok(id) => (Some(id), taken),
        Err(errno) => {
            tracing::warn!("somebody who asks cannot be served: errno {errno}");
            (None, unwanted)
        }
    };
    let _known = line.perform(call);
    id
}

fn derive(
    listener: &Arc<Id>,
    link: u32,
    address: Address,
    ip: Option<IpHeader>,
    service_id: u64,
) -> Outcome<Arc<Id>> {
    let device = devices::by_index(link)?;
    let port = PortSpace::of_service(service_id).map_or(0, |(_, port)| port);
    let id = Id::new(listener.channel(), listener.space, listener.qp_type, false);
    // SAFETY: the listener is the program's, and its threads call us.
    let (channel, context) = unsafe { ((*listener.c()).channel, (*listener.c()).context) };
    hand_out(&id, channel, context);
    let (source, destination) = match ip {
        Some(ip) => (
            SocketAddr::new(ip.destination, port),
            SocketAddr::new(ip.source, ip.source_port),
        ),
        None => (
            SocketAddr::new(address.local, port),
            SocketAddr::new(address.remote, 0),
        ),
    };
    {
        let options = listener.inner().options;
        let mut inner = id.inner();
        inner.state = State::Connect;
        inner.address = Some(address);
        inner.options = options;
        inner.port = Some(Port {
            name: 0,
            number: port,
            source: Host::new(source.ip()),
            destination: Some((Host::new(destination.ip()), destination.port())),
            borrowed: true,
        });
    }
    id.set_device(device);
    id.set_addresses(
        with_port(Host::new(source.ip()), source.port()),
        Some(destination),
    );
    Ok(id)
}

/// The last steps: a path, and a channel of its own if the listener has one.
fn finish(listener: &Arc<Id>, id: &Arc<Id>, qp: Option<&QpParameters>) -> Outcome<*mut rdma_cm_id> {
    path::set(id, qp)?;
    Line::get()?.who().add(id);
    if listener.inner().synchronous {
        // SAFETY: an object that the program has not seen yet.
        if let Err(errno) = unsafe { migrate(id.c(), core::ptr::null_mut()) } {
            // SAFETY: as above.
            unsafe { rdma_destroy_id(id.c()) };
            return Err(errno);
        }
    }
    Ok(id.c())
}
