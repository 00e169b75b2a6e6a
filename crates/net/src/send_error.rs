//! Errors of sending.

use std::io;
use std::net::IpAddr;

/// Reason why a run was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The socket's send buffer is full. Send the run again when the socket is writable.
    #[error("the send buffer of the socket is full")]
    WouldBlock,
    /// The packets are longer than the MTU of the route.
    #[error("packets of {0} bytes are longer than the MTU of the route to the peer")]
    TooBig(usize),
    /// There is no route to the peer at present.
    #[error("{destination} is unreachable: {error}")]
    Unreachable {
        /// The peer.
        destination: IpAddr,
        /// The kernel's error.
        error: io::Error,
    },
    /// The source address does not, or no longer, belong to this machine.
    #[error("{0} is not an address of this machine, or not of the interface of the route")]
    NotOurAddress(IpAddr),
    /// [`Sender::bind`](crate::Sender::bind) did not return this source port.
    #[error("no socket is open on UDP source port {0}")]
    NotBound(u16),
    /// This machine dropped the packets, because of a firewall or lack of memory. For the
    /// peer that is the same as a loss in the network.
    #[error("the system dropped the packets: {0}")]
    Dropped(io::Error),
}

/// Error of sending several runs.
#[derive(Debug, thiserror::Error)]
#[error("after {sent} runs: {error}")]
pub struct PartialSend {
    /// Number of runs sent before the error.
    pub sent: usize,
    /// The error of the next run. Later runs have not been tried.
    pub error: SendError,
}
