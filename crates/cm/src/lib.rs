//! The connection manager of InfiniBand, and the port spaces of rdma_cm above
//! it.
//!
//! ```text
//!   listen, connect, accept, reject, disconnect, destroy ...      poll_event
//!              |                                                      ^
//!              v                                                      |
//!   +--------------------------------- Cm ----------------------------------+
//!   |  active:  REQ -> (MRA) -> REP -> RTU     close: DREQ, DREP, TIMEWAIT  |
//!   |  passive: REQ -> REP -> RTU or data      refusals, repeated and stale |
//!   +------------------------------------------------------------------------+
//!      |  poll_transmit            ^ receive             ^ handle_timeout
//!      v  (MADs)                   | (MADs)              | (time)
//! ```
//!
//! Two queue pairs become a connection by messages between queue pairs 1 of
//! their nodes: management datagrams (MADs) of 256 bytes, any of which may be
//! lost, repeated, reordered or forged. This layer knows these messages and
//! what follows from them. It has no socket, clock, thread or randomness of its
//! own and does not know queue pairs but by their numbers: the caller sends,
//! receives, keeps the time, and moves queue pairs as [`QpParameters`] say.
//!
//! [`Cm`] is one node with one channel adapter. [`message`] has the formats,
//! [`ports`] the rules for binding to ports, [`multicast`] the GIDs of groups.

#![forbid(unsafe_code)]

mod active;
mod bugs;
mod close;
mod cm;
mod codec;
mod config;
mod connection;
mod error;
mod event;
mod gid;
mod ip_header;
mod listener;
mod mad;
pub mod message;
pub mod multicast;
mod passive;
pub mod ports;
mod private_data;
mod qp;
mod reason;
mod reject;
mod remember;
mod request;
mod resume;
mod service;
mod sidr;
mod time_code;

pub use cm::{Cm, Transmit};
pub use config::{Address, Config};
pub use connection::{ConnId, Ports, Role, State};
pub use error::{CallError, Ignored};
pub use event::{Closed, Event, Incoming, SidrIncoming};
pub use gid::Gid;
pub use ip_header::{IpHeader, IpHeaderOr};
pub use listener::{ListenAddress, ListenerId};
pub use mad::{DecodeError, MAD_LEN, Mad};
pub use private_data::{PrivateData, TooLong};
pub use qp::QpParameters;
pub use reason::Reason;
pub use request::{Accept, Ece, Kind, Request, flow_label};
pub use resume::Snapshot;
pub use service::PortSpace;
pub use sidr::{SidrAnswer, SidrId, SidrQuestion};
pub use time_code::{Time, ack_timeout, duration};

#[cfg(test)]
mod tests;
