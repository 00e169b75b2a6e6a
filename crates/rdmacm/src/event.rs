//! Events as programs get them, and the work that is done when they do.
//!
//! As in librdmacm, the thread that takes an event does its work: until then a queue pair has
//! not moved, and a connection request has no id. This work never waits for ferroced, so that
//! a program with a non-blocking channel does not block.

use std::sync::Arc;

use ferroce_cm::message::SidrStatus;
use ferroce_cm::{Closed, ConnId, Event as CmEventKind, Reason};
use ferroce_control::{CmCall, CmEvent, CmId};
use ferroce_device::AhAttr;

use crate::channel::{ChannelEvent, Queued};
use crate::client::ControlClient;
use crate::error::{Error, ErrorKind};
use crate::id::{Id, Shared};
use crate::iwarp::IwarpEvent;
use crate::qp::{to_error, to_rts};
use crate::{datagram, incoming, iwarp};

/// An event of an id.
#[derive(Debug)]
pub struct Event {
    /// The id that the event concerns; for a request, the listener.
    pub id: Id,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The kind of an [`Event`]. Numbers called `errno` are positive.
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The address of the peer is resolved.
    AddressResolved,
    /// The address of the peer cannot be resolved.
    AddressError {
        /// The reason.
        errno: i32,
    },
    /// The route to the peer is resolved.
    RouteResolved,
    /// The route to the peer cannot be resolved.
    RouteError {
        /// The reason.
        errno: i32,
    },
    /// A peer requests a connection. Dropping `id` rejects the request.
    ConnectRequest {
        /// The new id.
        id: Id,
        /// The request.
        params: PeerParams,
    },
    /// A peer requests the queue pair for its datagrams.
    DatagramRequest {
        /// The new id.
        id: Id,
        /// Private data of the peer.
        private_data: Vec<u8>,
    },
    /// The peer has accepted, and the id has no queue pair: call [`Id::establish`] when the
    /// program has moved its own.
    ConnectResponse(PeerParams),
    /// The connection failed on this side.
    ConnectError {
        /// The reason.
        errno: i32,
        /// The peer's reply, if there was one.
        params: Option<PeerParams>,
    },
    /// The peer does not answer, or does not serve datagrams.
    Unreachable(Unreachable),
    /// The peer has rejected the request. The queue pair is in ERR.
    Rejected {
        /// The reason.
        reason: Reason,
        /// Private data of the peer.
        private_data: Vec<u8>,
    },
    /// The peer of an iWARP link has rejected the request, or no process listens. The queue
    /// pair is in ERR.
    Refused {
        /// `ECONNRESET` or `ECONNREFUSED`.
        errno: i32,
        /// Private data of the peer.
        private_data: Vec<u8>,
    },
    /// The connection is established. On the active side the peer's parameters come with it.
    Established(Option<PeerParams>),
    /// The peer's queue pair for datagrams is known.
    DatagramsEstablished {
        /// The destination of datagrams.
        destination: Datagrams,
        /// Private data of the peer.
        private_data: Vec<u8>,
    },
    /// The connection has ended.
    Disconnected {
        /// 0, or the reason if the peer did not answer or ferroced was restarted.
        errno: i32,
    },
    /// The link of the id was removed.
    DeviceRemoved,
    /// The id has joined a multicast group.
    MulticastJoined {
        /// The program's number for the group.
        context: u64,
        /// The destination of datagrams to the group.
        destination: Datagrams,
    },
    /// The id cannot join a multicast group.
    MulticastError {
        /// The program's number for the group.
        context: u64,
        /// The destination of datagrams to the group.
        destination: Datagrams,
        /// The reason.
        errno: i32,
    },
    /// The queue pair of an ended connection may be used again.
    TimewaitExit,
    /// An event of [`Id::post_user_event`].
    User {
        /// The program's code.
        code: u32,
        /// The program's status.
        status: i32,
        /// The program's argument.
        argument: u64,
    },
}

/// The reason why a peer is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreachable {
    /// The peer has not answered, or ferroced was restarted.
    Errno(i32),
    /// The status of the peer's SIDR reply.
    Sidr(u8),
}

/// Parameters of a peer's connection request or reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerParams {
    /// Private data. The field is sent whole: zeros follow the peer's bytes.
    pub private_data: Vec<u8>,
    /// READs and atomics that our responder may have to serve.
    pub responder_resources: u8,
    /// READs and atomics that our requester may have outstanding.
    pub initiator_depth: u8,
    /// True if the peer uses end-to-end flow control.
    pub flow_control: bool,
    /// Retry count that the peer requests.
    pub retry_count: u8,
    /// RNR retry count that the peer requests.
    pub rnr_retry_count: u8,
    /// True if the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Number of the peer's queue pair.
    pub qpn: u32,
}

/// The destination of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagrams {
    /// The address.
    pub ah: AhAttr,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Q_Key of the queue pair.
    pub qkey: u32,
}

/// Does the work of an event. Returns None if the id is gone, or if the program must not see
/// the event.
pub(crate) fn complete(queued: Queued) -> Option<Event> {
    let id = Id::from_shared(&queued.id)?;
    let kind = match queued.event {
        ChannelEvent::Cm(event, generation) => complete_cm(&id, *event, generation)?,
        ChannelEvent::AddressResolved => EventKind::AddressResolved,
        ChannelEvent::AddressError(errno) => EventKind::AddressError { errno },
        ChannelEvent::RouteResolved => EventKind::RouteResolved,
        ChannelEvent::RouteError(errno) => EventKind::RouteError { errno },
        // The response, which was taken before, has reported the failure.
        ChannelEvent::ConnectError(_) if id.shared().inner().failed => return None,
        ChannelEvent::ConnectError(errno) => EventKind::ConnectError {
            errno,
            params: None,
        },
        ChannelEvent::Unreachable(errno) => EventKind::Unreachable(Unreachable::Errno(errno)),
        ChannelEvent::Disconnected(errno) => EventKind::Disconnected { errno },
        ChannelEvent::EstablishFailed(errno) => {
            let _in_any_case = to_error(id.shared());
            EventKind::Disconnected { errno }
        }
        ChannelEvent::DeviceRemoved => EventKind::DeviceRemoved,
        ChannelEvent::Iwarp(event) => complete_iwarp(&id, event)?,
        ChannelEvent::Joined(group) => {
            let (context, destination) = (group.context, group.destination());
            match group.attach(id.shared()) {
                Ok(()) => EventKind::MulticastJoined {
                    context,
                    destination,
                },
                Err(error) => EventKind::MulticastError {
                    context,
                    destination,
                    errno: error.errno(),
                },
            }
        }
        ChannelEvent::User {
            code,
            status,
            argument,
        } => EventKind::User {
            code,
            status,
            argument,
        },
    };
    Some(Event { id, kind })
}

fn complete_iwarp(id: &Id, event: IwarpEvent) -> Option<EventKind> {
    Some(match event {
        IwarpEvent::Request(incoming) => match iwarp::create_id(id, incoming) {
            Ok((id, params)) => EventKind::ConnectRequest { id, params },
            Err(error) => {
                tracing::warn!("a request cannot be served: {error}");
                return None;
            }
        },
        IwarpEvent::Established(params) => EventKind::Established(params),
        IwarpEvent::Refused {
            errno,
            private_data,
        } => {
            // Posted work requests complete with a flush error.
            let _no_queue_pair = to_error(id.shared());
            EventKind::Refused {
                errno,
                private_data,
            }
        }
        IwarpEvent::Unreachable(errno) => EventKind::Unreachable(Unreachable::Errno(errno)),
        IwarpEvent::ConnectError(errno) => EventKind::ConnectError {
            errno,
            params: None,
        },
        IwarpEvent::Disconnected => EventKind::Disconnected { errno: 0 },
    })
}

fn complete_cm(listener: &Id, event: CmEvent, generation: u64) -> Option<EventKind> {
    let id = listener.shared();
    let link = event.link;
    if matches!(
        event.event,
        CmEventKind::Request(_) | CmEventKind::SidrRequest(_)
    ) && incoming::is_stale(generation)
    {
        tracing::debug!("a request is dropped: ferroced, which sent it, has ended");
        return None;
    }
    Some(match event.event {
        CmEventKind::Request(request) => EventKind::ConnectRequest {
            id: incoming::connection(listener, link, &request, event.qp)?,
            params: PeerParams {
                private_data: request.user_data().to_vec(),
                responder_resources: request.responder_resources,
                initiator_depth: request.initiator_depth,
                flow_control: request.flow_control,
                retry_count: request.retry_count,
                rnr_retry_count: request.rnr_retry_count,
                srq: request.srq,
                qpn: request.remote_qpn,
            },
        },
        CmEventKind::SidrRequest(request) => EventKind::DatagramRequest {
            id: incoming::datagram(listener, link, &request)?,
            private_data: request.user_data().to_vec(),
        },
        CmEventKind::Response {
            conn,
            responder_resources,
            initiator_depth,
            flow_control,
            srq,
            ece,
            private_data,
        } => {
            {
                let mut inner = id.inner();
                inner.qp_parameters = event.qp;
                inner.remote_ece = ece;
            }
            let qp = event.qp.unwrap_or_default();
            let params = PeerParams {
                private_data: private_data.to_vec(),
                responder_resources,
                initiator_depth,
                flow_control,
                retry_count: 0,
                rnr_retry_count: qp.rnr_retry_count,
                srq,
                qpn: qp.remote_qpn,
            };
            respond(id, CmId { link, id: conn }, params)
        }
        CmEventKind::Established { .. } => EventKind::Established(None),
        CmEventKind::Rejected {
            reason,
            private_data,
            ..
        } => {
            if id.inner().failed {
                return None;
            }
            // Posted work requests complete with a flush error.
            let _no_queue_pair = to_error(id);
            EventKind::Rejected {
                reason,
                private_data: private_data.to_vec(),
            }
        }
        CmEventKind::Unreachable { .. } | CmEventKind::SidrUnreachable { .. } => {
            EventKind::Unreachable(Unreachable::Errno(libc::ETIMEDOUT))
        }
        CmEventKind::Disconnected { by, .. } => {
            if id.inner().failed {
                return None;
            }
            let errno = match by {
                Closed::TimedOut => libc::ETIMEDOUT,
                _ => 0,
            };
            EventKind::Disconnected { errno }
        }
        CmEventKind::TimewaitExit { .. } => EventKind::TimewaitExit,
        CmEventKind::SidrReply {
            status: SidrStatus::VALID,
            qpn,
            qkey,
            ece,
            private_data,
            ..
        } => {
            id.inner().remote_ece = ece;
            EventKind::DatagramsEstablished {
                destination: Datagrams {
                    ah: datagram::peer_address(id).unwrap_or_default(),
                    qpn,
                    qkey,
                },
                private_data: private_data.to_vec(),
            }
        }
        CmEventKind::SidrReply { status, .. } => {
            EventKind::Unreachable(Unreachable::Sidr(status.0))
        }
    })
}

/// Completes an accepted request: moves the queue pair to RTS and has ferroced send the RTU.
/// A program that moves its queue pair itself calls [`Id::establish`] instead.
fn respond(id: &Arc<Shared>, conn: CmId<ConnId>, params: PeerParams) -> EventKind {
    if id.qp().is_none() {
        return EventKind::ConnectResponse(params);
    }
    match to_rts(id, None).and_then(|()| send_rtu(id, conn)) {
        Ok(()) => EventKind::Established(Some(params)),
        Err(error) => {
            let _in_any_case = to_error(id);
            id.inner().failed = true;
            EventKind::ConnectError {
                errno: error.errno(),
                params: Some(params),
            }
        }
    }
}

/// Has ferroced send the RTU, without waiting for its answer. The answer brings the record of
/// the connection; a refusal becomes an event.
fn send_rtu(id: &Arc<Shared>, conn: CmId<ConnId>) -> Result<(), Error> {
    {
        let mut inner = id.inner();
        if inner.closed {
            return Err(Error::invalid(
                "the peer has ended the connection before it was established",
            ));
        }
        if inner.ended || inner.conn != Some(conn) {
            return Err(connection_lost());
        }
        inner.established = true;
    }
    if ControlClient::get()?.notify(CmCall::Establish { conn }, id) {
        return Ok(());
    }
    let mut inner = id.inner();
    inner.established = false;
    inner.ended = true;
    Err(connection_lost())
}

fn connection_lost() -> Error {
    Error::new(
        ErrorKind::ConnectionReset,
        "ferroced has ended, and the connection request with it",
    )
}
