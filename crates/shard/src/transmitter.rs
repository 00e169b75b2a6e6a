//! The way from an engine's batches to the wire.

use std::collections::VecDeque;

use ferroce_net::{IpIds, SendError, Wire};
use ferroce_roce::{Batch, Engine, Fault, Path, Time, Trailer};

use crate::bugs::{Bug, Injected};
use crate::credits::{Charge, CreditPage, SendCredits};
use crate::process::Process;

/// Bytes that assembling a packet may write beyond the end of a run.
const OVERHANG: usize = 4096;

/// Sends the packets of an engine.
pub(crate) struct Transmitter<P> {
    outbox: Outbox<P>,
    /// The batch in progress; empty unless one of its runs waits.
    batch: Batch,
    /// Buffer in which a run is assembled.
    buffer: Vec<u8>,
    faults: Vec<(usize, Fault)>,
    trailer: Trailer,
}

/// Runs on their way to the wire.
struct Outbox<P> {
    credits: SendCredits<P>,
    /// Runs that found no room, in the socket or at the receiver. No run overtakes them.
    waiting: VecDeque<WaitingRun>,
    injected: Injected,
}

/// A run that waits for room.
struct WaitingRun {
    path: Path,
    segment: usize,
    bytes: Box<[u8]>,
    /// The charge that the receiver has no room for yet.
    charge: Option<Charge>,
}

impl<P: AsRef<CreditPage>> Transmitter<P> {
    /// Creates a transmitter for a wire, with batches of up to `batch` packets.
    pub(crate) fn new(wire: &impl Wire, page: P, batch: usize) -> Transmitter<P> {
        let properties = wire.properties();
        Transmitter {
            outbox: Outbox {
                credits: SendCredits::new(page),
                waiting: VecDeque::new(),
                injected: Injected::default(),
            },
            batch: Batch::new(batch, properties.run_limits),
            buffer: vec![0; properties.run_limits.bytes + OVERHANG],
            faults: Vec::new(),
            trailer: match properties.ip_ids {
                IpIds::Numbered => Trailer::Numbered,
                IpIds::Zero => Trailer::Unnumbered,
            },
        }
    }

    #[cfg(feature = "bugs")]
    pub(crate) fn inject(&mut self, injected: Injected) {
        self.outbox.injected = injected;
    }

    /// Returns true while runs wait for room, in the socket or at a receiver.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.outbox.waiting.is_empty()
    }

    /// Sends until the engine has no more packets, or a run finds no room. UC and UD sends
    /// complete once the wire has accepted the whole batch: the program may end then.
    pub(crate) fn run(
        &mut self,
        now: Time,
        engine: &mut Engine,
        wire: &mut impl Wire,
        process: &mut impl Process,
    ) {
        while self.outbox.send_waiting(now, wire) {
            if !self.batch.is_empty() {
                engine.finish_transmit(now, &mut self.batch);
            }
            engine.poll_transmit(now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            self.send_batch(now, wire, process);
            if self.is_blocked() {
                engine.fail_unreadable(now, &mut self.batch);
            }
        }
    }

    fn send_batch(&mut self, now: Time, wire: &mut impl Wire, process: &mut impl Process) {
        for run in self.batch.runs() {
            let (buffer, faults) = (&mut self.buffer, &mut self.faults);
            let memory = process.memory();
            let end = self
                .batch
                .assemble_run(run, self.trailer, memory, buffer, faults);
            let bytes = &self.buffer[..end];
            process.assembled(&self.batch, run, bytes, &self.faults);
            if bytes.is_empty() {
                continue;
            }
            let charge = Charge::of(run, bytes);
            self.outbox
                .send(now, wire, &run.path, run.segment, bytes, charge);
        }
        for (index, fault) in self.faults.drain(..) {
            self.batch.fault(index, fault);
        }
    }
}

impl<P: AsRef<CreditPage>> Outbox<P> {
    /// Sends a run, or stores it if there is no room.
    fn send(
        &mut self,
        now: Time,
        wire: &mut impl Wire,
        path: &Path,
        segment: usize,
        bytes: &[u8],
        mut charge: Option<Charge>,
    ) {
        let first = self.waiting.is_empty() || self.injected.has(Bug::OvertakeWaitingRun);
        if first && self.admit(now, &mut charge) && try_send(wire, path, segment, bytes) {
            return;
        }
        if self.injected.has(Bug::LoseWaitingRun) {
            return;
        }
        self.waiting.push_back(WaitingRun {
            path: *path,
            segment,
            bytes: bytes.into(),
            charge,
        });
    }

    /// Returns true if the receiver has room for a charge. Clears the charge then, so that a
    /// run that has to wait for the socket is charged once.
    fn admit(&mut self, now: Time, charge: &mut Option<Charge>) -> bool {
        let admitted = charge.is_none_or(|charge| self.credits.admit(charge, now));
        if admitted && !self.injected.has(Bug::ChargeTwice) {
            *charge = None;
        }
        admitted
    }

    /// Sends waiting runs in order. Returns false if one still finds no room.
    fn send_waiting(&mut self, now: Time, wire: &mut impl Wire) -> bool {
        while let Some(mut run) = self.waiting.pop_front() {
            let admitted = self.admit(now, &mut run.charge);
            if !admitted || !try_send(wire, &run.path, run.segment, &run.bytes) {
                self.waiting.push_front(run);
                return false;
            }
        }
        true
    }
}

/// Passes a run to the wire; returns false if the wire has no room. Any other error loses
/// the run, as the network might have: the retransmission timer handles it.
fn try_send(wire: &mut impl Wire, path: &Path, segment: usize, bytes: &[u8]) -> bool {
    match wire.send(path, segment, bytes) {
        Ok(()) => true,
        Err(SendError::WouldBlock) => false,
        Err(error) => {
            tracing::debug!("to {}: {error}", path.flow.destination);
            true
        }
    }
}
