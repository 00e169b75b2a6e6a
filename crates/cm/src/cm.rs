//! The connection manager of one node: its tables, and the entry points for messages,
//! timeouts and calls. The files `active`, `passive`, `reject`, `close` and `sidr` hold
//! the state transitions of each role.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::answer_cache::{AnswerCache, AnswerKey};
use crate::bugs::Bug;
use crate::connection::{Connection, Ports, RemoteKey};
use crate::listener::Listeners;
use crate::listener_gap::ListenerGaps;
use crate::mad::MAD_LEN;
use crate::message::Message;
use crate::sidr::Sidrs;
use crate::{
    Address, CallError, Config, ConnId, Event, Ignored, ListenAddress, ListenerId, Mad,
    QpParameters, State, Time,
};

/// The connection manager of one node.
#[derive(Debug)]
pub struct Cm {
    pub(crate) config: Config,
    rng: ChaCha20Rng,
    /// Upper half of the transaction IDs of this node.
    agent: u32,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// Connections by the peer's communication ID, to detect duplicate REQs.
    pub(crate) by_remote: BTreeMap<RemoteKey, u32>,
    /// Connections by the peer's queue pair, to detect stale connections.
    pub(crate) by_qpn: BTreeMap<RemoteKey, u32>,
    pub(crate) timers: BTreeSet<(Time, u32)>,
    pub(crate) listeners: Listeners,
    pub(crate) gaps: ListenerGaps,
    pub(crate) sidrs: Sidrs,
    pub(crate) answer_cache: AnswerCache,
    /// No REJ for a missing listener or connection is sent before this time, so that
    /// restarted programs can listen again and resume their connections.
    hold_until: Time,
    pub(crate) out: Outbox,
    pub(crate) events: VecDeque<Event>,
    #[cfg(test)]
    pub(crate) bug: Option<Bug>,
}

/// A MAD to send from queue pair 1 to queue pair 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Source and destination address.
    pub address: Address,
    /// The bytes of the MAD.
    pub mad: Box<[u8; MAD_LEN]>,
}

#[derive(Default, Debug)]
pub(crate) struct Outbox(VecDeque<Transmit>);

impl Outbox {
    pub(crate) fn send(&mut self, address: Address, mad: &[u8; MAD_LEN]) {
        let mad = Box::new(*mad);
        self.0.push_back(Transmit { address, mad });
    }
}

impl Cm {
    /// Returns a connection manager without connections. The seed determines its IDs and
    /// PSNs, so it must be unpredictable.
    pub fn new(config: Config, seed: [u8; 32]) -> Cm {
        let mut rng = ChaCha20Rng::from_seed(seed);
        let agent = rng.next_u32();
        Cm {
            config,
            rng,
            agent,
            connections: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            timers: BTreeSet::new(),
            listeners: Listeners::default(),
            gaps: ListenerGaps::default(),
            sidrs: Sidrs::default(),
            answer_cache: AnswerCache::new(config.max_cached_answers),
            hold_until: Time::ZERO,
            out: Outbox::default(),
            events: VecDeque::new(),
            #[cfg(test)]
            bug: None,
        }
    }

    /// Suppresses rejections until this time, after a restart of the connection manager.
    ///
    /// Programs may still restore their listeners and established connections. A request
    /// for a missing listener or connection gets no answer, so that the peer retransmits
    /// it.
    pub fn hold_refusals(&mut self, until: Time) {
        self.hold_until = until;
    }

    /// Listens for requests for a service. Up to `backlog` requests wait for the program.
    /// Further requests are dropped without an answer, so that the peers retransmit them.
    ///
    /// # Errors
    /// If the service already has a listener at this address.
    pub fn listen(
        &mut self,
        service_id: u64,
        address: ListenAddress,
        backlog: usize,
    ) -> Result<ListenerId, CallError> {
        let new = self.listeners.insert(service_id, address, backlog);
        self.gaps.end(service_id);
        new.ok_or(CallError::InUse)
    }

    /// Notes that a program has bound the port of a service, and may listen soon. Requests that
    /// arrive in the next [`LISTENER_GAP`](crate::LISTENER_GAP) wait for the listener.
    pub fn expect_listener(&mut self, now: Time, service_id: u64) {
        self.gaps.begin(now, service_id);
    }

    /// Removes a listener. Requests that the program has not taken are rejected. Requests that
    /// arrive in the next [`LISTENER_GAP`](crate::LISTENER_GAP) wait for a new listener.
    ///
    /// # Errors
    /// If there is no such listener.
    pub fn unlisten(&mut self, now: Time, listener: ListenerId) -> Result<(), CallError> {
        let pending = |c: &&Connection| c.pending_for == Some(listener);
        let waiting: Vec<u32> = self
            .connections
            .values()
            .filter(pending)
            .map(|c| c.local_id)
            .collect();
        for id in waiting {
            self.destroy(now, ConnId(id))?;
        }
        self.sidr_refuse_all(now, listener);
        let service_id = self.listeners.remove(listener);
        self.gaps.begin(now, service_id.ok_or(CallError::Unknown)?);
        Ok(())
    }

    /// Records that the program has taken a request, which then no longer counts against
    /// the backlog. `accept` and `reject` do this, too.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn taken(&mut self, conn: ConnId) -> Result<(), CallError> {
        let connection = self
            .connections
            .get_mut(&conn.0)
            .ok_or(CallError::Unknown)?;
        release(&mut self.listeners, &mut connection.pending_for);
        Ok(())
    }

    /// Processes a datagram for queue pair 1.
    ///
    /// # Errors
    /// The reason why the datagram changed no state. It may have been answered all the
    /// same.
    pub fn receive(&mut self, now: Time, address: Address, bytes: &[u8]) -> Result<(), Ignored> {
        self.answer_cache.expire(now);
        let mad = Mad::decode(bytes)?;
        self.handle_mad(now, address, mad)
    }

    fn handle_mad(&mut self, now: Time, address: Address, mad: Mad) -> Result<(), Ignored> {
        match &mad.message {
            Message::Req(req) => self.handle_req(now, address, &mad, req),
            Message::Mra(mra) => self.handle_mra(now, address, mra),
            Message::Rej(rej) => self.handle_rej(now, address, rej),
            Message::Rep(rep) => self.handle_rep(now, address, &mad, rep),
            Message::Rtu(rtu) => self.handle_rtu(address, rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, address, &mad, dreq),
            Message::Drep(drep) => self.handle_drep(now, address, drep),
            Message::SidrReq(req) => self.handle_sidr_req(now, address, &mad, req),
            Message::SidrRep(rep) => self.handle_sidr_rep(address, &mad, rep),
            Message::Lap(lap) => self.handle_lap(address, &mad, lap),
            Message::Apr(_) => Err(Ignored::State),
        }
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.0.pop_front()
    }

    /// Returns the next event for the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        let transition = match event {
            Event::Request(_) => Some((State::ReqRcvd, State::MraReqSent)),
            Event::Response { .. } => Some((State::RepRcvd, State::MraRepSent)),
            _ => None,
        };
        // From now on the program decides about the request or response. In the new state
        // a duplicate REQ or REP is answered with an MRA. No MRA is sent unasked.
        if let (Some((before, after)), Some(conn)) = (transition, event.conn())
            && let Some(connection) = self.connections.get_mut(&conn.0)
            && connection.state == before
        {
            connection.state = after;
        }
        Some(event)
    }

    /// Returns the time at which the caller must call `handle_timeout`.
    pub fn next_timeout(&self) -> Option<Time> {
        let connections = self.timers.first().map(|(time, _)| *time);
        [
            connections,
            self.sidrs.next_timeout(),
            self.answer_cache.next_timeout(),
            self.gaps.next_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Processes all deadlines up to `now`.
    ///
    /// A caller that was delayed should first pass the datagrams that have arrived to
    /// `receive`: a duplicate REQ is recognised only while its connection exists.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((time, id)) = self.timers.first().copied()
            && time <= now
        {
            self.connection_timeout(now, id);
        }
        self.sidr_timeouts(now);
        self.answer_cache.expire(now);
        while let Some((address, mad)) = self.gaps.take_due(now) {
            // As for a request that arrives now: no caller waits for the result.
            let _ignored = self.handle_mad(now, address, mad);
        }
    }

    /// Returns the state of a connection, or `None` if there is no such connection.
    pub fn state(&self, conn: ConnId) -> Option<State> {
        self.connections.get(&conn.0).map(|c| c.state)
    }

    /// Returns the attributes for the queue pair of a connection, as far as they are known.
    pub fn qp_parameters(&self, conn: ConnId) -> Option<QpParameters> {
        self.connections.get(&conn.0).map(|c| c.qp)
    }

    /// Returns the addresses of a connection.
    pub fn address(&self, conn: ConnId) -> Option<Address> {
        self.connections.get(&conn.0).map(|c| c.address)
    }

    /// Returns the rdma_cm ports of a connection, if rdma_cm made it.
    pub fn ports(&self, conn: ConnId) -> Option<Ports> {
        self.connections.get(&conn.0).and_then(|c| c.ports)
    }

    /// Returns the number of connections in any state.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns true if there is no state except listeners.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty()
            && self.by_remote.is_empty()
            && self.by_qpn.is_empty()
            && self.timers.is_empty()
            && self.sidrs.is_empty()
            && self.gaps.is_empty()
            && self.answer_cache.len() == 0
            && self.out.0.is_empty()
            && self.events.is_empty()
    }
}

/// Functions that all roles share.
impl Cm {
    /// Returns an unused, random communication ID.
    pub(crate) fn new_id(&mut self) -> u32 {
        loop {
            let id = self.rng.next_u32();
            let used = self.connections.contains_key(&id)
                || self.sidrs.contains(id)
                || self.answer_cache.get(AnswerKey::Rep(id)).is_some();
            if id != 0 && !used {
                return id;
            }
        }
    }

    /// Returns true while rejections are suppressed after a restart.
    pub(crate) fn holds_refusals(&self, now: Time) -> bool {
        now < self.hold_until
    }

    pub(crate) fn new_psn(&mut self) -> u32 {
        self.rng.next_u32() & 0x00ff_ffff
    }

    /// Returns the transaction ID for a transaction that this communication ID starts.
    pub(crate) fn new_tid(&self, id: u32) -> u64 {
        u64::from(self.agent) << 32 | u64::from(id)
    }

    /// Looks up the connection that a message names by the local and the remote ID. The
    /// remote ID is 0 until the peer's first answer.
    pub(crate) fn find(&self, address: Address, local: u32, remote: u32) -> Result<u32, Ignored> {
        let connection = self.connections.get(&local);
        let connection = connection.filter(|c| c.remote_id == remote);
        let connection = connection.ok_or(Ignored::UnknownId)?;
        if connection.address != address && !self.bug(Bug::IgnoreAddress) {
            return Err(Ignored::Address);
        }
        Ok(local)
    }

    pub(crate) fn connection(&mut self, id: u32) -> &mut Connection {
        self.connections.get_mut(&id).expect("found before")
    }

    /// Looks up a connection that still belongs to a program, for a call of that program.
    pub(crate) fn owned_connection(&mut self, conn: ConnId) -> Result<&mut Connection, CallError> {
        let connection = self.connections.get_mut(&conn.0);
        connection.filter(|c| !c.orphan).ok_or(CallError::Unknown)
    }

    /// Queues an event for the program, unless the program has given up the connection.
    pub(crate) fn notify(&mut self, event: Event) {
        let orphan = event
            .conn()
            .and_then(|conn| self.connections.get(&conn.0))
            .is_some_and(|c| c.orphan);
        if !orphan {
            self.events.push_back(event);
        }
    }

    /// Drops the queued events of a connection.
    pub(crate) fn drop_events(&mut self, id: u32) {
        self.events.retain(|event| event.conn() != Some(ConnId(id)));
    }

    /// Removes a connection from all tables.
    pub(crate) fn remove(&mut self, id: u32) -> Connection {
        let mut connection = self.connections.remove(&id).expect("found before");
        connection.arm(&mut self.timers, None);
        release(&mut self.listeners, &mut connection.pending_for);
        remove_if(&mut self.by_remote, connection.remote_key(), id);
        remove_if(&mut self.by_qpn, connection.qpn_key(), id);
        connection
    }

    /// Returns true if this injected bug is active.
    #[cfg(test)]
    pub(crate) fn bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns false: only tests inject bugs.
    #[cfg(not(test))]
    #[allow(clippy::unused_self)]
    pub(crate) const fn bug(&self, _: Bug) -> bool {
        false
    }
}

/// Removes a request from the backlog of its listener.
pub(crate) fn release(listeners: &mut Listeners, pending_for: &mut Option<ListenerId>) {
    if let Some(listener) = pending_for.take().and_then(|id| listeners.get_mut(id)) {
        listener.pending -= 1;
    }
}

/// Removes a table entry if it belongs to this connection.
pub(crate) fn remove_if(table: &mut BTreeMap<RemoteKey, u32>, key: RemoteKey, id: u32) {
    if table.get(&key) == Some(&id) {
        table.remove(&key);
    }
}
