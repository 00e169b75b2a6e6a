//! The configuration of a connection manager, and the addresses of a message.

use core::net::IpAddr;

/// Properties and limits of the node.
#[derive(Copy, Clone, Debug)]
pub struct Config {
    /// GUID of the channel adapter, which identifies this node to its peers.
    pub ca_guid: u64,
    /// Time in which the adapter acknowledges a packet; a time code.
    pub ack_delay: u8,
    /// Time in which peers, and this node, answer a message; a time code.
    pub response_timeout: u8,
    /// Number of retransmissions of a message.
    pub max_retries: u8,
    /// Service timeout in the MRAs of this node; a time code.
    pub mra_timeout: u8,
    /// Most answers that are kept for peers that retransmit a message after its connection
    /// is gone. The answer that expires first is dropped first.
    pub max_cached_answers: usize,
}

impl Config {
    /// Returns the values that the kernel uses with rxe.
    pub fn new(ca_guid: u64) -> Config {
        Config {
            ca_guid,
            ack_delay: 15,
            response_timeout: 20,
            max_retries: 15,
            mra_timeout: 24,
            max_cached_answers: 4096,
        }
    }
}

/// The two addresses of a message or connection.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Address {
    /// Address of this node.
    pub local: IpAddr,
    /// Address of the peer.
    pub remote: IpAddr,
}
