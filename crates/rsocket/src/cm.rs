//! An rdma_cm id with an event channel of its own.
//!
//! [`Id::event`] and [`Id::connect`] never wait: a thread that waits polls the descriptor of
//! the id. The other calls may wait for ferroced, so the lock of a socket is not held during
//! them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use ferroce_device::transport::QpType;
use ferroce_rdmacm::{
    ConnParams, Error, EventChannel, EventKind, LinkDevice, PortSpace, RESOLVE_TIMEOUT,
};

use crate::{Errno, Result};

/// An id and its channel. Clones are the same id, which is destroyed with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct Id {
    id: ferroce_rdmacm::Id,
    channel: EventChannel,
}

/// The id of a connection request. Dropping it rejects the request.
#[derive(Debug)]
pub(crate) struct Request(pub(crate) ferroce_rdmacm::Id);

/// Returns the errno of an error of rdma_cm, and logs the error.
pub(crate) fn errno(error: Error) -> Errno {
    tracing::debug!("an rsocket's rdma_cm call failed: {error}");
    Errno::from_raw_os_error(error.errno())
}

/// Fails if ferroced does not answer. Blocks until it does, or until a timeout.
pub(crate) fn probe() -> Result<()> {
    ferroce_rdmacm::probe().map_err(errno)
}

fn channel() -> Result<EventChannel> {
    let channel = EventChannel::new().map_err(errno)?;
    let set = channel.set_nonblocking(true);
    set.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(channel)
}

impl Id {
    /// Creates an id for streams.
    pub(crate) fn stream() -> Result<Id> {
        Id::new(PortSpace::Tcp, QpType::Rc)
    }

    /// Creates an id for datagrams from an address of a link.
    pub(crate) fn datagram(source: SocketAddr) -> Result<Id> {
        let id = Id::new(PortSpace::Udp, QpType::Ud)?;
        id.bind(source)?;
        id.id.adopt_device().map_err(errno)?;
        Ok(id)
    }

    fn new(space: PortSpace, qp_type: QpType) -> Result<Id> {
        let channel = channel()?;
        let id = ferroce_rdmacm::Id::new(&channel, space, qp_type).map_err(errno)?;
        Ok(Id { id, channel })
    }

    /// Moves the id of a connection request from the listener's channel to its own.
    pub(crate) fn from_request(Request(id): Request) -> Result<Id> {
        let channel = channel()?;
        id.migrate(&channel).map_err(errno)?;
        Ok(Id { id, channel })
    }

    /// Returns the descriptor that is readable while an event waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns the id itself, for queue pairs and options.
    pub(crate) fn inner(&self) -> &ferroce_rdmacm::Id {
        &self.id
    }

    /// Returns the device, once the address is resolved.
    pub(crate) fn device(&self) -> Option<LinkDevice> {
        self.id.device()
    }

    /// Returns the local address.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// Returns the peer's address.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// Binds the id to a local address.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<()> {
        self.id.bind(addr).map_err(errno)
    }

    /// Waits for connection requests.
    pub(crate) fn listen(&self, backlog: i32) -> Result<()> {
        self.id.listen(backlog.cast_unsigned()).map_err(errno)
    }

    /// Resolves the peer's address; an event reports the result.
    pub(crate) fn resolve_addr(&self, to: SocketAddr) -> Result<()> {
        let resolving = self.id.resolve_addr(None, to, RESOLVE_TIMEOUT);
        resolving.map_err(errno)
    }

    /// Resolves the route to the peer; an event reports the result.
    pub(crate) fn resolve_route(&self) -> Result<()> {
        self.id.resolve_route().map_err(errno)
    }

    /// Sends a connection request, without waiting for ferroced.
    pub(crate) fn connect(&self, private_data: &[u8]) -> Result<()> {
        let started = self.id.start_connect(&parameters(private_data));
        started.map_err(errno)
    }

    /// Accepts the connection request that created the id.
    pub(crate) fn accept(&self, private_data: &[u8]) -> Result<()> {
        self.id.accept(&parameters(private_data)).map_err(errno)
    }

    /// Takes the oldest event, if there is one.
    pub(crate) fn event(&self) -> Result<Option<EventKind>> {
        match self.channel.next() {
            Ok(event) => Ok(Some(event.kind)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
                _ => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            },
        }
    }
}

/// Returns the parameters that rdma-core's rsockets use: no READs, 7 retries.
fn parameters(private_data: &[u8]) -> ConnParams {
    ConnParams {
        private_data: private_data.to_vec(),
        responder_resources: Some(0),
        initiator_depth: Some(0),
        flow_control: true,
        ..ConnParams::default()
    }
}
