//! The active side, and the end of connections.

use std::sync::Arc;

use ferroce_cm::{IpHeader, Kind, PortSpace, PrivateData, Request};
use ferroce_control::{CmAnswer, CmCall};
use ferroce_device::transport::QpType;

use crate::client::ControlClient;
use crate::devices::MAX_DEPTH;
use crate::error::{
    Error, ErrorKind, no_address, no_connection, no_destination, no_device, no_port,
    private_data_too_long, unexpected_answer,
};
use crate::id::{Id, Inner, Shared, State};
use crate::path::Path;
use crate::{datagram, iwarp, qp};

/// Parameters of a connection, for [`Id::connect`] and [`Id::accept`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnParams {
    /// Private data for the peer: up to 56 bytes with a request, 196 with a reply.
    pub private_data: Vec<u8>,
    /// READs and atomics that our responder serves; None for as many as possible.
    pub responder_resources: Option<u8>,
    /// READs and atomics that our requester may have outstanding; None for as many as
    /// possible.
    pub initiator_depth: Option<u8>,
    /// True for end-to-end flow control.
    pub flow_control: bool,
    /// Retries without an acknowledgement, up to 7. Ignored by `accept`.
    pub retry_count: u8,
    /// Retries while the peer has no receive posted, up to 7; 7 stands for no limit.
    pub rnr_retry_count: u8,
    /// Number of the queue pair; ignored if the id has one.
    pub qpn: u32,
    /// True if the queue pair uses a shared receive queue.
    pub srq: bool,
}

impl Default for ConnParams {
    /// Returns the parameters that librdmacm uses if a program passes none.
    fn default() -> ConnParams {
        ConnParams {
            private_data: Vec::new(),
            responder_resources: None,
            initiator_depth: None,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            qpn: 0,
            srq: false,
        }
    }
}

impl ConnParams {
    /// Returns default parameters with this private data.
    pub fn with_private_data(data: &[u8]) -> ConnParams {
        ConnParams {
            private_data: data.to_vec(),
            ..ConnParams::default()
        }
    }

    /// Checks the depths, and completes the parameters with the queue pair of the id.
    pub(crate) fn complete(&self, id: &Shared) -> Result<ConnParams, Error> {
        for depth in [self.responder_resources, self.initiator_depth] {
            if let Some(depth) = depth
                && depth > MAX_DEPTH
                && id.space == PortSpace::Tcp
            {
                return Err(Error::invalid(format!(
                    "{depth} outstanding READs and atomics: at most {MAX_DEPTH}"
                )));
            }
        }
        let mut params = self.clone();
        params.retry_count = params.retry_count.min(7);
        params.rnr_retry_count = params.rnr_retry_count.min(7);
        params.qpn &= 0xff_ffff;
        if let Some(qp) = id.qp() {
            params.qpn = qp.qpn();
        }
        Ok(params)
    }
}

impl Id {
    /// Sends a connection request to the resolved peer; for datagrams, a SIDR request. An
    /// event reports the answer.
    pub fn connect(&self, params: &ConnParams) -> Result<(), Error> {
        let id = self.usable()?;
        let params = params.complete(id)?;
        id.advance(State::RouteResolved, State::Connect)?;
        let sent = match id.is_datagram() {
            _ if id.is_iwarp() => connect_iwarp(id, &params),
            true => datagram::send_request(id, &params),
            false => send_request(id, &params),
        };
        if sent.is_err() {
            id.inner().state = State::RouteResolved;
        }
        sent
    }

    /// Sends a connection request as [`Id::connect`] does, and does not wait until ferroced has
    /// taken it, for threads that must not block. A refusal becomes the event
    /// [`ConnectError`](crate::EventKind::ConnectError).
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionReset`] if ferroced has ended.
    pub fn start_connect(&self, params: &ConnParams) -> Result<(), Error> {
        let id = self.usable()?;
        let params = params.complete(id)?;
        id.advance(State::RouteResolved, State::Connect)?;
        let started = if id.is_iwarp() {
            connect_iwarp(id, &params)
        } else {
            connect_call(id, &params).and_then(|call| {
                let started = ControlClient::get()?.start(call, id);
                started.then_some(()).ok_or_else(|| {
                    Error::new(
                        ErrorKind::ConnectionReset,
                        "there is no connection to ferroced",
                    )
                })
            })
        };
        if started.is_err() {
            id.inner().state = State::RouteResolved;
        }
        started
    }

    /// Reports that the queue pair is ready, for programs that move it themselves after
    /// [`ConnectResponse`](crate::EventKind::ConnectResponse).
    pub fn establish(&self) -> Result<(), Error> {
        let id = self.usable()?;
        if id.is_iwarp() {
            return Err(not_on_iwarp("rdma_establish"));
        }
        let conn = id.inner().conn.ok_or_else(no_connection)?;
        match ControlClient::get()?.call(CmCall::Establish { conn }, None)? {
            CmAnswer::Established { snapshot } => {
                let mut inner = id.inner();
                inner.snapshot = Some(*snapshot);
                inner.established = true;
                Ok(())
            }
            _ => Err(unexpected_answer()),
        }
    }

    /// Disconnects, or agrees to the disconnect of the peer. Moves the queue pair to ERR.
    pub fn disconnect(&self) -> Result<(), Error> {
        let id = self.usable()?;
        if id.inner().device.is_none() {
            return Err(no_device());
        }
        if id.is_iwarp() {
            return iwarp::disconnect(id);
        }
        qp::to_error(id)?;
        let call = |_generation| {
            let conn = id.inner().conn.ok_or_else(no_connection)?;
            Ok(CmCall::Disconnect { conn })
        };
        id.inner().conn.ok_or_else(no_connection)?;
        match ControlClient::get()?.call_until_answered(call, None) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Err(error),
            // As in librdmacm: the connection has ended already, or is not established yet.
            Err(error) => {
                tracing::debug!("nothing to disconnect: {error}");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Reports that data has arrived before the peer's RTU, which may be lost.
    pub fn notify_established(&self) -> Result<(), Error> {
        let id = self.usable()?;
        if id.is_iwarp() {
            return Err(not_on_iwarp("rdma_notify"));
        }
        let (conn, established) = {
            let inner = id.inner();
            (inner.conn.ok_or_else(no_connection)?, inner.established)
        };
        if established {
            return Err(Error::new(
                ErrorKind::Connected,
                "the connection is established",
            ));
        }
        ControlClient::get()?.perform(CmCall::CommunicationEstablished { conn })
    }
}

fn connect_iwarp(id: &Arc<Shared>, params: &ConnParams) -> Result<(), Error> {
    match id.qp_type {
        QpType::Rc => iwarp::connect(id, params),
        other => Err(Error::new(
            ErrorKind::NotSupported,
            format!("{other:?} connections: links of type siw have RC only; use type rxe"),
        )),
    }
}

fn not_on_iwarp(call: &str) -> Error {
    Error::invalid(format!(
        "{call}: connections of links of type siw have no such step"
    ))
}

fn connect_call(id: &Arc<Shared>, params: &ConnParams) -> Result<CmCall, Error> {
    let (link, request) = {
        let mut inner = id.inner();
        inner.responder_resources = params.responder_resources.unwrap_or(MAX_DEPTH);
        inner.initiator_depth = params.initiator_depth.unwrap_or(MAX_DEPTH);
        let link = inner.device.as_ref().ok_or_else(no_device)?.index();
        (link, request(id, &inner, params)?)
    };
    Ok(CmCall::Connect {
        link,
        request: Box::new(request),
    })
}

fn send_request(id: &Arc<Shared>, params: &ConnParams) -> Result<(), Error> {
    let call = connect_call(id, params)?;
    match ControlClient::get()?.call(call, Some(id))? {
        CmAnswer::Connection { .. } => Ok(()),
        _ => Err(unexpected_answer()),
    }
}

fn request(id: &Shared, inner: &Inner, params: &ConnParams) -> Result<Request, Error> {
    let address = inner.address.ok_or_else(no_address)?;
    let port = inner.port.ok_or_else(no_port)?;
    let (_, to) = port.destination.ok_or_else(no_destination)?;
    let path = Path::of(inner)?;
    let mut private_data = PrivateData::at(IpHeader::LEN, &params.private_data)
        .map_err(|_too_long| private_data_too_long())?;
    ip_header(inner)?.emit(&mut private_data.0);
    let kind = match id.qp_type {
        QpType::Uc => Kind::Uc,
        QpType::XrcInitiator | QpType::XrcTarget => Kind::Xrc,
        _ => Kind::Rc,
    };
    Ok(Request {
        kind,
        srq: params.srq,
        flow_control: params.flow_control,
        responder_resources: inner.responder_resources,
        initiator_depth: inner.initiator_depth,
        retry_count: params.retry_count,
        rnr_retry_count: params.rnr_retry_count,
        path_mtu: path.mtu,
        packet_life_time: path.life_time,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        ece: inner.local_ece,
        private_data,
        ..Request::new(address, id.space.service_id(to), params.qpn)
    })
}

/// Returns the rdma_cm header, which carries the IP addresses of a request.
pub(crate) fn ip_header(inner: &Inner) -> Result<IpHeader, Error> {
    let address = inner.address.ok_or_else(no_address)?;
    let port = inner.port.ok_or_else(no_port)?;
    Ok(IpHeader {
        source_port: port.number,
        source: address.local,
        destination: address.remote,
    })
}
