//! Pinning of the UDP port of a peer on the same host.
//!
//! Every process of a host can send from all addresses of the host, so the source address does
//! not identify such a peer. The UDP port does: no process can send from a port that another
//! user's process has bound. No message announces the port. So the queue pair pins the port
//! of the first packet with the expected PSN, and drops packets from all other ports.

use core::num::NonZeroU16;

use super::Qp;

impl Qp {
    /// Starts to pin the peer's UDP port: the first packet decides.
    pub(crate) fn pin_peer_port(&mut self) {
        self.peer_port = None;
        self.learns_peer_port = true;
    }

    /// Accepts packets from all UDP ports again.
    pub(crate) fn unpin_peer_port(&mut self) {
        self.peer_port = None;
        self.learns_peer_port = false;
    }

    /// True if packets from this UDP port are accepted.
    #[inline]
    pub(crate) fn may_come_from(&self, port: u16) -> bool {
        self.peer_port.is_none_or(|pinned| pinned.get() == port)
    }

    /// True if the next packet may pin its port.
    #[inline]
    pub(crate) fn learns_peer_port(&self) -> bool {
        self.learns_peer_port
    }

    /// Pins the UDP port of an accepted packet if the packet was `expected`. Another process
    /// has to guess the PSN for that. Otherwise the next packet decides.
    pub(crate) fn learn_peer_port(&mut self, port: u16, expected: bool) {
        if expected {
            self.peer_port = NonZeroU16::new(port);
            self.learns_peer_port = false;
        }
    }
}
