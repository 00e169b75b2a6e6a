//! The active side: a TCP connection, the Request, and the Reply.

use core::net::SocketAddr;
use std::sync::{Arc, Weak};

use ferroce_device::StreamSetup;
use ferroce_device::iwarp::Time;
use ferroce_device::iwarp::mpa::{Initiator, Offer, Params, Replied, SetupError};
use ferroce_device::iwarp::terminate::Terminate;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect as tcp_connect,
    recv, send, socket_with, sockopt,
};

use super::connection::{Connection, report};
use super::setup::{self, Task, TaskNumber, Watch};
use super::{IwarpEvent, Stage, addresses, no_queue_pair, now};
use crate::address::with_port;
use crate::connect::ConnParams;
use crate::devices::{LinkDevice, MAX_DEPTH};
use crate::error::{Error, no_destination, no_device, no_port};
use crate::event::PeerParams;
use crate::id::Shared;

/// A request without an answer. Dropping it gives the request up.
#[derive(Debug)]
pub(crate) struct Connecting {
    task: TaskNumber,
    qpn: u32,
}

impl Connecting {
    /// Returns the number of the queue pair that the connection is for.
    pub(super) fn qpn(&self) -> u32 {
        self.qpn
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        setup::remove(self.task);
    }
}

/// The setup of a connection by this end.
pub(super) struct Active {
    socket: OwnedFd,
    id: Weak<Shared>,
    device: LinkDevice,
    qpn: u32,
    initiator: Initiator,
    /// The Reply, as far as it has arrived.
    reply: Vec<u8>,
    is_connected: bool,
}

/// Starts to connect. An event reports the answer.
pub(crate) fn connect(id: &Arc<Shared>, params: &ConnParams) -> Result<(), Error> {
    if params.qpn == 0 {
        return Err(no_queue_pair());
    }
    let (device, local, peer, chosen) = {
        let inner = id.inner();
        let port = inner.port.ok_or_else(no_port)?;
        let (host, number) = port.destination.ok_or_else(no_destination)?;
        let local = with_port(port.source, port.number);
        let device = inner.device.clone().ok_or_else(no_device)?;
        (device, local, with_port(host, number), inner.chose_port)
    };
    let offer = Offer {
        crc: device.link().crc,
        ird: params.responder_resources.unwrap_or(MAX_DEPTH).into(),
        ord: params.initiator_depth.unwrap_or(MAX_DEPTH).into(),
        private_data: params.private_data.clone(),
        ..Offer::default()
    };
    let initiator = Initiator::new(now(), &offer).map_err(|e| Error::invalid(e.to_string()))?;
    let socket = open(local, peer, chosen)
        .map_err(|error| Error::system(&format!("TCP connection from {local}"), error))?;
    {
        let mut inner = id.inner();
        (inner.closed, inner.established) = (false, false);
    }
    let started = tcp_connect(&socket, &peer);
    let active = Active {
        socket,
        id: Arc::downgrade(id),
        device,
        qpn: params.qpn,
        initiator,
        reply: Vec::new(),
        is_connected: false,
    };
    match started {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => {
            active.fail(error);
            return Ok(());
        }
    }
    // The lock of the id is held: the thread finds the id as it is afterwards.
    let mut inner = id.inner();
    let task = setup::add(Box::new(active))?;
    inner.stage = Stage::Connecting(Connecting {
        task,
        qpn: params.qpn,
    });
    Ok(())
}

/// Opens a socket at the id's address. A port that ferroced chose may be in use by TCP: then
/// the kernel chooses one.
fn open(local: SocketAddr, peer: SocketAddr, chosen: bool) -> Result<OwnedFd, Errno> {
    let family = match peer {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    match bind(&socket, &local) {
        Err(Errno::ADDRINUSE) if !chosen => {
            let mut any_port = local;
            any_port.set_port(0);
            bind(&socket, &any_port)?;
        }
        bound => bound?,
    }
    Ok(socket)
}

impl Active {
    /// Sends the Request once the connection exists. Returns false if it does not yet.
    fn begin(&mut self) -> Result<bool, Errno> {
        sockopt::socket_error(&self.socket)??;
        let Some((local, _)) = addresses(&self.socket) else {
            return Ok(false);
        };
        if let Some(id) = self.id.upgrade() {
            id.inner().local = Some(local);
        }
        // The socket has sent nothing before, so there is room.
        send(&self.socket, &self.initiator.request(), SendFlags::NOSIGNAL)?;
        self.is_connected = true;
        Ok(true)
    }

    /// Receives the Reply. Returns it with the bytes behind it; none if it is not complete.
    fn receive(&mut self) -> Result<Option<(Replied, Vec<u8>)>, Failure> {
        let mut buffer = [0; 4096];
        loop {
            let received = match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Failure::Tcp(Errno::CONNRESET)),
                Ok((received, _)) => &buffer[..received],
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(error) => return Err(Failure::Tcp(error)),
            };
            match self.initiator.receive(received).map_err(Failure::Mpa)? {
                Replied::Wait => self.reply.extend_from_slice(received),
                accepted @ Replied::Accepted { taken, .. } => {
                    self.reply.extend_from_slice(&received[..taken]);
                    return Ok(Some((accepted, received[taken..].to_vec())));
                }
                rejected @ Replied::Rejected { .. } => return Ok(Some((rejected, Vec::new()))),
            }
        }
    }

    /// Gives the queue pair its stream.
    fn establish(self, params: Params, peer: PeerParams, received: Vec<u8>) {
        let Some(id) = self.id.upgrade() else { return };
        let _ended = core::mem::replace(&mut id.inner().stage, Stage::Connected(self.qpn));
        let setup = StreamSetup {
            socket: self.socket,
            params,
            request: self.initiator.request(),
            reply: self.reply,
            received,
            user: Arc::new(Connection::new(&id, Some(peer))),
        };
        if let Err(error) = self.device.device().connect_stream(self.qpn, setup) {
            tracing::warn!("the peer has accepted, but {error}");
            let errno = Error::from(error).errno();
            report(&self.id, |_| Some(IwarpEvent::ConnectError(errno)));
        }
    }

    /// Ends the setup because of the peer's bytes: a TERMINATE tells it why.
    fn refuse(&self, error: &SetupError) {
        tracing::debug!("MPA setup: {error}");
        if let Some(code) = error.code() {
            let terminate = Terminate::new(code, None).to_fpdu(false);
            let _best_effort = send(&self.socket, &terminate, SendFlags::NOSIGNAL);
        }
        self.end(match error {
            SetupError::Timeout(_) => IwarpEvent::Unreachable(libc::ETIMEDOUT),
            _ => IwarpEvent::ConnectError(libc::EPROTO),
        });
    }

    fn fail(&self, error: Errno) {
        tracing::debug!("TCP connection: {error}");
        self.end(match error {
            Errno::CONNREFUSED | Errno::CONNRESET => IwarpEvent::Refused {
                errno: error.raw_os_error(),
                private_data: Vec::new(),
            },
            Errno::TIMEDOUT => IwarpEvent::Unreachable(libc::ETIMEDOUT),
            error => IwarpEvent::ConnectError(error.raw_os_error()),
        });
    }

    fn end(&self, event: IwarpEvent) {
        report(&self.id, |_| Some(event));
    }
}

/// The failure of a setup.
enum Failure {
    Tcp(Errno),
    Mpa(SetupError),
}

impl Task for Active {
    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn watch(&self) -> Watch {
        match self.is_connected {
            true => Watch::Readable,
            false => Watch::Writable,
        }
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.initiator.deadline())
    }

    fn ready(mut self: Box<Self>) -> Option<Box<dyn Task>> {
        if !self.is_connected {
            match self.begin() {
                Ok(true) => {}
                Ok(false) => return Some(self),
                Err(error) => {
                    self.fail(error);
                    return None;
                }
            }
        }
        match self.receive() {
            Ok(None) => return Some(self),
            Ok(Some((replied, received))) => match replied {
                Replied::Wait => return Some(self),
                Replied::Accepted {
                    params,
                    private_data,
                    ..
                } => {
                    let peer = PeerParams {
                        private_data: private_data.as_bytes().to_vec(),
                        responder_resources: params.ird as u8,
                        initiator_depth: params.ord as u8,
                        ..PeerParams::default()
                    };
                    self.establish(params, peer, received);
                }
                Replied::Rejected { private_data } => self.end(IwarpEvent::Refused {
                    errno: libc::ECONNRESET,
                    private_data: private_data.as_bytes().to_vec(),
                }),
            },
            Err(Failure::Tcp(error)) => self.fail(error),
            Err(Failure::Mpa(error)) => self.refuse(&error),
        }
        None
    }

    fn expired(self: Box<Self>) {
        if let Err(error) = self.initiator.check_deadline(now()) {
            self.refuse(&error);
        }
    }
}
