//! The engine: queue pairs of one shard, from datagrams in to packets out.

use core::net::IpAddr;
use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_wire::{Mtu, Packet};

use crate::attr::{AttrMask, QpAttr, QpCap, QpInit, QpType};
use crate::bugs::{Bug, Injected};
use crate::counters::{Counter, Counters};
use crate::error::VerbsError;
use crate::event::Event;
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

/// What an engine needs to know once.
#[derive(Clone, Debug)]
pub struct Config {
    /// Queue pair numbers it may give out.
    pub qpns: Range<u32>,
    /// How many of them come after all others. Peers remember the numbers of
    /// connections that have ended, and do not take them for new ones: whoever is
    /// given numbers of somebody else begins anywhere.
    pub skip_qpns: u32,
    /// The port's active MTU: the largest datagram of UD.
    pub port_mtu: Mtu,
    /// Whether the ICRC of received packets is checked.
    pub check_icrc: bool,
    /// Shortest silence, in nanoseconds, after which a peer is declared dead, whatever
    /// timeout and retry count the queue pair has; 0 if these alone decide.
    pub patience_ns: u64,
    /// In-flight bytes that a queue pair starts with.
    pub initial_window: u32,
    /// In-flight bytes that a queue pair never exceeds.
    pub max_window: u32,
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
        }
    }
}

/// What all queue pairs of an engine share.
pub(crate) struct Context {
    pub(crate) now: Time,
    pub(crate) config: Config,
    pub(crate) regions: Arc<Regions>,
    keys: KeyCache,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) ready: VecDeque<u32>,
    pub(crate) timers: Timers,
    pub(crate) injected: Injected,
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

    /// The program's address of local memory.
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

    /// The program's address of memory that a peer names.
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

/// Queue pairs, their timers and their packets.
///
/// Every method that may produce packets leaves them for
/// [`poll_transmit`](Engine::poll_transmit); the caller polls until it says
/// there is no more, sends, and calls [`finish_transmit`](Engine::finish_transmit).
pub struct Engine {
    qps: QpTable,
    groups: Groups,
    cx: Context,
}

impl Engine {
    /// An engine without queue pairs, using keys of `regions`.
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
                ready: VecDeque::new(),
                timers: Timers::default(),
                injected: Injected::default(),
            },
        }
    }

    /// Makes the engine misbehave, to see whether anybody notices.
    #[cfg(feature = "bugs")]
    pub fn set_bug(&mut self, bug: Option<Bug>) {
        self.cx.injected = Injected { bug };
    }

    /// The port's MTU has changed.
    pub fn set_port_mtu(&mut self, mtu: Mtu) {
        self.cx.config.port_mtu = mtu;
    }

    /// Creates a queue pair in RESET; returns its number and the sizes it got.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(u32, QpCap), VerbsError> {
        let qp = Qp::new(init, &self.cx.config)?;
        let cap = qp.cap();
        let qpn = match init.qp_type {
            QpType::Gsi => self.qps.insert_gsi(qp)?,
            _ => self.qps.insert(qp)?,
        };
        Ok((qpn, cap))
    }

    /// Changes attributes and state.
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

    /// Chooses the UDP source port of a queue pair's packets, where the caller
    /// cannot use the one that rxe's rule gives.
    pub fn set_source_port(&mut self, qpn: u32, port: u16) -> Result<(), VerbsError> {
        self.qps.verb(qpn)?.set_source_port(port);
        Ok(())
    }

    /// Has a connected queue pair take packets from one UDP port only: that of the first
    /// packet, if it has the expected PSN. For peers on the same host, where each process
    /// can send from every address but not from a port of another process. A change of the
    /// address ends it.
    pub fn pin_peer_port(&mut self, qpn: u32) -> Result<(), VerbsError> {
        self.qps.verb(qpn)?.pin_peer_port();
        Ok(())
    }

    /// Attributes, state and sizes.
    pub fn query_qp(&self, qpn: u32) -> Result<QpQuery, VerbsError> {
        Ok(self.qps.get(qpn).ok_or_else(|| no_qp(qpn))?.query())
    }

    /// Destroys a queue pair. What is posted vanishes without completion.
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
    #[inline]
    pub fn post_send(&mut self, now: Time, qpn: u32, wr: SendWr<'_>) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.post_send(&mut self.cx, wr)
    }

    /// Whether a post to the send queue would be taken, when `ahead` others are
    /// posted before it.
    pub fn check_send(&self, qpn: u32, wr: &SendWr<'_>, ahead: usize) -> Result<(), VerbsError> {
        let qp = self.qps.get(qpn).ok_or_else(|| no_qp(qpn))?;
        qp.check_send(wr, ahead).map(|_length| ())
    }

    /// Posts to the receive queue.
    #[inline]
    pub fn post_recv(&mut self, now: Time, qpn: u32, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.post_recv(&mut self.cx, wr)
    }

    /// Delivers a group's datagrams to a UD queue pair. Returns whether it is
    /// the first member here: then the caller joins the group.
    pub fn attach_multicast(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        let kind = self.qps.verb(qpn)?.kind();
        self.groups.attach(qpn, kind, group)
    }

    /// Ends delivery. Returns whether it was the last member here.
    pub fn detach_multicast(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        self.groups.detach(qpn, group)
    }

    /// Takes in a datagram from the network.
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

    /// Takes in the first packets of `run`, whose payload is packets of `segment` bytes
    /// one behind the other, as far as they continue a message in just the way that was to
    /// be expected. That is cheaper than [`receive`](Engine::receive), which takes the
    /// rest, one by one, and has the same effect. Returns how many they are.
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

    /// Whether [`receive`](Engine::receive) would drop this packet of a UC or UD queue
    /// pair because no receive is posted. A caller that can wait may ask again later.
    pub fn lacks_receive(&self, payload: &[u8]) -> bool {
        let packet = Packet::parse(payload).ok();
        packet.is_some_and(|packet| {
            let qp = self.qps.get(packet.dest_qpn());
            qp.is_some_and(|qp| qp.lacks_receive(packet.opcode()))
        })
    }

    /// Adds packets to `batch` until it is full or nothing is left to send.
    /// Returns whether there is more. The caller sends the batch and then calls
    /// [`finish_transmit`](Engine::finish_transmit), before the next batch; anything else
    /// may come in between.
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

    /// The packets whose faults the batch holds are not going to be sent: what they
    /// belong to fails. For a batch that will not be sent for a while; otherwise
    /// [`finish_transmit`](Engine::finish_transmit) does it.
    pub fn fail_unreadable(&mut self, now: Time, batch: &mut Batch) {
        self.cx.now = now;
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

    /// The batch has been sent, apart from packets whose faults it holds.
    /// Completes what completes by being sent, and empties the batch. A fault may
    /// make new packets ready: poll again until a batch stays empty.
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

    /// When [`handle_timeout`](Engine::handle_timeout) wants to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        self.cx.timers.next()
    }

    /// Lets timers that are due act.
    pub fn handle_timeout(&mut self, now: Time) {
        self.cx.now = now;
        while let Some((time, qpn)) = self.cx.timers.pop_due(now) {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.timer(&mut self.cx, time);
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.cx.events.pop_front()
    }

    /// The numbers of all queue pairs, in order.
    pub fn qpns(&self) -> impl Iterator<Item = u32> + '_ {
        self.qps.numbers()
    }
}

pub(crate) fn no_qp(qpn: u32) -> VerbsError {
    VerbsError::NotFound(format!("queue pair {qpn:#x} does not exist"))
}
