//! The UDP port of a peer on the same host.
//!
//! Every process of a host can send from all of its addresses, but not from a port that
//! another user's process has bound. So such a peer is known by its port, which nothing
//! announces: it is that of the first packet, if its PSN is the expected one.

use core::num::NonZeroU16;

use super::Qp;

impl Qp {
    /// Takes packets from one UDP port only: that of the first.
    pub(crate) fn pin_peer_port(&mut self) {
        self.peer_port = None;
        self.learns_peer_port = true;
    }

    /// Takes packets from all UDP ports again.
    pub(crate) fn unpin_peer_port(&mut self) {
        self.peer_port = None;
        self.learns_peer_port = false;
    }

    /// Whether packets of the peer may come from this UDP port.
    #[inline]
    pub(crate) fn may_come_from(&self, port: u16) -> bool {
        self.peer_port.is_none_or(|pinned| pinned.get() == port)
    }

    /// Whether the next packet decides about the port.
    #[inline]
    pub(crate) fn learns_peer_port(&self) -> bool {
        self.learns_peer_port
    }

    /// Notes the UDP port of a packet that was taken. It counts only if the packet was
    /// `expected`, because another process has to guess a PSN for that; otherwise the next
    /// packet decides.
    pub(crate) fn learn_peer_port(&mut self, port: u16, expected: bool) {
        if expected {
            self.peer_port = NonZeroU16::new(port);
            self.learns_peer_port = false;
        }
    }
}
