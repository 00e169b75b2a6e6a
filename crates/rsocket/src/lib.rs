//! rsockets: stream and datagram sockets over RDMA.
//!
//! ```text
//!   stream sockets                       datagram sockets
//!        |                                    |
//!   flow: credits, rings, regions             |
//!        |                                    |
//!   wire: messages as bytes  -----------------+
//! ```
//!
//! The wire protocol is that of rdma-core's rsockets, so the peer may run either.

pub mod flow;
pub mod option_value;
pub mod settings;
pub mod sys;
pub mod wait;
pub mod wire;
