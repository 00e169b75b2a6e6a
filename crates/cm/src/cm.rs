//! The connection manager of one node: its tables, and how messages, time and
//! calls reach them. What each does to a connection stands in the files named
//! after the roles: `active`, `passive`, `reject`, `close`, `sidr`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::bugs::Bug;
use crate::connection::{Connection, Ports, RemoteKey};
use crate::listener::Listeners;
use crate::mad::MAD_LEN;
use crate::message::Message;
use crate::remember::{Asked, Remembered};
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
    /// Upper half of our transaction IDs.
    agent: u32,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// Connections by the peer's communication ID, to notice repeated REQs.
    pub(crate) by_remote: BTreeMap<RemoteKey, u32>,
    /// Connections by the peer's queue pair, to notice stale ones.
    pub(crate) by_qpn: BTreeMap<RemoteKey, u32>,
    pub(crate) timers: BTreeSet<(Time, u32)>,
    pub(crate) listeners: Listeners,
    pub(crate) sidrs: Sidrs,
    pub(crate) remembered: Remembered,
    /// Until then nobody is refused for want of somebody.
    hold_until: Time,
    pub(crate) out: Outbox,
    pub(crate) events: VecDeque<Event>,
    #[cfg(test)]
    pub(crate) bug: Option<Bug>,
}

/// A MAD to send from queue pair 1 to queue pair 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// From where to where.
    pub address: Address,
    /// What.
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
    /// A connection manager without connections. The seed decides its IDs and
    /// PSNs; it must be one that nobody can guess.
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
            sidrs: Sidrs::default(),
            remembered: Remembered::new(config.max_remembered),
            hold_until: Time::ZERO,
            out: Outbox::default(),
            events: VecDeque::new(),
            #[cfg(test)]
            bug: None,
        }
    }

    /// After a restart: until then, listeners and established connections may
    /// still come back. Peers who ask for one that is not there hear nothing
    /// rather than a no, and will ask again.
    pub fn hold_refusals(&mut self, until: Time) {
        self.hold_until = until;
    }

    /// Waits for requests for a service. Up to `backlog` of them wait for the
    /// program; more are dropped without an answer, so that the peers ask again.
    ///
    /// # Errors
    /// If somebody else waits for just that.
    pub fn listen(
        &mut self,
        service_id: u64,
        address: ListenAddress,
        backlog: usize,
    ) -> Result<ListenerId, CallError> {
        let new = self.listeners.insert(service_id, address, backlog);
        new.ok_or(CallError::InUse)
    }

    /// Stops waiting. Requests that the program has not taken are refused.
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
        match self.listeners.remove(listener) {
            true => Ok(()),
            false => Err(CallError::Unknown),
        }
    }

    /// The program has taken the request: it counts no longer as waiting.
    /// Answering it takes it, too.
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

    /// A datagram for queue pair 1 has arrived.
    ///
    /// # Errors
    /// If it changed nothing, the reason. It may have been answered all the
    /// same.
    pub fn receive(&mut self, now: Time, address: Address, bytes: &[u8]) -> Result<(), Ignored> {
        self.remembered.expire(now);
        let mad = Mad::decode(bytes)?;
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

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.0.pop_front()
    }

    /// The next thing to tell the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        let told = match event {
            Event::Request(_) => Some((State::ReqRcvd, State::MraReqSent)),
            Event::Response { .. } => Some((State::RepRcvd, State::MraRepSent)),
            _ => None,
        };
        // The program thinks about it from now on. A peer that asks again is
        // told so; nothing is sent before.
        if let (Some((before, after)), Some(conn)) = (told, event.conn())
            && let Some(connection) = self.connections.get_mut(&conn.0)
            && connection.state == before
        {
            connection.state = after;
        }
        Some(event)
    }

    /// When `handle_timeout` wants to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        let connections = self.timers.first().map(|(time, _)| *time);
        [
            connections,
            self.sidrs.next_timeout(),
            self.remembered.next_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed. Whoever was held up should first `receive` what has
    /// arrived meanwhile: a repeated REQ is known for one as long as its
    /// connection is.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((time, id)) = self.timers.first().copied()
            && time <= now
        {
            self.connection_timeout(now, id);
        }
        self.sidr_timeouts(now);
        self.remembered.expire(now);
    }

    /// State of a connection; `None` if it is gone.
    pub fn state(&self, conn: ConnId) -> Option<State> {
        self.connections.get(&conn.0).map(|c| c.state)
    }

    /// What is known for the queue pair of a connection.
    pub fn qp_parameters(&self, conn: ConnId) -> Option<QpParameters> {
        self.connections.get(&conn.0).map(|c| c.qp)
    }

    /// Between which addresses a connection is.
    pub fn address(&self, conn: ConnId) -> Option<Address> {
        self.connections.get(&conn.0).map(|c| c.address)
    }

    /// Between which ports of rdma_cm a connection is, if it is one of those.
    pub fn ports(&self, conn: ConnId) -> Option<Ports> {
        self.connections.get(&conn.0).and_then(|c| c.ports)
    }

    /// How many connections there are, in any state.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether nothing is kept for anybody but listeners.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty()
            && self.by_remote.is_empty()
            && self.by_qpn.is_empty()
            && self.timers.is_empty()
            && self.sidrs.is_empty()
            && self.remembered.len() == 0
            && self.out.0.is_empty()
            && self.events.is_empty()
    }
}

/// For all roles.
impl Cm {
    /// An ID that nobody uses and nobody can guess.
    pub(crate) fn new_id(&mut self) -> u32 {
        loop {
            let id = self.rng.next_u32();
            let used = self.connections.contains_key(&id)
                || self.sidrs.contains(id)
                || self.remembered.get(Asked::Rep(id)).is_some();
            if id != 0 && !used {
                return id;
            }
        }
    }

    /// Whether those a message may be for are perhaps not back yet.
    pub(crate) fn holds_refusals(&self, now: Time) -> bool {
        now < self.hold_until
    }

    pub(crate) fn new_psn(&mut self) -> u32 {
        self.rng.next_u32() & 0x00ff_ffff
    }

    /// Our transaction ID for what an ID starts.
    pub(crate) fn new_tid(&self, id: u32) -> u64 {
        u64::from(self.agent) << 32 | u64::from(id)
    }

    /// The connection that a message names by our ID and the peer's, which is 0
    /// while we do not know it.
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

    pub(crate) fn call(&mut self, conn: ConnId) -> Result<&mut Connection, CallError> {
        let connection = self.connections.get_mut(&conn.0);
        connection.filter(|c| !c.orphan).ok_or(CallError::Unknown)
    }

    /// Tells the program, if it still wants to hear.
    pub(crate) fn notify(&mut self, event: Event) {
        let orphan = event
            .conn()
            .and_then(|conn| self.connections.get(&conn.0))
            .is_some_and(|c| c.orphan);
        if !orphan {
            self.events.push_back(event);
        }
    }

    /// Forgets what the program has not heard yet.
    pub(crate) fn silence(&mut self, id: u32) {
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

    /// Whether a deliberate bug is on.
    #[cfg(test)]
    pub(crate) fn bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether a deliberate bug is on.
    #[cfg(not(test))]
    #[allow(clippy::unused_self)]
    pub(crate) const fn bug(&self, _: Bug) -> bool {
        false
    }
}

/// A request no longer waits for the program.
pub(crate) fn release(listeners: &mut Listeners, pending_for: &mut Option<ListenerId>) {
    if let Some(listener) = pending_for.take().and_then(|id| listeners.get_mut(id)) {
        listener.pending -= 1;
    }
}

/// Removes an entry if it is about this connection.
pub(crate) fn remove_if(table: &mut BTreeMap<RemoteKey, u32>, key: RemoteKey, id: u32) {
    if table.get(&key) == Some(&id) {
        table.remove(&key);
    }
}
