//! Pinning of the sender of a peer on the same host.
//!
//! Every process of a host can send from all addresses of the host, so the source address does
//! not identify such a peer. The UDP port does: no process can send from a port that another
//! user's process has bound. No message announces the port. So the queue pair pins the port
//! of the first packet with the expected PSN, and drops packets from all other ports.
//!
//! A packet through shared memory has the slot of its sender instead of a port. The memory is
//! shared with one process, to which ferroced gave that slot. So a queue pair accepts such
//! packets from the slot of its peer's QPN only, and pins the slot as it would a port.

use super::Qp;
use super::run_arrival::RunArrival;

/// A sender of packets on this host.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sender {
    /// A UDP port.
    Udp(u16),
    /// The slot of a process that shares memory with this one.
    InMemory(u8),
}

/// The sender that a queue pair pins, in two bytes: a slot from 1 to 255, or a UDP port above
/// 256. Lower ports are privileged and never pinned: no implementation sends from them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct PeerPort(u16);

impl PeerPort {
    /// No sender is pinned.
    pub(super) const ANY: PeerPort = PeerPort(0);
    /// The first packet will pin its sender.
    const LEARNS: PeerPort = PeerPort(256);

    /// Returns the value that pins a sender.
    #[inline]
    fn of(sender: Sender) -> Option<PeerPort> {
        match sender {
            Sender::Udp(port) => (port > 256).then_some(PeerPort(port)),
            Sender::InMemory(slot) => (slot > 0).then_some(PeerPort(slot.into())),
        }
    }
}

impl Qp {
    /// Starts to pin the peer's sender: the first packet decides.
    pub(crate) fn pin_peer_port(&mut self) {
        self.peer_port = PeerPort::LEARNS;
    }

    /// Accepts packets from all UDP ports again, and none through shared memory.
    pub(crate) fn unpin_peer_port(&mut self) {
        self.peer_port = PeerPort::ANY;
        self.local_peer = 0;
        self.run_arrival = RunArrival::default();
        self.path.in_memory = false;
    }

    /// Names the slot of a peer on this host, and whether packets to it travel through shared
    /// memory.
    pub(crate) fn set_local_peer(&mut self, slot: u8, sends: bool) {
        self.local_peer = slot;
        self.path.in_memory = sends;
    }

    /// True if packets to the peer travel through shared memory.
    pub(crate) fn sends_in_memory(&self) -> bool {
        self.path.in_memory
    }

    /// True if packets from this sender are accepted.
    #[inline]
    pub(crate) fn may_come_from(&self, sender: Sender) -> bool {
        match (self.peer_port, sender) {
            (PeerPort::ANY | PeerPort::LEARNS, Sender::Udp(_)) => true,
            (PeerPort::ANY | PeerPort::LEARNS, Sender::InMemory(slot)) => {
                slot != 0 && slot == self.local_peer
            }
            (pinned, sender) => PeerPort::of(sender) == Some(pinned),
        }
    }

    /// True if the next packet may pin its sender.
    #[inline]
    pub(crate) fn learns_peer_port(&self) -> bool {
        self.peer_port == PeerPort::LEARNS
    }

    /// Pins the sender of an accepted packet if the packet was `expected`. Another process
    /// has to guess the PSN for that. Otherwise the next packet decides.
    pub(crate) fn learn_peer_port(&mut self, sender: Sender, expected: bool) {
        if expected && let Some(pinned) = PeerPort::of(sender) {
            self.peer_port = pinned;
        }
    }
}
