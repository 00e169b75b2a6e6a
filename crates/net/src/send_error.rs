//! Why packets did not leave.

use std::io;
use std::net::IpAddr;

/// Why a run did not leave.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The socket's buffer is full: send it again when it has drained.
    #[error("the send buffer is full")]
    WouldBlock,
    /// The packets are longer than the way to the peer carries.
    #[error("packets of {0} bytes are longer than the way to the peer carries")]
    TooBig(usize),
    /// No way to the peer, now.
    #[error("{destination} cannot be reached: {error}")]
    Unreachable {
        /// The peer.
        destination: IpAddr,
        /// What the kernel said.
        error: io::Error,
    },
    /// The source address is not, or no longer, one of this machine's.
    #[error("{0} is not an address of this machine, or not of the interface to be used")]
    NotOurAddress(IpAddr),
    /// [`Sender::bind`](crate::Sender::bind) did not return this source port.
    #[error("no socket is open on UDP source port {0}")]
    NotBound(u16),
    /// Thrown away on this machine, by a firewall or for want of memory: the same
    /// to the peer as being lost on the way.
    #[error("thrown away by the system: {0}")]
    Dropped(io::Error),
}

/// Of several runs, one did not leave.
#[derive(Debug, thiserror::Error)]
#[error("after {sent} runs: {error}")]
pub struct PartialSend {
    /// How many left before it.
    pub sent: usize,
    /// Why this one did not. Those behind it have not been tried.
    pub error: SendError,
}
