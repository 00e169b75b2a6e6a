//! Runs of a UC connection that have not been sent when it ends.
//!
//! A run may wait for room, in the socket or at the receiver, while its queue pair is reset or
//! destroyed. Such a run is dropped, as an adapter discards outstanding work requests. The peer's
//! next connection would accept it, because the first packet of a UC message may have any PSN.
//!
//! Runs of other transports are sent. Those of RC may contain the last ACKs for the peer, and those
//! of UD belong to no connection.

use ferroce_roce::{Engine, Path};
use ferroce_wire::{Bth, Flow, Transport};

/// The packets of one UC queue pair to its peer.
#[derive(Debug)]
pub(crate) struct UcConnection {
    flow: Flow,
    dest_qpn: u32,
}

impl UcConnection {
    /// Returns the connection of a queue pair; none unless it is one of UC that is connected.
    pub(crate) fn of(engine: &Engine, qpn: u32) -> Option<UcConnection> {
        let (flow, dest_qpn) = engine.uc_destination(qpn)?;
        Some(UcConnection { flow, dest_qpn })
    }

    /// Returns true if all packets of a run are of this connection. A run that also has packets
    /// of other queue pairs is not dropped: the ICRCs of its packets depend on their places.
    pub(crate) fn owns(&self, path: &Path, segment: usize, bytes: &[u8]) -> bool {
        let is_ours = |packet| {
            let bth = Bth::parse(packet);
            bth.is_ok_and(|bth| {
                bth.opcode.transport() == Transport::Uc && bth.dest_qpn == self.dest_qpn
            })
        };
        path.flow == self.flow && bytes.chunks(segment).all(is_ours)
    }
}
