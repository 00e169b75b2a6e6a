//! Receiving: packets from the wire, and packets that waited, on their way to the engine.

use ferroce_faults::Provoked;
use ferroce_net::{IncomingRun, Scope, Wire};
use ferroce_roce::{Datagram, Engine, Time};
use ferroce_wire::{completes_rc_receive, rc_acknowledge};

use crate::answers::ack_behind_answers;
use crate::bugs::{Bug, Injected};
use crate::core::{Caller, Core, RECEIVE_BUDGET};
use crate::credits::{CreditPage, ReceiveCredits};
use crate::faults::Mishap;
use crate::process::Process;

/// Most turns in which packets are received before a queue pair moves to the error state, is
/// destroyed, or, as one of UC, moves to RTR. It ends the wait for a peer that sends without pause.
const MAX_ARRIVED_TURNS: usize = 64;

impl<W: Wire, P: AsRef<CreditPage> + Clone> Core<W, P> {
    /// Passes packets to the engine: those that waited, then those from the wire.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        process: &mut impl Process,
        caller: Caller,
        scope: Scope,
    ) -> usize {
        self.credits.begin();
        self.release_received_ack(now, process);
        self.release_unmatched(now, process);
        let (engine, credits, injected) = (&mut self.engine, &mut self.credits, self.injected);
        let (unmatched, received_ack) = (&mut self.unmatched, &mut self.received_ack);
        let mut each = |run: &IncomingRun<'_>, fate: Option<Mishap<'_>>| {
            let whole = run.merged.datagram;
            match fate {
                Some(fate) if fate.is_lost => return process.lost(&whole, fate.text),
                Some(fate) => process.met_fault(fate.text),
                None => {}
            }
            // Each packet, and those from it on.
            let (mut datagram, mut rest) = (whole, whole);
            // Place of an ACK that the engine got before the messages in front of it.
            let mut early_ack = None;
            while !rest.payload.is_empty() {
                datagram.payload = rest.first_payload(run.segment);
                datagram.ip_id = rest.ip_id;
                if let Some(ack) = rc_acknowledge(datagram.payload) {
                    let alone = datagram.payload.len() == whole.payload.len();
                    engine.note_ack_arrival(&ack, alone);
                }
                let memory = process.memory();
                let predicted = engine.receive_predicted(now, memory, &rest, run.segment);
                if predicted > 0 {
                    if process.observes() {
                        process.predicted(&rest, run.segment, predicted);
                    }
                    rest.skip(predicted, run.segment);
                    continue;
                }
                let at = whole.payload.len() - rest.payload.len();
                if early_ack == Some(at) {
                    rest.skip(1, run.segment);
                    continue;
                }
                // A request completes before its answer.
                if completes_rc_receive(datagram.payload)
                    && engine.shows_completion_order(datagram.payload)
                {
                    received_ack.release(|ack| deliver(now, engine, credits, process, ack));
                    if early_ack.is_none_or(|early| early < at)
                        && let Some((ack, before)) = ack_behind_answers(&rest, run.segment)
                    {
                        deliver(now, engine, credits, process, &ack);
                        early_ack = Some(at + before);
                    }
                }
                if !mistreat(injected, &whole, &mut datagram, run.segment) {
                    break;
                }
                let defer_ack = caller == Caller::Poller && at > 0;
                let waits = defer_ack && received_ack.store(&datagram)
                    || unmatched.store(now, engine, &datagram);
                if !waits {
                    deliver(now, engine, credits, process, &datagram);
                } else if fate.is_some() {
                    process.met_fault("");
                }
                rest.skip(1, run.segment);
            }
        };
        let (wire, budget) = (&mut self.wire, RECEIVE_BUDGET);
        let received = match &mut self.faults {
            None => wire.receive(scope, budget, |run| each(run, None)),
            Some(faults) => faults.receive(now, wire, scope, budget, each),
        };
        let received = received.unwrap_or_else(|error| {
            tracing::warn!("cannot receive packets: {error}");
            0
        });
        let all = matches!(scope, Scope::AllFamilies | Scope::EitherFamily);
        let holds = self
            .faults
            .as_ref()
            .is_some_and(|faults| !faults.is_empty());
        let empty = all && received == 0 && self.unmatched.is_empty() && !holds;
        self.credits.end(empty);
        if self.faults.is_some() {
            self.provoke_events(now, process);
        }
        received
    }

    /// Carries out the events that faults have caused.
    fn provoke_events(&mut self, now: Time, process: &mut impl Process) {
        while let Some(event) = self
            .faults
            .as_mut()
            .and_then(|faults| faults.poll_event(now))
        {
            match event {
                Provoked::QpError(qpn) => self.engine.provoke_failure(now, qpn, false),
                Provoked::CqOverrun(qpn) => self.engine.provoke_failure(now, qpn, true),
                other => process.provoked(other),
            }
        }
    }

    /// Passes the deferred ACK to the engine.
    pub(crate) fn release_received_ack(&mut self, now: Time, process: &mut impl Process) {
        let (engine, credits, injected) = (&mut self.engine, &mut self.credits, self.injected);
        self.received_ack.release(|datagram| {
            if !injected.has(Bug::LoseReceivedAck) {
                deliver(now, engine, credits, process, datagram);
            }
        });
    }

    /// Passes unmatched packets to the engine that need not wait any longer.
    pub(crate) fn release_unmatched(&mut self, now: Time, process: &mut impl Process) {
        if self.unmatched.is_empty() {
            return;
        }
        let (engine, credits) = (&mut self.engine, &mut self.credits);
        self.unmatched.release(now, engine, |engine, datagram| {
            deliver(now, engine, credits, process, datagram);
        });
    }

    /// Receives every packet that has arrived, and sends the ACKs.
    pub(crate) fn receive_arrived(&mut self, now: Time, process: &mut impl Process) {
        if self.injected.has(Bug::SkipArrivedPackets) {
            return;
        }
        for _ in 0..MAX_ARRIVED_TURNS {
            if self.receive(now, process, Caller::ProgressThread, Scope::AllFamilies) == 0 {
                break;
            }
            self.transmit(now, process);
        }
    }
}

/// Passes a datagram to the engine.
#[inline]
fn deliver<P: AsRef<CreditPage>>(
    now: Time,
    engine: &mut Engine,
    credits: &mut ReceiveCredits<P>,
    process: &mut impl Process,
    datagram: &Datagram<'_>,
) {
    credits.take(datagram.payload);
    if !process.observes() {
        engine.receive(now, process.memory(), datagram);
        return;
    }
    process.receiving(datagram);
    let result = engine.receive(now, process.memory(), datagram);
    process.received(datagram, result, engine.decisions());
    engine.forget_decisions();
}

/// Leaves the segment of a merged run as it is. With an injected bug, mistreats a last
/// segment that is shorter than the others; returns false if it is lost.
#[inline]
fn mistreat<'a>(
    injected: Injected,
    run: &Datagram<'a>,
    segment: &mut Datagram<'a>,
    length: usize,
) -> bool {
    let is_short = segment.payload.len() < length && run.payload.len() > length;
    if is_short && injected.has(Bug::MisjudgeLastSegment) {
        segment.payload = &run.payload[run.payload.len() - length..];
    }
    !(is_short && injected.has(Bug::DropShortSegment))
}
