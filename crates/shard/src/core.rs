//! The core of a shard: an engine, and the decisions about its packets.

use std::net::IpAddr;

use ferroce_net::{IpIds, Scope, Source, Wire};
use ferroce_roce::{Engine, Time};

use crate::assembly::Assembly;
use crate::bugs::{Bug, Injected};
use crate::credits::{CreditPage, ReceiveCredits};
use crate::deferred_ack::DeferredAck;
use crate::faults::{Faults, Inbound};
use crate::process::Process;
use crate::sending::Sending;
use crate::transmitter::Transmitter;
use crate::unmatched::UnmatchedPackets;

/// Datagrams received in a turn before others get the lock, and peers their ACKs: only a
/// part of what peers may have in flight.
pub const RECEIVE_BUDGET: usize = 128;
/// Time in which a program that polled is expected to poll again, on a machine of usual speed.
pub const STANDBY_NS: u64 = 80_000;

/// A caller that received from one IP family looks at the other once in this many turns: a
/// system call costs 0.3 us.
pub(crate) const IDLE_FAMILY_TURNS: u32 = 64;
/// Most datagrams in a turn of a poller whose ACKs are deferred.
const MAX_DEFERRED: usize = 4;
/// Time until a run that found no room, or a packet without a receive, is tried again. No
/// descriptor reports when there is room.
const RETRY_NS: u64 = 200_000;
/// Packets of a batch: several full runs.
const BATCH: usize = 256;

/// The caller of a turn.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Caller {
    /// A program that polls. It comes again soon, and may post a response itself.
    Poller,
    /// The progress thread, which sleeps until something happens.
    ProgressThread,
    /// A thread that slept until a packet arrived, in a program that may post a response to
    /// it at once.
    ExpectsPost,
    /// The progress thread, right after a turn that received many datagrams.
    Stream,
}

/// An engine with its wire. The owner serialises all calls.
pub struct Core<W: Wire, P> {
    /// The queue pairs.
    pub engine: Engine,
    pub(crate) wire: W,
    pub(crate) credits: ReceiveCredits<P>,
    pub(crate) unmatched: UnmatchedPackets,
    /// A received ACK that the engine gets in the next turn.
    pub(crate) received_ack: DeferredAck,
    /// None while a thread sends.
    pub(crate) transmitter: Option<Sending<W, P>>,
    /// Packets that were assembled while a thread sends: the next that it sends. None before
    /// the first time that this happens.
    pub(crate) prepared: Option<Box<Assembly>>,
    /// True if threads assemble packets for the one that sends.
    pub(crate) prepares: bool,
    /// Most packets of a batch.
    pub(crate) batch: usize,
    /// True if ACKs for the datagrams of the last turn have not been sent.
    pub(crate) ack_deferred: bool,
    /// True if posted work requests wait for more of them.
    pub(crate) posts_wait: bool,
    /// Time after which both are sent without a further call.
    pub(crate) standby_ns: u64,
    /// End of the last send.
    pub(crate) sent_at: Time,
    /// Time of the last look at the sockets.
    pub(crate) sockets_read_at: Time,
    /// Time of the last packet from a socket.
    pub(crate) sockets_found_at: Time,
    /// True if the last turn received packets through memory.
    found_in_memory: bool,
    pub(crate) turns: u32,
    /// The faults; none unless some are in force.
    pub(crate) faults: Option<Box<Inbound>>,
    pub(crate) injected: Injected,
}

impl<W: Wire, P> core::fmt::Debug for Core<W, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

impl<W: Wire, P: AsRef<CreditPage> + Clone> Core<W, P> {
    /// Creates a core. Opens the credits of the wire's slot in `page`.
    ///
    /// # Errors
    /// If the wire cannot be set up.
    pub fn new(engine: Engine, wire: W, page: P) -> std::io::Result<Core<W, P>> {
        Core::with_batch(engine, wire, page, BATCH)
    }

    /// Creates a core that sends batches of up to `batch` packets.
    ///
    /// # Errors
    /// If the wire cannot be set up.
    pub fn with_batch(
        engine: Engine,
        mut wire: W,
        page: P,
        batch: usize,
    ) -> std::io::Result<Core<W, P>> {
        // Only datagram queue pairs show hop limits to programs.
        wire.report_hop_limits(false)?;
        let properties = wire.properties();
        let (slot, buffer) = (properties.slot, properties.receive_buffer);
        let sender = wire.take_sender();
        let transmitter = Transmitter::new(sender, &properties, page.clone(), batch);
        Ok(Core {
            engine,
            credits: ReceiveCredits::new(page, slot, buffer),
            unmatched: UnmatchedPackets::default(),
            received_ack: DeferredAck::default(),
            transmitter: Some(Box::new(transmitter)),
            prepared: None,
            prepares: false,
            batch,
            wire,
            ack_deferred: false,
            posts_wait: false,
            standby_ns: STANDBY_NS,
            sent_at: Time::ZERO,
            sockets_read_at: Time::ZERO,
            sockets_found_at: Time::ZERO,
            found_in_memory: false,
            turns: 0,
            faults: None,
            injected: Injected::default(),
        })
    }

    /// Sets the time after which deferred ACKs and waiting posts are sent without a further call:
    /// [`STANDBY_NS`] by default, and longer on a slow machine. If it were shorter than the standby
    /// of the progress thread, each message would wake that thread.
    pub fn set_standby(&mut self, ns: u64) {
        self.standby_ns = ns;
    }

    /// Enables one injected bug of the shard.
    #[cfg(feature = "bugs")]
    pub fn set_bug(&mut self, bug: Option<Bug>) {
        let injected = Injected { bug };
        self.injected = injected;
        self.credits.injected = injected;
        self.unmatched.injected = injected;
        if let Some(transmitter) = &mut self.transmitter {
            transmitter.inject(injected);
        }
    }

    /// Returns the wire.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// Returns the wire, to change it.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Returns both halves of the wire, to change them; none while a thread sends.
    pub fn wire_halves(&mut self) -> Option<(&mut W, &mut W::Sender)> {
        let transmitter = self.transmitter.as_mut()?;
        Some((&mut self.wire, transmitter.sender_mut()))
    }

    /// Puts faults in force, or ends them. Packets that wait to be sent leave at once; received
    /// ones that wait are lost. Does nothing while a thread sends.
    pub fn set_faults(&mut self, now: Time, faults: Option<&Faults>) {
        let properties = self.wire.properties();
        let numbered = properties.ip_ids == IpIds::Numbered;
        if let Some(faults) = faults {
            faults.senders.add(u16::from(properties.slot));
        }
        if let Some(transmitter) = &mut self.transmitter {
            transmitter.set_faults(now, faults, numbered);
            self.faults = faults.map(|faults| Box::new(Inbound::new(faults)));
        }
    }

    /// Sends the packets that faults hold back, before the process or a queue pair ends.
    pub fn send_held(&mut self, now: Time) {
        if let Some(transmitter) = &mut self.transmitter {
            transmitter.send_held(now);
        }
    }

    /// Receives datagrams, handles timers and begins to send. Returns the number of datagrams,
    /// and the packets to send, as [`Core::begin_transmit`] does.
    pub fn turn(
        &mut self,
        now: Time,
        process: &mut impl Process,
        caller: Caller,
    ) -> (usize, Option<Sending<W, P>>) {
        self.turns = self.turns.wrapping_add(1);
        let scope = match caller {
            _ if self.turns.is_multiple_of(IDLE_FAMILY_TURNS) => Scope::AllFamilies,
            // The caller sleeps on the sockets next.
            Caller::ExpectsPost if self.found_in_memory => Scope::Memory,
            Caller::ProgressThread | Caller::ExpectsPost => Scope::EitherFamily,
            Caller::Poller if self.sockets_can_wait(now) => Scope::Memory,
            Caller::Poller => Scope::OneMessage,
            Caller::Stream => Scope::LastFamily,
        };
        if scope != Scope::Memory {
            self.sockets_read_at = now;
        }
        // The engine gets it first of all.
        let releases_ack = !self.received_ack.is_empty();
        let received = self.receive(now, process, caller, scope);
        self.found_in_memory = received > 0 && self.wire.is_memory_busy();
        if received > 0 && !self.found_in_memory {
            self.sockets_found_at = now;
        }
        if self.engine.next_timeout().is_some_and(|due| due <= now) {
            self.engine.handle_timeout(now);
            self.observe_decisions(process);
        }
        // The program has waited for these datagrams and perhaps posts a response. Our ACKs
        // leave with that response, or in the next turn.
        let expects_post = matches!(caller, Caller::Poller | Caller::ExpectsPost);
        let deferred_before = self.ack_deferred;
        // Posts that wait are sent now: they waited for a packet such as these.
        let defer = expects_post
            && !self.posts_wait
            && match received {
                // The program sees the completion of its own message only now.
                0 => deferred_before && releases_ack,
                _ => !deferred_before && received <= MAX_DEFERRED,
            };
        if !defer {
            return (received, self.begin_transmit(now, process));
        }
        self.ack_deferred = true;
        self.report(process);
        (received, None)
    }

    /// Returns the time of the next turn if no packet arrives before; none if there is
    /// nothing to do until a packet arrives or the program posts.
    #[inline]
    pub fn next_deadline(&self, now: Time) -> Option<Time> {
        // Most calls end here.
        if self.is_idle() && self.faults.is_none() {
            return self.engine.next_timeout();
        }
        self.deadline_of_waiting(now)
    }

    /// Returns the same as [`Core::next_deadline`] if something waits here.
    #[inline(never)]
    fn deadline_of_waiting(&self, now: Time) -> Option<Time> {
        let retry = (self.is_blocked() || self.has_unmatched()).then_some(RETRY_NS);
        // The program may not poll again after all.
        let acks = self.ack_deferred && !self.injected.has(Bug::ForgetAckDeadline);
        let posts = self.posts_wait && !self.injected.has(Bug::ForgetWaitingPosts);
        let standby = (acks || posts || !self.received_ack.is_empty()).then_some(self.standby_ns);
        let timer = self.engine.next_timeout().into_iter();
        let soon = retry.into_iter().chain(standby);
        let next = timer.chain(soon.map(|ns| now.after_nanos(ns))).min();
        match &self.faults {
            None => next,
            Some(faults) => next
                .into_iter()
                .chain(faults.next_due())
                .chain(self.held_due())
                .min(),
        }
    }

    /// Returns the time at which a packet is due that faults hold back.
    fn held_due(&self) -> Option<Time> {
        self.transmitter.as_ref()?.held_due()
    }

    /// Returns true if posted work requests wait for more of them.
    pub fn has_waiting_posts(&self) -> bool {
        self.posts_wait
    }

    /// Returns true if ACKs for received datagrams, or posted work requests, have not been
    /// sent.
    #[inline]
    pub fn has_deferred(&self) -> bool {
        self.ack_deferred || self.posts_wait
    }

    /// Returns true while runs wait for room, in the socket or at a receiver.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        let transmitter = self.transmitter.as_ref();
        transmitter.is_some_and(|transmitter| transmitter.is_blocked())
    }

    /// Returns true while unreliable packets wait for a receive.
    #[inline]
    pub fn has_unmatched(&self) -> bool {
        !self.unmatched.is_empty()
    }

    /// Returns the number of received packets that the engine has not seen yet.
    pub fn held_packets(&self) -> usize {
        self.unmatched.len() + usize::from(!self.received_ack.is_empty())
    }

    /// Returns true if neither a packet nor an ACK is waiting here.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.is_blocked()
            && !self.has_unmatched()
            && !self.has_deferred()
            && self.received_ack.is_empty()
    }

    /// Gives a queue pair a UDP source port that the wire can send from. Returns the port.
    ///
    /// # Errors
    /// If no port is available, or another thread sends.
    pub fn choose_port(&mut self, qpn: u32, want: u16, source: Source) -> std::io::Result<u16> {
        let transmitter = self.transmitter.as_mut();
        let port = transmitter
            .ok_or(std::io::ErrorKind::ResourceBusy)?
            .bind(want, source)?;
        if let Err(error) = self.engine.set_source_port(qpn, port) {
            tracing::debug!("{error}");
        }
        Ok(port)
    }

    /// Prepares for datagram queue pairs, which show the hop limit to programs.
    pub fn expect_datagrams(&mut self) {
        if let Err(error) = self.wire.report_hop_limits(true) {
            tracing::warn!("received datagrams have no hop limit: {error}");
        }
    }

    /// Joins a multicast group.
    ///
    /// # Errors
    /// If the wire cannot join.
    pub fn join_multicast(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.wire.join_multicast(group)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// If the wire cannot leave.
    pub fn leave_multicast(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.wire.leave_multicast(group)
    }

    /// Chooses whether the engine records its decisions for the process, which observes.
    pub fn observe(&mut self, observed: bool) {
        self.engine.observe(observed);
    }

    /// Passes decisions that belong to no received packet to the process.
    #[inline]
    fn observe_decisions(&mut self, process: &mut impl Process) {
        if !self.engine.decisions().is_empty() {
            self.pass_decisions(process);
        }
    }

    fn pass_decisions(&mut self, process: &mut impl Process) {
        match process.observes() {
            true => process.decided(self.engine.decisions()),
            // The observer has gone.
            false => self.engine.observe(false),
        }
        self.engine.forget_decisions();
    }

    /// Returns true if [`Core::report`] has something to report.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.engine.has_events() || !self.engine.decisions().is_empty()
    }

    /// Reports the engine's events.
    #[inline]
    pub fn report(&mut self, process: &mut impl Process) {
        self.observe_decisions(process);
        while let Some(event) = self.engine.poll_event() {
            process.report(event);
        }
    }
}
