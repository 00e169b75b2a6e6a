//! The passive side: the Request of a peer, and the program's answer.

use core::net::SocketAddr;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use ferroce_cm::Address;
use ferroce_cm::ports::Host;
use ferroce_device::StreamSetup;
use ferroce_device::iwarp::Time;
use ferroce_device::iwarp::mpa::{Answer, Request, Responder, SetupError};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::connection::{Connection, report};
use super::listener::Waiting;
use super::setup::{self, Task, TaskNumber, Watch};
use super::{IwarpEvent, Stage, no_queue_pair, now};
use crate::client::ControlClient;
use crate::connect::ConnParams;
use crate::devices::{LinkDevice, MAX_DEPTH};
use crate::error::{Error, no_connection, no_device};
use crate::event::PeerParams;
use crate::id::{Id, Port, Shared, State};
use crate::path::Path;

/// The tasks of connections that have sent no Request yet, oldest first. A task holds the
/// [`Token`] of its entry.
#[derive(Debug, Default)]
pub(super) struct HalfOpen(VecDeque<(TaskNumber, Weak<()>)>);

/// Time in which the peer of a rejected connection closes it.
const REJECTED_TIMEOUT: Duration = Duration::from_secs(1);

/// Shows that a connection has sent no Request yet.
type Token = Arc<()>;

impl HalfOpen {
    /// Closes the oldest connections until there is room for another one.
    pub(super) fn limit(&mut self, most: u32) {
        if self.0.len() < most as usize {
            return;
        }
        self.0.retain(|(_, token)| token.strong_count() > 0);
        while self.0.len() >= most as usize
            && let Some((oldest, _)) = self.0.pop_front()
        {
            setup::remove(oldest);
        }
    }

    pub(super) fn add(&mut self, task: TaskNumber, token: Weak<()>) {
        self.0.push_back((task, token));
    }

    pub(super) fn clear(&mut self) {
        for (task, _) in self.0.drain(..) {
            setup::remove(task);
        }
    }
}

/// The setup of a connection by a peer, until its Request is complete.
pub(super) struct Passive {
    socket: OwnedFd,
    device: LinkDevice,
    addresses: (SocketAddr, SocketAddr),
    listener: Weak<Shared>,
    responder: Responder,
    backlog: u32,
    waiting: Arc<AtomicU32>,
    token: Token,
}

/// A request that the program answers. Dropping it rejects the request.
pub(crate) struct Incoming {
    socket: Option<OwnedFd>,
    device: LinkDevice,
    local: SocketAddr,
    peer: SocketAddr,
    responder: Responder,
    request: Request,
    /// Until the program takes the request.
    waiting: Option<Waiting>,
}

impl core::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Incoming")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Passive {
    pub(super) fn new(
        now: Time,
        socket: OwnedFd,
        device: LinkDevice,
        addresses: (SocketAddr, SocketAddr),
        listener: Weak<Shared>,
    ) -> Passive {
        Passive {
            socket,
            device,
            addresses,
            listener,
            responder: Responder::new(now),
            backlog: 0,
            waiting: Arc::default(),
            token: Token::default(),
        }
    }

    /// Sets the limits of the listener.
    pub(super) fn within(mut self, backlog: u32, waiting: &Arc<AtomicU32>) -> Passive {
        self.backlog = backlog;
        self.waiting = Arc::clone(waiting);
        self
    }

    pub(super) fn token(&self) -> Weak<()> {
        Arc::downgrade(&self.token)
    }

    /// Receives the Request; none if it is not complete.
    fn receive(&mut self) -> Result<Option<Request>, SetupError> {
        let mut buffer = [0; 512];
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(self.responder.peer_closed()),
                Ok((received, _)) => {
                    if let Some(request) = self.responder.receive(&buffer[..received])? {
                        return Ok(Some(request));
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(_) => return Err(self.responder.peer_closed()),
            }
        }
    }

    /// Queues the request for the program.
    fn deliver(self, request: Request) {
        let waiting = Waiting::new(&self.waiting, self.backlog);
        let is_full = waiting.is_none();
        let incoming = Box::new(Incoming {
            socket: Some(self.socket),
            device: self.device,
            local: self.addresses.0,
            peer: self.addresses.1,
            responder: self.responder,
            request,
            waiting,
        });
        if is_full {
            tracing::debug!("a request is rejected: {} wait already", self.backlog);
            return;
        }
        report(&self.listener, |_| Some(IwarpEvent::Request(incoming)));
    }
}

impl Task for Passive {
    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn watch(&self) -> Watch {
        Watch::Readable
    }

    fn deadline(&self) -> Option<Time> {
        self.responder.deadline()
    }

    fn ready(mut self: Box<Self>) -> Option<Box<dyn Task>> {
        match self.receive() {
            Ok(None) => return Some(self),
            Ok(Some(request)) => self.deliver(request),
            Err(error) => {
                tracing::debug!("MPA setup with {}: {error}", self.addresses.1);
                if let SetupError::Markers = error
                    && let Some(refusal) = self.responder.refusal()
                {
                    let _best_effort = send(&self.socket, &refusal, SendFlags::NOSIGNAL);
                }
            }
        }
        None
    }

    fn expired(self: Box<Self>) {
        tracing::debug!("{} connected and sent no MPA Request", self.addresses.1);
    }
}

impl Incoming {
    /// Sends a rejection, and closes the connection.
    fn reject(&mut self, private_data: &[u8]) -> Result<(), Error> {
        let reply = self.responder.reject(private_data);
        let reply = reply.map_err(|error| Error::invalid(error.to_string()))?;
        if let Some(socket) = self.socket.take() {
            // A peer that has gone needs no answer.
            let _gone = send(&socket, &reply, SendFlags::NOSIGNAL);
            let rejected = Rejected {
                socket,
                deadline: now() + REJECTED_TIMEOUT,
            };
            if let Err(error) = setup::add(Box::new(rejected)) {
                tracing::warn!("a rejected connection is closed at once: {error}");
            }
        }
        Ok(())
    }
}

/// A connection that was rejected, until the peer closes it. siw's initiator does not read the
/// private data of a rejection if the end of the stream arrives with it.
struct Rejected {
    socket: OwnedFd,
    deadline: Time,
}

impl Drop for Rejected {
    fn drop(&mut self) {
        // A forked child may have a copy of the descriptor.
        let _gone = shutdown(&self.socket, Shutdown::Write);
    }
}

impl Task for Rejected {
    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn watch(&self) -> Watch {
        Watch::Readable
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.deadline)
    }

    fn ready(self: Box<Self>) -> Option<Box<dyn Task>> {
        None
    }

    fn expired(self: Box<Self>) {}
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.socket.is_some() {
            let _rejected = self.reject(&[]);
        }
    }
}

/// Creates the id of a request, for the program that takes the event.
pub(crate) fn create_id(
    listener: &Id,
    mut incoming: Box<Incoming>,
) -> Result<(Id, PeerParams), Error> {
    incoming.waiting = None;
    let id = Id::detached(
        listener.channel(),
        listener.port_space(),
        listener.qp_type(),
    );
    let params = PeerParams {
        private_data: incoming.request.private_data.as_bytes().to_vec(),
        responder_resources: incoming.request.ird as u8,
        initiator_depth: incoming.request.ord as u8,
        ..PeerParams::default()
    };
    let (local, peer) = (incoming.local, incoming.peer);
    {
        let options = listener.shared().inner().options;
        let mut inner = id.shared().inner();
        inner.state = State::Connect;
        inner.options = options;
        inner.address = Some(Address {
            local: local.ip(),
            remote: peer.ip(),
        });
        inner.port = Some(Port {
            handle: 0,
            generation: 0,
            number: local.port(),
            source: Host::new(local.ip()),
            destination: Some((Host::new(peer.ip()), peer.port())),
            borrowed: true,
        });
        inner.device = Some(incoming.device.clone());
        (inner.local, inner.peer) = (Some(local), Some(peer));
        inner.responder_resources = params.responder_resources;
        inner.initiator_depth = params.initiator_depth;
        inner.path = Some(Path::of(&inner)?);
        inner.stage = Stage::Request(incoming);
    }
    ControlClient::get()?.handles().add(id.shared());
    Ok((id, params))
}

/// Accepts the request of an id: sends the Reply, and gives the queue pair its stream.
pub(crate) fn accept(id: &Arc<Shared>, params: &ConnParams) -> Result<(), Error> {
    if params.qpn == 0 {
        return Err(no_queue_pair());
    }
    let (mut incoming, device, asked) = {
        let mut inner = id.inner();
        let device = inner.device.clone().ok_or_else(no_device)?;
        let asked = (inner.responder_resources, inner.initiator_depth);
        match core::mem::take(&mut inner.stage) {
            Stage::Request(incoming) => (incoming, device, asked),
            other => {
                inner.stage = other;
                return Err(no_connection());
            }
        }
    };
    let depth = |own: Option<u8>, asked: u8| u16::from(own.unwrap_or(asked).min(MAX_DEPTH));
    let answer = Answer {
        ird: depth(params.responder_resources, asked.0),
        ord: depth(params.initiator_depth, asked.1),
        crc: device.link().crc,
        private_data: params.private_data.clone(),
    };
    let request = incoming.responder.request().unwrap_or_default();
    let (reply, stream) = match incoming.responder.accept(&answer) {
        Ok(accepted) => accepted,
        Err(error) => {
            id.inner().stage = Stage::Request(incoming);
            return Err(Error::invalid(error.to_string()));
        }
    };
    let Some(socket) = incoming.socket.take() else {
        return Err(no_connection());
    };
    {
        let mut inner = id.inner();
        (inner.closed, inner.established) = (false, false);
        inner.stage = Stage::Connected(params.qpn);
    }
    let setup = StreamSetup {
        socket,
        params: stream,
        request,
        reply,
        received: Vec::new(),
        user: Arc::new(Connection::new(id, None)),
    };
    let connected = device.device().connect_stream(params.qpn, setup);
    connected.map_err(|error| {
        id.inner().stage = Stage::None;
        Error::from(error)
    })
}

/// Rejects the request of an id.
pub(crate) fn reject(id: &Arc<Shared>, private_data: &[u8]) -> Result<(), Error> {
    let stage = core::mem::take(&mut id.inner().stage);
    match stage {
        Stage::Request(mut incoming) => incoming.reject(private_data),
        other => {
            id.inner().stage = other;
            Err(no_connection())
        }
    }
}
