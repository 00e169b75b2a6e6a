//! rsockets: the functions of `rdma/rsocket.h`, over [`ferroce_rsocket`].
//!
//! The functions translate C's arguments and return values. Descriptors of sockets are those
//! of [`ferroce_rsocket::socket`].

mod address;
mod functions;

pub use ferroce_rsocket::option::*;
pub use functions::*;
