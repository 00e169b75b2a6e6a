//! Requests at a listener: each gets a new id.

use core::net::SocketAddr;
use std::sync::Arc;

use ferroce_cm::ports::Host;
use ferroce_cm::{Address, Incoming, IpHeader, PortSpace, QpParameters, SidrIncoming};
use ferroce_control::{CmCall, CmEvent, CmId};

use crate::channel::ChannelEvent;
use crate::client::ControlClient;
use crate::devices;
use crate::error::Error;
use crate::id::{Id, Port, Shared, State};
use crate::path::Path;

/// Queues a request at a listener, after its device was opened: the thread that takes the
/// event must not wait for ferroced. The device is open already, except for a link that was
/// added after the call of listen.
pub(crate) fn queue(listener: &Arc<Shared>, event: Box<CmEvent>, generation: u64) {
    let link = event.link;
    if devices::opened(link).is_ok() {
        return listener.post(ChannelEvent::Cm(event, generation));
    }
    let id = Arc::clone(listener);
    let opening = devices::open_in_thread(link, move |opened| {
        if let Err(error) = opened {
            // Taking the event refuses the request.
            tracing::warn!("the link of a request cannot be opened: {error}");
        }
        if let Some(client) = ControlClient::current() {
            // While the table is locked, the id is not destroyed.
            let handles = client.handles();
            if handles.contains(&id) {
                id.post(ChannelEvent::Cm(event, generation));
            }
        }
    });
    if let Err(error) = opening {
        tracing::warn!("no thread to open the link of a request: {error}");
    }
}

/// Returns true if ferroced was restarted since it sent a request, or if the request was sent
/// to the parent of this process: the connection manager does not know the request any more.
pub(crate) fn is_stale(generation: u64) -> bool {
    let client = ControlClient::current();
    client.is_none_or(|client| client.handles().generation() != generation)
}

/// Creates the id of a connection request. Returns None if this process cannot serve it.
pub(crate) fn connection(
    listener: &Id,
    link: u32,
    incoming: &Incoming,
    qp: Option<QpParameters>,
) -> Option<Id> {
    let conn = CmId {
        link,
        id: incoming.conn,
    };
    let peer = Peer {
        link,
        address: incoming.address,
        ip: incoming.ip,
        service_id: incoming.service_id,
    };
    let created = create(listener, &peer, qp.as_ref()).inspect(|id| {
        let mut inner = id.shared().inner();
        inner.conn = Some(conn);
        inner.qp_parameters = qp;
        inner.remote_ece = incoming.ece;
        inner.responder_resources = incoming.responder_resources;
        inner.initiator_depth = incoming.initiator_depth;
    });
    report(created, CmCall::Taken { conn }, CmCall::Destroy { conn })
}

/// Creates the id of a SIDR request. Returns None if this process cannot serve it.
pub(crate) fn datagram(listener: &Id, link: u32, incoming: &SidrIncoming) -> Option<Id> {
    let sidr = CmId {
        link,
        id: incoming.sidr,
    };
    let peer = Peer {
        link,
        address: incoming.address,
        ip: incoming.ip,
        service_id: incoming.service_id,
    };
    let created = create(listener, &peer, None).inspect(|id| {
        id.shared().inner().sidr = Some(sidr);
    });
    report(
        created,
        CmCall::SidrTaken { sidr },
        CmCall::SidrDestroy { sidr },
    )
}

/// Reports to ferroced that the request no longer waits, or that this process refuses it.
/// Does not wait for the answer: the program's event channel may be non-blocking. If
/// ferroced has dropped the request meanwhile, a later call or event shows it.
fn report(created: Result<Id, Error>, taken: CmCall, refused: CmCall) -> Option<Id> {
    let (id, call) = match created {
        Ok(id) => (Some(id), taken),
        Err(error) => {
            tracing::warn!("a request cannot be served: {error}");
            (None, refused)
        }
    };
    if let Some(client) = ControlClient::current() {
        client.return_objects(vec![call], None);
    }
    id
}

/// The sender of a request.
struct Peer {
    link: u32,
    address: Address,
    ip: Option<IpHeader>,
    service_id: u64,
}

fn create(listener: &Id, peer: &Peer, qp: Option<&QpParameters>) -> Result<Id, Error> {
    let device = devices::opened(peer.link)?;
    let port = PortSpace::of_service(peer.service_id).map_or(0, |(_, port)| port);
    let id = Id::detached(
        listener.channel(),
        listener.port_space(),
        listener.qp_type(),
    );
    let (local, remote) = match peer.ip {
        Some(ip) => (
            SocketAddr::new(ip.destination, port),
            SocketAddr::new(ip.source, ip.source_port),
        ),
        None => (
            SocketAddr::new(peer.address.local, port),
            SocketAddr::new(peer.address.remote, 0),
        ),
    };
    {
        let options = listener.shared().inner().options;
        let mut inner = id.shared().inner();
        inner.state = State::Connect;
        inner.address = Some(peer.address);
        inner.options = options;
        inner.port = Some(Port {
            handle: 0,
            generation: 0,
            number: port,
            source: Host::new(local.ip()),
            destination: Some((Host::new(remote.ip()), remote.port())),
            borrowed: true,
        });
        inner.device = Some(device);
        inner.local = Some(local);
        inner.peer = Some(remote);
        let path = Path::of(&inner)?;
        inner.path = Some(match qp {
            Some(qp) => path.with_parameters(qp),
            None => path,
        });
    }
    ControlClient::get()?.handles().add(id.shared());
    Ok(id)
}
