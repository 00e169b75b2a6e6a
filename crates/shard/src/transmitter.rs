//! The way from an engine's batches to the wire.

use std::collections::VecDeque;

use ferroce_net::{IpIds, Properties, SendError, Source, WireSender};
use ferroce_roce::{Engine, Path, Time, Trailer};
use ferroce_wire::is_unreliable;

use crate::assembly::Assembly;
use crate::bugs::{Bug, Injected};
use crate::credits::{Admission, CREDIT_PATIENCE_NS, Charge, CreditPage, SendCredits};
use crate::faults::{Faults, Inbound, Outbound};
use crate::process::Process;
use crate::uc_connection::UcConnection;

/// Longest wait of a reliable run for room in memory. A receiver that needs longer is stopped:
/// one that waits for a processor gets it sooner. The requester retransmits the run.
const MEMORY_PATIENCE_NS: u64 = 20_000_000;
/// Bytes from which on sending takes longer than to take a lock again.
const LONG: usize = 8192;

/// Sends the packets of an engine.
///
/// It is part of the [`Core`](crate::Core), except while a thread sends: then that thread
/// has it, and others may use the core. `load` takes packets of the engine
/// and assembles them. [`Transmitter::send`] needs neither the engine nor the memory of the
/// program: its packets are on their way.
pub struct Transmitter<S, P> {
    sender: S,
    outbox: Outbox<P>,
    /// The batch in progress; empty unless one of its runs waits.
    assembly: Assembly,
    trailer: Trailer,
    /// The provoked faults of packets to send; none unless some are in force.
    provoked: Option<Box<Outbound>>,
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
    /// The charge that the receiver has counted.
    charged: Option<Charge>,
    /// Begin of the wait.
    since: Time,
}

impl<S, P> core::fmt::Debug for Transmitter<S, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Transmitter").finish_non_exhaustive()
    }
}

impl<S: WireSender, P: AsRef<CreditPage>> Transmitter<S, P> {
    /// Creates a transmitter for a wire, with batches of up to `batch` packets.
    pub(crate) fn new(
        sender: S,
        properties: &Properties,
        page: P,
        batch: usize,
    ) -> Transmitter<S, P> {
        Transmitter {
            sender,
            outbox: Outbox {
                credits: SendCredits::new(page),
                waiting: VecDeque::new(),
                injected: Injected::default(),
            },
            assembly: Assembly::new(properties, batch),
            trailer: trailer(properties),
            provoked: None,
        }
    }

    #[cfg(feature = "bugs")]
    pub(crate) fn inject(&mut self, injected: Injected) {
        self.outbox.injected = injected;
    }

    /// Returns true while runs wait for room, in the socket or at a receiver.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        !self.outbox.waiting.is_empty()
    }

    /// Returns true if runs wait for room, or faults hold packets back that are due.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.is_blocked() || self.held_due().is_some_and(|due| due <= now)
    }

    /// Returns the time at which a packet is due that faults hold back.
    #[inline]
    pub(crate) fn held_due(&self) -> Option<Time> {
        self.provoked.as_ref()?.next_due()
    }

    /// Puts faults in force, or ends them.
    pub(crate) fn set_faults(&mut self, now: Time, faults: Option<&Faults>, numbered: bool) {
        self.send_held(now);
        self.provoked = faults.map(|faults| Box::new(Outbound::new(faults, numbered)));
    }

    /// Sends all packets that faults hold back.
    pub(crate) fn send_held(&mut self, now: Time) {
        let (sender, outbox) = (&mut self.sender, &mut self.outbox);
        if let Some(provoked) = &mut self.provoked {
            provoked.send_all(|path, segment, bytes| {
                let charge = Charge::of_packets(path, segment, bytes);
                outbox.send(now, sender, path, segment, bytes, charge);
            });
        }
    }

    /// Returns true if it has no packet, and the engine was told about those that it had.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.assembly.is_empty()
    }

    /// Returns true if [`Transmitter::send`] takes longer than to take a lock again.
    pub fn is_long(&self) -> bool {
        self.is_blocked() || self.assembly.bytes() >= LONG
    }

    /// Returns true if [`Transmitter::send`] takes less time than to read the clock afterwards: it
    /// copies one short run to memory.
    #[inline]
    pub fn is_instant(&self) -> bool {
        !self.is_blocked() && self.provoked.is_none() && self.assembly.is_short_in_memory()
    }

    /// Returns the sending half of the wire.
    pub(crate) fn sender_mut(&mut self) -> &mut S {
        &mut self.sender
    }

    /// Binds a UDP source port.
    pub(crate) fn bind(&mut self, want: u16, source: Source) -> std::io::Result<u16> {
        let port = self.sender.bind(want, source)?;
        if let Some(provoked) = &self.provoked {
            provoked.bound(port);
        }
        Ok(port)
    }

    /// Drops the runs of a UC connection that wait for room.
    pub(crate) fn drop_waiting(&mut self, connection: &UcConnection) {
        self.outbox.drop_waiting(connection);
    }

    /// Ends the batch that was sent, and takes the next packets: those that another thread
    /// assembled meanwhile, or else those of the engine. Returns false if there are none, or
    /// if runs wait for room. UC and UD sends complete once the wire has accepted the whole
    /// batch: the program may end then.
    pub(crate) fn load(
        &mut self,
        now: Time,
        engine: &mut Engine,
        process: &mut impl Process,
        next: Option<&mut Assembly>,
        judge: &mut Option<Box<Inbound>>,
    ) -> bool {
        if self.is_blocked() {
            return false;
        }
        self.assembly.finish(now, engine);
        match next {
            Some(next) if !next.is_empty() => {
                core::mem::swap(&mut self.assembly, next);
                true
            }
            // Most calls after a send end here.
            _ if !engine.has_packets() => false,
            _ => self
                .assembly
                .fill(now, engine, process, self.trailer, judge),
        }
    }

    /// Sends the runs that wait, and then the assembled ones. Runs that find no room wait.
    pub fn send(&mut self, now: Time) {
        let sender = &mut self.sender;
        self.outbox.send_waiting(now, sender);
        if self.provoked.is_some() {
            return self.send_through_faults(now);
        }
        let (runs, buffer) = self.assembly.runs();
        for run in runs {
            let bytes = &buffer[run.bytes.clone()];
            self.outbox
                .send(now, sender, &run.path, run.segment, bytes, run.charge);
        }
        self.assembly.forget_runs();
    }
}

impl<S: WireSender, P: AsRef<CreditPage>> Transmitter<S, P> {
    /// Sends the assembled runs, as far as faults let them pass.
    #[cold]
    fn send_through_faults(&mut self, now: Time) {
        let Transmitter {
            sender,
            outbox,
            assembly,
            provoked: Some(provoked),
            ..
        } = self
        else {
            return;
        };
        let mut send = |path: &Path, segment, bytes: &[u8]| {
            let charge = Charge::of_packets(path, segment, bytes);
            outbox.send(now, sender, path, segment, bytes, charge);
        };
        provoked.send_due(now, &mut send);
        let (runs, buffer) = assembly.runs();
        for run in runs {
            let bytes = &buffer[run.bytes.clone()];
            provoked.pass(now, &run.path, run.segment, bytes, &run.fates, &mut send);
        }
        assembly.forget_runs();
    }
}

impl<P: AsRef<CreditPage>> Outbox<P> {
    /// Sends a run, or stores it if there is no room.
    fn send(
        &mut self,
        now: Time,
        sender: &mut impl WireSender,
        path: &Path,
        segment: usize,
        bytes: &[u8],
        mut charge: Option<Charge>,
    ) {
        let mut charged = None;
        let first = self.waiting.is_empty() || self.injected.has(Bug::OvertakeWaitingRun);
        if first && self.admit(now, &mut charge, &mut charged) {
            match try_send(sender, path, segment, bytes) {
                Attempt::Sent => return,
                Attempt::Lost => return self.refund(charged),
                Attempt::NoRoom => {}
            }
        }
        if self.injected.has(Bug::LoseWaitingRun) {
            return;
        }
        self.waiting.push_back(WaitingRun {
            path: *path,
            segment,
            bytes: bytes.into(),
            charge,
            charged,
            since: now,
        });
    }

    /// Gives back the room of a run that is lost.
    fn refund(&mut self, charge: Option<Charge>) {
        if let Some(charge) = charge
            && !self.injected.has(Bug::ForgetRefund)
        {
            self.credits.refund(charge);
        }
    }

    /// Returns true if the receiver has room for a charge. Clears the charge then, so that a
    /// run that has to wait for the socket is charged once.
    fn admit(
        &mut self,
        now: Time,
        charge: &mut Option<Charge>,
        charged: &mut Option<Charge>,
    ) -> bool {
        let Some(wanted) = *charge else {
            return true;
        };
        match self.credits.admit(wanted, now) {
            Admission::MustWait => return false,
            Admission::Charged => *charged = Some(wanted),
            Admission::Unlimited => {}
        }
        if !self.injected.has(Bug::ChargeTwice) {
            *charge = None;
        }
        true
    }

    /// Drops the waiting runs of a UC connection, and gives back their room.
    fn drop_waiting(&mut self, connection: &UcConnection) {
        let (dropped, kept): (VecDeque<_>, VecDeque<_>) = core::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|run| connection.owns(&run.path, run.segment, &run.bytes));
        self.waiting = kept;
        for run in dropped {
            self.refund(run.charged);
        }
    }

    /// Sends waiting runs in order. Returns false if one still finds no room.
    fn send_waiting(&mut self, now: Time, sender: &mut impl WireSender) -> bool {
        while let Some(mut run) = self.waiting.pop_front() {
            let admitted = self.admit(now, &mut run.charge, &mut run.charged);
            let attempt = match admitted {
                true => try_send(sender, &run.path, run.segment, &run.bytes),
                false => Attempt::NoRoom,
            };
            match attempt {
                Attempt::Sent => continue,
                Attempt::Lost => {}
                Attempt::NoRoom if admitted && run.is_too_late(now) => {
                    sender.give_up(&run.path, &run.bytes);
                }
                Attempt::NoRoom => {
                    self.waiting.push_front(run);
                    return false;
                }
            }
            self.refund(run.charged);
        }
        true
    }
}

impl WaitingRun {
    /// Returns true if the receiver of packets in memory has made no room for so long that the
    /// run is dropped, as a full socket buffer would. Other receivers wait behind it.
    fn is_too_late(&self, now: Time) -> bool {
        let patience = match is_unreliable(&self.bytes) {
            true => CREDIT_PATIENCE_NS,
            false => MEMORY_PATIENCE_NS,
        };
        self.path.in_memory && now.nanos_since(self.since) > patience
    }
}

/// Returns the kind of ICRCs that the receivers of a wire expect.
pub(crate) fn trailer(properties: &Properties) -> Trailer {
    match properties.ip_ids {
        IpIds::Numbered => Trailer::Numbered,
        IpIds::Zero => Trailer::Unnumbered,
    }
}

/// The result of passing a run to the wire.
enum Attempt {
    Sent,
    NoRoom,
    /// An error lost the run, as the network might have: the retransmission timer handles it.
    Lost,
}

/// Passes a run to the wire.
fn try_send(sender: &mut impl WireSender, path: &Path, segment: usize, bytes: &[u8]) -> Attempt {
    match sender.send(path, segment, bytes) {
        Ok(()) => Attempt::Sent,
        Err(SendError::WouldBlock) => Attempt::NoRoom,
        Err(error) => {
            tracing::debug!("to {}: {error}", path.flow.destination);
            Attempt::Lost
        }
    }
}
