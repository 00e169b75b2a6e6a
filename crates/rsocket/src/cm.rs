//! The connection manager as rsockets use it.
//!
//! All calls are asynchronous and [`Id::event`] never blocks: a thread that waits polls the
//! descriptor of the id.

use core::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferroce_device::transport::Pd;
use ferroce_device::{Device, Qp};

use crate::{Errno, Result};

/// A connection manager.
pub trait Manager: Debug + Send + Sync {
    /// Creates an id with an event channel of its own.
    fn create_id(&self, space: PortSpace) -> Result<Box<dyn Id>>;

    /// Fails if the connection manager does not answer. Blocks until it does, or until a
    /// timeout.
    fn probe(&self) -> Result<()>;
}

/// The port space of an id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortSpace {
    /// `RDMA_PS_TCP`: reliable connections.
    Tcp,
    /// `RDMA_PS_UDP`: datagrams.
    Udp,
}

/// An option of an id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IdOption<'a> {
    /// The address may be in use by another id.
    ReuseAddress(bool),
    /// An IPv6 address does not stand for IPv4 addresses.
    V6Only(bool),
    /// The traffic class of the connection.
    TypeOfService(u8),
    /// The path to the peer, as path records; the route counts as resolved.
    Path(&'a [u8]),
}

/// One end of a connection, or a listener.
pub trait Id: Debug + Send + Sync {
    /// Returns the descriptor that is readable while an event waits.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the device and the protection domain of the id, once its address is resolved.
    fn device(&self) -> Option<(Arc<Device>, Arc<Pd>)>;

    /// Returns the local address.
    fn local_addr(&self) -> Option<SocketAddr>;

    /// Returns the peer's address.
    fn peer_addr(&self) -> Option<SocketAddr>;

    /// Binds the id to a local address.
    fn bind(&self, addr: &SocketAddr) -> Result<()>;

    /// Binds the id to an address of a link, so that the id has a device at once.
    fn bind_to_device(&self, addr: &SocketAddr) -> Result<()>;

    /// Waits for connection requests.
    fn listen(&self, backlog: i32) -> Result<()>;

    /// Resolves the peer's address; an event reports the result.
    fn resolve_addr(&self, to: &SocketAddr) -> Result<()>;

    /// Resolves the route to the peer; an event reports the result.
    fn resolve_route(&self) -> Result<()>;

    /// Sets an option.
    fn set_option(&self, option: IdOption<'_>) -> Result<()>;

    /// Takes a new queue pair: moves it to INIT, or to RTS if it sends datagrams. Events of
    /// the connection move it further.
    fn attach(&self, qp: &Arc<Qp>) -> Result<()>;

    /// Gives up the queue pair.
    fn detach(&self);

    /// Sends a connection request.
    fn connect(&self, private_data: &[u8]) -> Result<()>;

    /// Accepts the connection request that created the id.
    fn accept(&self, private_data: &[u8]) -> Result<()>;

    /// Takes the oldest event, if there is one.
    fn event(&self) -> Result<Option<Event>>;
}

/// A connection request. Dropping it rejects the request.
pub trait Request: Debug + Send {
    /// Creates the id of the new connection, with an event channel of its own.
    fn into_id(self: Box<Self>) -> Result<Box<dyn Id>>;
}

/// An event of an id.
#[derive(Debug)]
pub struct Event {
    /// The kind of event.
    pub kind: EventKind,
    /// The private data of the peer's message, if the event reports one.
    pub private_data: Vec<u8>,
}

/// The kind of an event.
#[derive(Debug)]
pub enum EventKind {
    /// The peer's address is resolved.
    AddressResolved,
    /// The route is resolved.
    RouteResolved,
    /// A peer wants to connect to the listener.
    ConnectRequest(Box<dyn Request>),
    /// The connection is established.
    Established,
    /// The peer rejected the connection request.
    Rejected,
    /// The address, the route or the peer was not found.
    Unreachable(Errno),
    /// The peer disconnected, or is gone.
    Disconnected,
    /// The link was removed.
    DeviceRemoved,
    /// An event without a meaning for rsockets.
    Other,
}
