//! The rdma_cm client: connections by IP address and port, through the connection manager in
//! ferroced.
//!
//! ```text
//!   Id: bind, resolve, listen, connect, accept ...     EventChannel::next
//!        |                                                  ^  moves queue pairs,
//!        v  CmCall: number, deadline                        |  creates ids
//!   control client: one connection per process  -->  thread: answers, events
//! ```
//!
//! The crate does what the kernel's rdma_cm and librdmacm do together: it turns addresses
//! into links and source ports, moves queue pairs, and queues events. ferroced exchanges the
//! messages on the network. An [`Id`] is one end of a connection, a listener or a datagram
//! endpoint; an [`EventChannel`] queues the events of ids and has a descriptor to wait for.
//!
//! A client:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use ferroce_device::transport::{QpCap, QpType};
//! use ferroce_rdmacm::{ConnParams, EventChannel, EventKind, Id, PortSpace, QpConfig};
//! use ferroce_rdmacm::RESOLVE_TIMEOUT;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let channel = EventChannel::new()?;
//! let id = Id::new(&channel, PortSpace::Tcp, QpType::Rc)?;
//! id.resolve_addr(None, "192.0.2.1:7471".parse()?, RESOLVE_TIMEOUT)?;
//! assert!(matches!(channel.next()?.kind, EventKind::AddressResolved));
//! id.resolve_route()?;
//! assert!(matches!(channel.next()?.kind, EventKind::RouteResolved));
//!
//! let link = id.device().expect("a resolved id has a device");
//! let cq = link.device().create_cq(32, None)?;
//! let cap = QpCap {
//!     max_send_wr: 16,
//!     max_recv_wr: 16,
//!     max_send_sge: 1,
//!     max_recv_sge: 1,
//!     max_inline_data: 0,
//! };
//! let qp = id.create_qp(&QpConfig {
//!     pd: None,
//!     send_cq: &cq,
//!     recv_cq: &cq,
//!     cap,
//!     sq_sig_all: true,
//! })?;
//! id.connect(&ConnParams::with_private_data(b"hello"))?;
//! match channel.next()?.kind {
//!     EventKind::Established(_) => println!("queue pair {:#x} is connected", qp.qpn()),
//!     EventKind::Rejected { reason, .. } => println!("rejected: {reason:?}"),
//!     other => println!("{other:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A server:
//!
//! ```no_run
//! use ferroce_device::transport::QpType;
//! use ferroce_rdmacm::{ConnParams, EventChannel, EventKind, Id, PortSpace};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let channel = EventChannel::new()?;
//! let listener = Id::new(&channel, PortSpace::Tcp, QpType::Rc)?;
//! listener.bind("0.0.0.0:7471".parse()?)?;
//! listener.listen(16)?;
//! if let EventKind::ConnectRequest { id, params } = channel.next()?.kind {
//!     println!("{:?} requests a connection", id.peer_addr());
//!     // Create a queue pair and post receives here.
//!     id.accept(&ConnParams::with_private_data(&params.private_data))?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `examples/echo.rs` is a whole program.

#![forbid(unsafe_code)]

mod accept;
mod address;
mod channel;
mod client;
mod connect;
mod datagram;
mod devices;
mod error;
mod event;
mod handles;
mod id;
mod incoming;
mod iwarp;
mod lookup;
mod multicast;
mod neighbour;
mod options;
mod path;
mod qp;
mod recover;
mod resolve;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use channel::{EventChannel, PendingEvent};
pub use connect::ConnParams;
pub use devices::{LinkDevice, MAX_DEPTH, all as all_devices, check_links};
pub use error::{Error, ErrorKind};
pub use event::{Datagrams, Event, EventKind, PeerParams, Unreachable};
pub use ferroce_cm::{Ece, PortSpace, Reason};
pub use id::Id;
pub use path::Path;
pub use qp::{QpAttributes, QpConfig};
pub use resolve::RESOLVE_TIMEOUT;

/// Fails with [`ErrorKind::TimedOut`] if ferroced does not answer, for programs that have
/// waited long for an event.
pub fn probe() -> Result<(), Error> {
    client::ControlClient::get()?.probe()
}

/// Connects to ferroced, unless this process is connected already.
pub fn connect_to_ferroced() -> Result<(), Error> {
    client::ControlClient::get().map(drop)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
