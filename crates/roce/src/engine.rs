//! The engine: the queue pairs of one shard, their timers and their packets.

mod datagram_routes;

use core::net::IpAddr;
use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_wire::{ACKNOWLEDGE_LEN, Flow, Mtu, Packet, Psn};

use crate::attr::{AttrMask, QpAttr, QpCap, QpInit, QpType};
use crate::bugs::{Bug, Injected};
use crate::counters::{Counter, Counters};
use crate::decision::{Decision, Decisions};
use crate::error::VerbsError;
use crate::event::{Event, ReceivedMessages};
use crate::memory::{MemRef, Memory};
use crate::multicast::Groups;
use crate::qp::{Qp, QpQuery, prediction};
use crate::qp_table::QpTable;
use crate::receive::{Datagram, Received};
use crate::region::{AccessError, KeyCache, Pd, Regions};
use crate::time::Time;
use crate::timers::Timers;
use crate::transmit::{Batch, Origin};
use crate::verbs::{Access, RecvWr, SendWr};

use datagram_routes::DatagramRoutes;
pub(crate) use datagram_routes::Route;

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Range of the queue pair numbers that this engine assigns.
    pub qpns: Range<u32>,
    /// Offset of the first QPN that this engine assigns. Peers remember the QPNs of closed
    /// connections and refuse them for new ones. So an engine that inherits a range starts
    /// at a random offset.
    pub skip_qpns: u32,
    /// The port's active MTU, which limits the length of UD messages.
    pub port_mtu: Mtu,
    /// True if the ICRC of received packets is checked.
    pub check_icrc: bool,
    /// Minimum time without a response, in nanoseconds, before a peer is declared dead. It
    /// extends shorter timeouts of queue pairs; 0 leaves them as they are.
    pub patience_ns: u64,
    /// Initial window of a queue pair: the bytes that may be in flight.
    pub initial_window: u32,
    /// Maximum window of a queue pair.
    pub max_window: u32,
    /// Maximum window of a queue pair whose packets travel through shared memory: as much as a
    /// ring holds.
    pub memory_window: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            qpns: 16..1 << 20,
            skip_qpns: 0,
            port_mtu: Mtu::Mtu1024,
            check_icrc: true,
            patience_ns: 0,
            initial_window: 64 << 10,
            max_window: 1 << 20,
            memory_window: 508 << 10,
        }
    }
}

/// The state that all queue pairs of an engine share.
pub(crate) struct Context {
    pub(crate) now: Time,
    pub(crate) config: Config,
    pub(crate) regions: Arc<Regions>,
    keys: KeyCache,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) received: ReceivedMessages,
    pub(crate) ready: VecDeque<u32>,
    pub(crate) timers: Timers,
    /// Routes of datagrams to queue pairs of this host.
    pub(crate) routes: DatagramRoutes,
    pub(crate) injected: Injected,
    pub(crate) decisions: Decisions,
    /// Code of the last failure, which the next failed completion reports.
    pub(crate) failure_code: u32,
}

impl Context {
    pub(crate) fn count(&self, counter: Counter) {
        self.counters.count(counter);
    }

    /// Returns true if the ICRC of received packets is to be checked.
    #[inline]
    pub(crate) fn checks_icrc(&self) -> bool {
        self.config.check_icrc && !self.has_bug(Bug::SkipIcrcCheck)
    }

    /// Checks a local key and returns the memory behind the address.
    #[inline]
    pub(crate) fn local(
        &self,
        lkey: u32,
        pd: &Pd,
        need: Access,
        addr: u64,
        length: u32,
    ) -> Result<MemRef, AccessError> {
        self.keys.local(&self.regions, lkey, pd, need, addr, length)
    }

    /// Checks a peer's key and returns the memory behind the address.
    #[inline]
    pub(crate) fn remote(
        &self,
        rkey: u32,
        pd: &Pd,
        qpn: u32,
        need: Access,
        va: u64,
        length: u64,
    ) -> Result<MemRef, AccessError> {
        self.keys
            .remote(&self.regions, rkey, pd, qpn, need, va, length)
    }

    #[inline]
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.injected.has(bug)
    }
}

/// A RoCE engine: queue pairs, their timers and their packets.
///
/// After a call that can produce packets, the caller fills a batch by
/// [`poll_transmit`](Engine::poll_transmit), sends it and calls
/// [`finish_transmit`](Engine::finish_transmit), until no packet is left.
pub struct Engine {
    qps: QpTable,
    groups: Groups,
    cx: Context,
}

impl Engine {
    /// Creates an engine without queue pairs that uses the keys of `regions`.
    pub fn new(config: Config, regions: Arc<Regions>, counters: Arc<Counters>) -> Engine {
        Engine {
            qps: QpTable::new(config.qpns.clone(), config.skip_qpns),
            groups: Groups::default(),
            cx: Context {
                now: Time::ZERO,
                config,
                regions,
                keys: KeyCache::default(),
                counters,
                events: VecDeque::new(),
                received: ReceivedMessages::default(),
                ready: VecDeque::new(),
                timers: Timers::default(),
                routes: DatagramRoutes::default(),
                injected: Injected::default(),
                decisions: Decisions::default(),
                failure_code: 0,
            },
        }
    }

    /// Enables one injected bug.
    #[cfg(feature = "bugs")]
    pub fn set_bug(&mut self, bug: Option<Bug>) {
        self.cx.injected = Injected { bug };
    }

    /// Chooses whether the engine records its decisions, for [`Engine::decisions`].
    pub fn observe(&mut self, observed: bool) {
        self.cx.decisions.observed = observed;
        self.cx.decisions.list.clear();
    }

    /// Returns the decisions since [`Engine::forget_decisions`], with the numbers of their queue
    /// pairs.
    #[inline]
    pub fn decisions(&self) -> &[(u32, Decision)] {
        &self.cx.decisions.list
    }

    /// Forgets the decisions, which an observer has seen.
    #[inline]
    pub fn forget_decisions(&mut self) {
        self.cx.decisions.list.clear();
    }

    /// Sets the port's active MTU.
    pub fn set_port_mtu(&mut self, mtu: Mtu) {
        self.cx.config.port_mtu = mtu;
    }

    /// Creates a queue pair in RESET. Returns its number and the granted sizes.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(u32, QpCap), VerbsError> {
        let qp = Qp::new(init, &self.cx.config)?;
        let cap = qp.cap();
        let qpn = match init.qp_type {
            QpType::Gsi => self.qps.insert_gsi(qp)?,
            _ => self.qps.insert(qp)?,
        };
        Ok((qpn, cap))
    }

    /// Changes attributes and state of a queue pair.
    pub fn modify_qp(
        &mut self,
        now: Time,
        qpn: u32,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.modify(&mut self.cx, attr, mask)
    }

    /// Fails a queue pair on behalf of a test: as an adapter does after an internal error, or
    /// with `overrun` as if its completion queue had overflowed.
    pub fn provoke_failure(&mut self, now: Time, qpn: u32, overrun: bool) {
        self.cx.now = now;
        if let Ok(qp) = self.qps.verb(qpn) {
            qp.provoke(&mut self.cx, overrun);
        }
    }

    /// Sets the UDP source port of a queue pair's packets, in place of the port by rxe's
    /// rule, which may be in use.
    pub fn set_source_port(&mut self, qpn: u32, port: u16) -> Result<(), VerbsError> {
        self.qps.verb(qpn)?.set_source_port(port);
        Ok(())
    }

    /// Makes a connected queue pair accept packets from one UDP port only: the source port
    /// of the first packet with the expected PSN.
    ///
    /// The call is for a peer on this host: other processes here can send from the peer's
    /// address, but not from its port. A change of the peer's address ends the restriction.
    pub fn pin_peer_port(&mut self, qpn: u32) -> Result<(), VerbsError> {
        self.qps.verb(qpn)?.pin_peer_port();
        Ok(())
    }

    /// Names the slot of a connected queue pair's peer on this host. Packets that come from that
    /// slot through shared memory are accepted, and if `sends`, packets to the peer travel
    /// through shared memory, too. A change of the peer's address ends both.
    pub fn set_local_peer(&mut self, qpn: u32, slot: u8, sends: bool) -> Result<(), VerbsError> {
        self.qps.verb(qpn)?.set_local_peer(slot, sends);
        Ok(())
    }

    /// Returns true if packets of a queue pair to its peer travel through shared memory.
    pub fn sends_in_memory(&self, qpn: u32) -> bool {
        self.qps.get(qpn).is_some_and(Qp::sends_in_memory)
    }

    /// Returns attributes, state and sizes of a queue pair.
    pub fn query_qp(&self, qpn: u32) -> Result<QpQuery, VerbsError> {
        Ok(self.qps.get(qpn).ok_or_else(|| no_qp(qpn))?.query())
    }

    /// Returns flow and destination QPN of the packets of a connected UC queue pair; none for
    /// other queue pairs.
    pub fn uc_destination(&self, qpn: u32) -> Option<(Flow, u32)> {
        let qp = self.qps.get(qpn)?;
        qp.uc_destination()
    }

    /// Destroys a queue pair. Posted work requests get no completion.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), VerbsError> {
        self.qps.verb(qpn)?;
        if self.groups.has_member(qpn) {
            return Err(VerbsError::Busy(format!(
                "queue pair {qpn:#x} is attached to a multicast group"
            )));
        }
        self.qps.remove(qpn);
        self.cx.regions.release_windows_of(qpn);
        Ok(())
    }

    /// Posts to the send queue.
    ///
    /// The function is always inlined: a call would copy the work request once more.
    #[inline(always)]
    pub fn post_send(&mut self, now: Time, qpn: u32, wr: SendWr<'_>) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.post_send(&mut self.cx, wr)
    }

    /// Checks a send work request as [`post_send`](Engine::post_send) does, when `ahead`
    /// others are posted before it.
    pub fn check_send(&self, qpn: u32, wr: &SendWr<'_>, ahead: usize) -> Result<(), VerbsError> {
        let qp = self.qps.get(qpn).ok_or_else(|| no_qp(qpn))?;
        qp.check_send(wr, ahead).map(|_length| ())
    }

    /// Returns true if the work requests that a queue pair has not sent yet may wait for more
    /// of them: a response is on its way, whose arrival lets the caller send them.
    #[inline]
    pub fn posts_may_wait(&self, qpn: u32) -> bool {
        self.qps.get(qpn).is_some_and(Qp::posts_may_wait)
    }

    /// Returns true if the datagrams that a UD queue pair has not sent yet may wait for more of
    /// them. No packet will arrive that lets the caller send them.
    #[inline]
    pub fn datagrams_may_wait(&self, qpn: u32) -> bool {
        self.qps.get(qpn).is_some_and(Qp::datagrams_may_wait)
    }

    /// Posts to the receive queue.
    #[inline]
    pub fn post_recv(&mut self, now: Time, qpn: u32, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.post_recv(&mut self.cx, wr)
    }

    /// Attaches a UD queue pair to a multicast group. Returns true if it is the group's first
    /// member in this engine: the caller then joins the group.
    pub fn attach_multicast(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        let kind = self.qps.verb(qpn)?.kind();
        self.groups.attach(qpn, kind, group)
    }

    /// Detaches a queue pair from a multicast group. Returns true if it was the group's last
    /// member in this engine: the caller then leaves the group.
    pub fn detach_multicast(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        self.groups.detach(qpn, group)
    }

    /// Returns the multicast groups that a queue pair is attached to.
    pub fn multicast_groups(&self, qpn: u32) -> Vec<IpAddr> {
        self.groups.of(qpn)
    }

    /// Processes a received datagram.
    pub fn receive(&mut self, now: Time, memory: &dyn Memory, datagram: &Datagram<'_>) -> Received {
        self.cx.now = now;
        let received =
            crate::receive::receive(&mut self.cx, &mut self.qps, &self.groups, memory, datagram);
        match received {
            Received::Accepted => {
                self.cx.count(Counter::RcvdPkts);
                let bytes = datagram.payload.len() as u64;
                self.cx.counters.add(Counter::RcvdBytes, bytes);
            }
            Received::Dropped(why) => self.cx.count(why.counter()),
        }
        received
    }

    /// Processes the first packets of `run`, as far as each is the predicted next packet of a
    /// message. Returns their number.
    ///
    /// The payload of `run` consists of packets of `segment` bytes. The caller passes the
    /// remaining packets one by one to [`receive`](Engine::receive), which has the same effect
    /// and costs more.
    pub fn receive_predicted(
        &mut self,
        now: Time,
        memory: &dyn Memory,
        run: &Datagram<'_>,
        segment: usize,
    ) -> usize {
        let Some(qpn) = prediction::candidate_qpn(run.payload) else {
            return 0;
        };
        let Some(qp) = self.qps.get_mut(qpn) else {
            return 0;
        };
        self.cx.now = now;
        let taken = qp.take_predicted(&mut self.cx, memory, run, segment);
        let counters = &self.cx.counters;
        counters.add(Counter::RcvdPkts, taken as u64);
        counters.add(Counter::RcvdBytes, (taken * segment) as u64);
        taken
    }

    /// True if [`receive`](Engine::receive) would drop this UC or UD packet because no
    /// receive is posted. The caller may keep the packet and try again later.
    pub fn lacks_receive(&self, payload: &[u8]) -> bool {
        let packet = Packet::parse(payload).ok();
        packet.is_some_and(|packet| {
            let qp = self.qps.get(packet.dest_qpn());
            qp.is_some_and(|qp| qp.lacks_receive(packet.opcode()))
        })
    }

    /// True if the program sees the order in which sends and receives of a queue pair complete. The
    /// packet is one to that queue pair.
    pub fn shows_completion_order(&self, packet: &[u8]) -> bool {
        let Some(&[a, b, c]) = packet.get(5..8).and_then(<[u8]>::first_chunk) else {
            return false;
        };
        let qp = self.qps.get(u32::from_be_bytes([0, a, b, c]));
        qp.is_some_and(Qp::shows_completion_order)
    }

    /// Notes how an ACK has arrived, before [`Engine::receive`] gets it: alone, or behind other packets of its run.
    pub fn note_ack_arrival(&mut self, ack: &[u8; ACKNOWLEDGE_LEN], alone: bool) {
        let [_, _, _, _, _, a, b, c, _, d, e, f, ..] = *ack;
        if let Some(qp) = self.qps.get_mut(u32::from_be_bytes([0, a, b, c])) {
            qp.note_ack_arrival(Psn::new(u32::from_be_bytes([0, d, e, f])), alone);
        }
    }

    /// Returns true if queue pairs may have packets to send.
    #[inline]
    pub fn has_packets(&self) -> bool {
        !self.cx.ready.is_empty()
    }

    /// Adds packets to `batch` until it is full or no packet is left. Returns true if packets
    /// are left.
    ///
    /// The caller sends the batch and calls [`finish_transmit`](Engine::finish_transmit). All
    /// other calls are possible in between, also this one for further batches: they are sent
    /// and finished in the same order.
    pub fn poll_transmit(&mut self, now: Time, batch: &mut Batch) -> bool {
        self.cx.now = now;
        while batch.has_room() {
            let Some(qpn) = self.cx.ready.pop_front() else {
                return false;
            };
            let Some(qp) = self.qps.get_mut(qpn) else {
                continue;
            };
            qp.transmit(&mut self.cx, batch);
        }
        !self.cx.ready.is_empty()
    }

    /// Fails the work requests and responses whose payload could not be read, according to
    /// the faults of the batch. Their packets are never sent.
    ///
    /// [`finish_transmit`](Engine::finish_transmit) includes this call. A caller that sends
    /// the batch much later calls it first.
    #[inline]
    pub fn fail_unreadable(&mut self, now: Time, batch: &mut Batch) {
        self.cx.now = now;
        if batch.has_faults() {
            self.fail_faulty(batch);
        }
    }

    #[cold]
    fn fail_faulty(&mut self, batch: &mut Batch) {
        for (qpn, origin, fault) in batch.faults() {
            let Some(qp) = self.qps.get_mut(qpn) else {
                continue;
            };
            match origin {
                Origin::Request(psn) => qp.request_fault(&mut self.cx, psn, fault),
                Origin::Response(psn) => qp.response_fault(&mut self.cx, psn, fault),
                Origin::Replay => {}
            }
        }
        batch.forget_faults();
    }

    /// Ends a batch whose packets, except those with faults, have been sent. Completes UC and
    /// UD sends, which complete once they are sent, and empties the batch. A fault can
    /// produce new packets, so the caller polls until a batch stays empty.
    pub fn finish_transmit(&mut self, now: Time, batch: &mut Batch) {
        self.fail_unreadable(now, batch);
        self.cx.counters.add(Counter::SentPkts, batch.len() as u64);
        self.cx.counters.add(Counter::SentBytes, batch.sent_bytes());
        for &(qpn, count) in &batch.handed_over {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.handed_over(&mut self.cx, count);
            }
        }
        batch.clear();
    }

    /// Returns the time of the next call of [`handle_timeout`](Engine::handle_timeout).
    #[inline]
    pub fn next_timeout(&self) -> Option<Time> {
        self.cx.timers.next()
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout(&mut self, now: Time) {
        self.cx.now = now;
        while let Some((time, qpn)) = self.cx.timers.pop_due(now) {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.timer(&mut self.cx, time);
            }
        }
    }

    /// Returns true if there is an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.cx.events.is_empty()
    }

    /// Removes and returns the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.cx.events.pop_front()
    }

    /// Returns the numbers of messages that were received whole.
    #[inline]
    pub fn received_messages(&self) -> ReceivedMessages {
        self.cx.received
    }

    /// Returns the numbers of all queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = u32> + '_ {
        self.qps.numbers()
    }
}

/// Returns the error for a queue pair that does not exist.
pub(crate) fn no_qp(qpn: u32) -> VerbsError {
    VerbsError::NotFound(format!("queue pair {qpn:#x} does not exist"))
}
