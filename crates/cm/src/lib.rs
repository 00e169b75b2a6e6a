//! The connection manager of InfiniBand, and the port spaces of rdma_cm above
//! it.

#![forbid(unsafe_code)]

mod codec;
mod gid;
mod ip_header;
mod mad;
pub mod message;
mod private_data;
mod reason;
mod service;
mod time_code;
pub use gid::Gid;
pub use ip_header::{IpHeader, IpHeaderOr};
pub use mad::{DecodeError, MAD_LEN, Mad};
pub use private_data::{PrivateData, TooLong};
pub use reason::Reason;
pub use service::PortSpace;
pub use time_code::{Time, ack_timeout, duration};
