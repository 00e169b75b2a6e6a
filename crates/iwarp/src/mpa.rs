//! MPA connection setup: the frames that make a TCP connection an iWARP stream.
//!
//! ```text
//!   initiator (rdma_connect)                    responder (rdma_listen, rdma_accept)
//!      |  ---------- Request: IRD, ORD, private data ---------->  |
//!      |                                                          |  the program decides
//!      |  <-- Reply: accepted or rejected, IRD, ORD, private data |
//!      |  ---------- RTR frame, if peer-to-peer mode ---------->  |
//! ```
//!
//! [`Initiator`] and [`Responder`] are the two state machines. They take received bytes and
//! the time, and return bytes to send. Their result is [`Params`]: the properties of the
//! stream on which the engine then sends FPDUs.
//!
//! The state of a connection that is being set up is less than 1 KiB, and it has a
//! deadline ([`REQUEST_TIMEOUT`], [`REPLY_TIMEOUT`]). So peers that connect and send nothing
//! cost bounded memory for a bounded time.

mod error;
mod frame;
mod initiator;
mod reader;
mod responder;

use core::time::Duration;

pub use error::{ArgumentError, FrameError, SetupError};
pub use frame::{
    Enhanced, Flags, Frame, FrameKind, HEADER_LEN, MAX_FRAME, MAX_PRIVATE_DATA, PrivateData,
};
pub use initiator::{Initiator, Offer, Replied};
pub use responder::{Answer, Request, Responder};

/// Largest IRD and ORD of a queue pair, as in siw.
pub const MAX_READS: u16 = 128;

/// Time that an initiator waits for the Reply, as siw waits.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a responder waits for the Request, as siw waits.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// An end of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The end that connected.
    Initiator,
    /// The end that accepted.
    Responder,
}

/// The RTR frame: the first FPDU of an initiator in peer-to-peer mode.
///
/// RFC 6581 9.2: the responder may not send before it has received an FPDU. The RTR
/// frame is an FPDU without effect, so that a responder whose program sends first can start.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Rtr {
    /// A zero-length RDMA Write.
    Write,
    /// A zero-length RDMA Read.
    Read,
}

/// The negotiated properties of a stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Params {
    /// This end's role.
    pub role: Role,
    /// True if FPDUs carry CRCs, in both directions.
    pub crc: bool,
    /// Reads of the peer that this end holds at a time.
    pub ird: u16,
    /// Reads of this end that may be outstanding at a time.
    pub ord: u16,
    /// The RTR frame that the initiator sends and the responder waits for.
    pub rtr: Option<Rtr>,
}
