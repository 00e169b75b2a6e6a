//! rsockets: sockets over RDMA, with the functions of `rdma/rsocket.h`.
//!
//! ```text
//!   functions       C's names and errno; `table` knows which descriptor is what
//!      |
//!   stream          sockets: phases, waiting, turns      datagram    poll, select, epoll
//!      |                                                     |
//!   connection      two directions of bytes                  |
//!      |    \                                                |
//!      |     flow   the books: credits, rings, regions       |
//!      |     wire   messages as bytes  ----------------------+
//!   queue, buffer, id      verbs and librdmacm, as safe as they get
//! ```
//!
//! They speak the protocol of the distribution's rsockets: a peer may run either.
//! Built on the exported functions of this library, as a program would be.

mod address;
mod buffer;
mod connection;
mod datagram;
mod epoll;
mod functions;
mod id;
mod poll;
mod queue;
mod select;
mod stream;
mod table;

pub use functions::*;

use ferroce_rsocket::{flow, option_value, settings, sys, wait, wire};

use core::ffi::c_int;

/// Options that only rsockets have.
pub const SOL_RDMA: c_int = 0x10000;
pub const RDMA_SQSIZE: c_int = 0;
pub const RDMA_RQSIZE: c_int = 1;
pub const RDMA_INLINE: c_int = 2;
pub const RDMA_IOMAPSIZE: c_int = 3;
pub const RDMA_ROUTE: c_int = 4;
