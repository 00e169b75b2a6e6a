//! What a connection manager is told once, and what names a path.

use core::net::IpAddr;

/// Properties of the node and limits.
#[derive(Copy, Clone, Debug)]
pub struct Config {
    /// The channel adapter: names this end to its peers.
    pub ca_guid: u64,
    /// How long the adapter takes to acknowledge; a time code.
    pub ack_delay: u8,
    /// How soon peers should answer, and we answer them; a time code.
    pub response_timeout: u8,
    /// How often a message is sent again.
    pub max_retries: u8,
    /// How long an MRA of ours asks a peer to wait; a time code.
    pub mra_timeout: u8,
    /// How many answers are remembered for peers who ask again after their
    /// connection is gone. The oldest are forgotten first.
    pub max_remembered: usize,
}

impl Config {
    /// What the kernel does with rxe.
    pub fn new(ca_guid: u64) -> Config {
        Config {
            ca_guid,
            ack_delay: 15,
            response_timeout: 20,
            max_retries: 15,
            mra_timeout: 24,
            max_remembered: 4096,
        }
    }
}

/// Between which addresses a message travels.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Address {
    /// Ours.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
}
