//! rsockets: stream and datagram sockets over RDMA.
//!
//! ```text
//!   poll, select, Epoll        wait for rsockets and other descriptors together
//!      |
//!   Stream                     Datagram
//!      |                          |
//!   connection                    |        a queue pair, its buffers and its flow control
//!      |    \                     |
//!      |     flow                 |        credits, rings, regions: counters only
//!      |     wire  ---------------+        the protocol as bytes
//!   queue, buffer, cm                      ferroce-device, ferroce-rdmacm
//! ```
//!
//! The protocol is that of rdma-core's rsockets: the peer may run either. Calls behave like
//! those of `rdma/rsocket.h`, and errors are the same: an [`Errno`].
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use ferroce_rsocket::{AddressFamily, Stream};
//!
//! let mut stream = Stream::new(AddressFamily::INET)?;
//! stream.connect(&"192.0.2.1:7471".parse()?)?;
//! stream.write_all(b"hello")?;
//! let mut bytes = [0; 5];
//! stream.read_exact(&mut bytes)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A socket has a descriptor that is open until the socket is dropped. [`socket::insert`]
//! makes the socket known under that number, which [`poll`] and [`Epoll`] need.

mod buffer;
mod cm;
mod connection;
mod datagram;
mod epoll;
mod error;
mod flow;
mod mapping;
mod option_value;
mod poll;
mod queue;
mod select;
mod settings;
pub mod socket;
mod stream;
mod sys;
mod wait;
mod wire;

pub use datagram::Datagram;
pub use epoll::{Epoll, Interest};
pub use option_value::OptionValue;
pub use poll::poll;
pub use rustix::event::PollFlags;
pub use rustix::io::Errno;
pub use rustix::net::{AddressFamily, RecvFlags, SendFlags};
pub use select::{BITS, Set, select};
pub use socket::Socket;
pub use stream::Stream;

/// The result of a socket call.
pub type Result<T> = core::result::Result<T, Errno>;

/// Socket options that only rsockets have.
pub mod option {
    use core::ffi::c_int;

    /// The level of the options below.
    pub const SOL_RDMA: c_int = 0x10000;
    /// Number of work requests in the send queue.
    pub const RDMA_SQSIZE: c_int = 0;
    /// Number of work requests in the receive queue.
    pub const RDMA_RQSIZE: c_int = 1;
    /// Messages of up to this many bytes are sent inline.
    pub const RDMA_INLINE: c_int = 2;
    /// Number of iomaps that the peer may announce.
    pub const RDMA_IOMAPSIZE: c_int = 3;
    /// The path to the peer, as path records.
    pub const RDMA_ROUTE: c_int = 4;
}
