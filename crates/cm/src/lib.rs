//! The InfiniBand connection manager (CM) and the port spaces of rdma_cm.
//!
//! ```text
//!   listen, connect, accept, reject, disconnect, destroy ...      poll_event
//!              |                                                      ^
//!              v                                                      |
//!   +--------------------------------- Cm ----------------------------------+
//!   |  active:  REQ -> (MRA) -> REP -> RTU     close: DREQ, DREP, TIMEWAIT  |
//!   |  passive: REQ -> REP -> RTU or data      REJ, duplicates, stale peers |
//!   +------------------------------------------------------------------------+
//!      |  poll_transmit            ^ receive             ^ handle_timeout
//!      v  (MADs)                   | (MADs)              | (time)
//! ```
//!
//! To connect two queue pairs, the nodes exchange management datagrams (MADs) of 256
//! bytes between their queue pairs 1. The network may lose, duplicate, reorder or forge
//! any of them. This crate implements the messages and the state machine of a connection.
//! It is sans-IO: it has no socket, clock, thread or entropy source, and it knows queue
//! pairs by number only. The caller sends, receives, keeps the time, and modifies queue
//! pairs according to [`QpParameters`].
//!
//! - [`Cm`] is the connection manager of one node with one channel adapter.
//! - [`message`] holds the message formats.
//! - [`ports`] holds the rules for binding to ports.
//! - [`multicast`] maps multicast groups to GIDs.

#![forbid(unsafe_code)]

mod active;
mod answer_cache;
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
mod listener_gap;
mod mad;
pub mod message;
pub mod multicast;
mod passive;
pub mod ports;
mod private_data;
mod qp;
mod reason;
mod reject;
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
pub use listener_gap::LISTENER_GAP;
pub use mad::{DecodeError, MAD_LEN, Mad};
pub use private_data::{PrivateData, TooLong};
pub use qp::QpParameters;
pub use reason::Reason;
pub use request::{Accept, Ece, Kind, Request, flow_label};
pub use resume::Snapshot;
pub use service::PortSpace;
pub use sidr::{SidrAnswer, SidrId, SidrRequest};
pub use time_code::{Time, ack_timeout, duration};

#[cfg(test)]
mod tests;
