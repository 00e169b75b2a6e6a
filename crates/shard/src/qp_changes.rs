//! Changes of queue pairs: packets that have arrived before are received, and deferred ones are
//! sent.

use ferroce_net::Wire;
use ferroce_roce::{AttrMask, QpAttr, QpState, QpType, Time, VerbsError};

use crate::bugs::Bug;
use crate::core::Core;
use crate::credits::CreditPage;
use crate::process::Process;
use crate::uc_connection::UcConnection;

impl<W: Wire, P: AsRef<CreditPage> + Clone> Core<W, P> {
    /// Changes attributes and state of a queue pair. Before the change the engine processes
    /// a deferred ACK, which arrived earlier, and sends deferred ACKs, which the queue pair
    /// may not be able to send afterwards.
    ///
    /// A queue pair that moves to the error state first receives every packet that has
    /// arrived. An adapter processes packets on arrival, so a send that the peer
    /// acknowledged before it disconnected is not flushed.
    ///
    /// A UC queue pair does the same before it moves to RTR: packets of an earlier connection
    /// are dropped while it cannot receive. Later it would accept them, because the first packet
    /// of a UC message may have any PSN.
    ///
    /// A queue pair that no longer receives drops its unmatched packets: otherwise its next
    /// connection would receive them. A UC queue pair that is reset also drops its runs that wait
    /// for room: the peer's next connection would receive them.
    ///
    /// # Errors
    /// If the engine refuses the change.
    pub fn modify_qp(
        &mut self,
        now: Time,
        process: &mut impl Process,
        qpn: u32,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        let receives_first = match attr.state {
            QpState::Err => true,
            QpState::Rtr => self.is_uc(qpn),
            _ => false,
        };
        if mask.contains(AttrMask::STATE) && receives_first {
            self.receive_arrived(now, process);
        }
        if mask.contains(AttrMask::STATE) && !attr.state.receives() {
            self.send_datagrams_without_route(now, process, qpn);
        }
        self.settle(now, process);
        let resets = mask.contains(AttrMask::STATE) && attr.state == QpState::Reset;
        let ended = resets.then(|| UcConnection::of(&self.engine, qpn));
        self.engine.modify_qp(now, qpn, attr, mask)?;
        if mask.contains(AttrMask::STATE) && !attr.state.receives() {
            self.release_unmatched(now, process);
            self.credits.end(false);
        }
        if let Some(connection) = ended.flatten() {
            self.drop_runs(now, process, &connection);
        }
        Ok(())
    }

    /// Returns true if a queue pair is one of UC.
    fn is_uc(&self, qpn: u32) -> bool {
        let query = self.engine.query_qp(qpn);
        query.is_ok_and(|query| query.qp_type == QpType::Uc)
    }

    /// Destroys a queue pair after receiving every packet that has arrived and sending its
    /// deferred ACKs. Drops its unmatched packets: the next queue pair with the same number
    /// must not receive them. Drops its runs that wait for room, if it is one of UC.
    ///
    /// As before the error state, a send that the peer has acknowledged completes. libfabric
    /// destroys queue pairs when the peer disconnects, and takes their completions afterwards.
    ///
    /// # Errors
    /// If the engine refuses.
    pub fn destroy_qp(
        &mut self,
        now: Time,
        process: &mut impl Process,
        qpn: u32,
    ) -> Result<(), VerbsError> {
        self.receive_arrived(now, process);
        self.send_datagrams_without_route(now, process, qpn);
        self.settle(now, process);
        if self.faults.is_some() {
            self.send_held(now);
        }
        let ended = UcConnection::of(&self.engine, qpn);
        self.engine.destroy_qp(qpn)?;
        self.release_unmatched(now, process);
        self.credits.end(false);
        if let Some(connection) = ended {
            self.drop_runs(now, process, &connection);
        }
        Ok(())
    }

    /// Sends datagrams by UDP that wait for a route: without the wait they would have been sent
    /// before their queue pair ends.
    fn send_datagrams_without_route(&mut self, now: Time, process: &mut impl Process, qpn: u32) {
        if self.engine.awaits_datagram_route(qpn) && self.engine.stop_seeking_routes(now) {
            self.transmit(now, process);
        }
    }

    /// Passes the deferred ACK to the engine, and sends what was deferred.
    fn settle(&mut self, now: Time, process: &mut impl Process) {
        self.release_received_ack(now, process);
        if !self.injected.has(Bug::ForgetDeferredAcks) {
            self.flush_deferred(now, process);
        }
    }
}
