//! The passive side: receives the REQ, sends the REP, receives the RTU or data.

use crate::answer_cache::AnswerKey;
use crate::bugs::Bug;
use crate::cm::release;
use crate::connection::{Connection, Ports, RemoteKey, Role};
use crate::listener::Found;
use crate::message::{Message, Rep, Req, Rtu, Subject};
use crate::{
    Accept, Address, CallError, Cm, ConnId, Ece, Event, Gid, Ignored, Incoming, IpHeader, Kind,
    ListenerId, Mad, QpParameters, Reason, State, Time, duration,
};

/// Longest wait for an answer to the REP that a REQ may ask for; a time code.
const MAX_RESPONSE: u8 = 24;

impl Cm {
    pub(crate) fn handle_req(
        &mut self,
        now: Time,
        address: Address,
        mad: &Mad,
        req: &Req,
    ) -> Result<(), Ignored> {
        if req.local_id == 0 {
            return Err(Ignored::UnknownId);
        }
        let key = (address.remote, req.ca_guid, req.local_id);
        if !self.bug(Bug::RepeatedReqIsNew) {
            self.repeated_req(address, key)?;
        }
        let Some(kind) = Kind::from_wire(req.transport, req.extended_transport) else {
            self.refuse_req(address, mad, req, Reason::INVALID_TRANSPORT, &[]);
            return Ok(());
        };
        let ours = Gid::from(address.local);
        if req.primary.remote_gid != ours || req.primary.local_gid != Gid::from(address.remote) {
            self.refuse_req(address, mad, req, Reason::INVALID_GID, &ours.0);
            return Ok(());
        }
        // The peer's queue pair belongs to another connection, so the peer has lost that
        // connection.
        let qpn_key = (address.remote, req.ca_guid, req.qpn);
        if let Some(old) = self.by_qpn.get(&qpn_key).copied()
            && !self.bug(Bug::RepeatedReqIsNew)
        {
            self.refuse_req(address, mad, req, Reason::STALE_CONNECTION, &[]);
            self.close_stale(now, old);
            return Ok(());
        }
        match self
            .listeners
            .find(req.service_id, address, &req.private_data)
        {
            Found::Listener(listener, ip) => {
                self.new_passive(address, mad, (req, kind), listener, ip);
                Ok(())
            }
            Found::Full => Err(Ignored::Backlog),
            Found::Refused(_) if self.holds_refusals(now) => Err(Ignored::NotYet),
            Found::Refused(Reason::INVALID_SERVICE_ID)
                if self.gaps.hold(now, req.service_id, address, mad) =>
            {
                Err(Ignored::NotYet)
            }
            Found::Refused(reason) => {
                self.refuse_req(address, mad, req, reason, &[]);
                Ok(())
            }
        }
    }

    /// Answers a duplicate REQ if there is an answer. Returns `Ok` for a new REQ.
    fn repeated_req(&mut self, address: Address, key: RemoteKey) -> Result<(), Ignored> {
        self.refuse_req_again(address, key)?;
        let Some(id) = self.by_remote.get(&key).copied() else {
            return Ok(());
        };
        let connection = &self.connections[&id];
        if connection.address != address {
            return Err(Ignored::Address);
        }
        match connection.state {
            State::MraReqSent => {
                let mra = self.make_mra(id, Subject::Req);
                self.out.send(address, &mra.encode());
                self.connection(id).mra_sent = true;
            }
            State::RepSent => {
                let rep = connection.repeat.as_ref().expect("waits for an answer");
                self.out.send(address, rep);
            }
            State::Timewait => {
                let rej = self.make_rej(id, Subject::Req, Reason::STALE_CONNECTION);
                self.out.send(address, &rej.encode());
            }
            _ => {}
        }
        Err(Ignored::Duplicate)
    }

    fn new_passive(
        &mut self,
        address: Address,
        mad: &Mad,
        (req, kind): (&Req, Kind),
        listener: ListenerId,
        ip: Option<IpHeader>,
    ) {
        let id = self.new_id();
        let psn = self.new_psn();
        // An upper bound of the peer's retransmission interval.
        let peer_interval =
            duration(req.remote_response_timeout) + duration(req.primary.ack_timeout) * 2;
        let connection = Connection {
            role: Role::Passive,
            state: State::ReqRcvd,
            kind,
            address,
            ports: Ports::of_req(Role::Passive, req.service_id, &req.private_data),
            local_id: id,
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            tid: mad.tid,
            pending_for: Some(listener),
            qp: QpParameters {
                local_qpn: 0,
                remote_qpn: req.qpn,
                rq_psn: psn,
                sq_psn: req.starting_psn,
                path_mtu: req.path_mtu,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                timeout: req.primary.ack_timeout,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                flow_label: req.primary.flow_label,
                traffic_class: req.primary.traffic_class,
                hop_limit: req.primary.hop_limit,
                sl: req.primary.sl,
            },
            packet_life_time: 0,
            interval: duration(req.local_response_timeout.min(MAX_RESPONSE)),
            max_retries: req.max_cm_retries,
            retries_left: 0,
            repeat: None,
            prolonged: false,
            answer: None,
            deadline: None,
            horizon: peer_interval * (u32::from(req.max_cm_retries) + 1),
            mra_sent: false,
            orphan: false,
        };
        self.by_remote.insert(connection.remote_key(), id);
        self.by_qpn.insert(connection.qpn_key(), id);
        self.connections.insert(id, connection);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.pending += 1;
        }
        self.notify(Event::Request(Box::new(Incoming {
            conn: ConnId(id),
            listener,
            address,
            service_id: req.service_id,
            ip,
            kind,
            remote_qpn: req.qpn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            ece: Ece {
                vendor_id: req.vendor_id,
                options: mad.modifier,
            },
            private_data: req.private_data,
        })));
    }

    /// Accepts a request: sends a REP. The queue pair must be ready to receive.
    ///
    /// # Errors
    /// If there is no such connection, or it has no unanswered request.
    pub fn accept(&mut self, now: Time, conn: ConnId, accept: &Accept) -> Result<(), CallError> {
        let (ca_guid, target_ack_delay) = (self.config.ca_guid, self.config.ack_delay);
        let connection = self.owned_connection(conn)?;
        if !matches!(connection.state, State::ReqRcvd | State::MraReqSent) {
            return Err(CallError::State(connection.state));
        }
        connection.state = State::RepSent;
        let qp = &mut connection.qp;
        qp.local_qpn = accept.qpn & 0x00ff_ffff;
        qp.responder_resources = accept.responder_resources;
        qp.initiator_depth = accept.initiator_depth;
        let rep = Rep {
            local_id: connection.local_id,
            remote_id: connection.remote_id,
            qkey: 0,
            qpn: accept.qpn,
            vendor_id: accept.ece.vendor_id,
            eecn: match connection.kind {
                Kind::Xrc => accept.qpn,
                Kind::Rc | Kind::Uc => 0,
            },
            starting_psn: qp.rq_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: accept.initiator_depth,
            target_ack_delay,
            failover_accepted: 0,
            flow_control: accept.flow_control,
            rnr_retry_count: accept.rnr_retry_count.min(7),
            srq: accept.srq,
            ca_guid,
            private_data: accept.private_data,
        };
        let mad = Mad {
            tid: connection.tid,
            modifier: accept.ece.options,
            message: Message::Rep(rep),
        }
        .encode();
        let connection = self.connections.get_mut(&conn.0).expect("found before");
        release(&mut self.listeners, &mut connection.pending_for);
        connection.await_answer(&mut self.timers, now, mad);
        self.out.send(connection.address, &mad);
        Ok(())
    }

    pub(crate) fn handle_rtu(&mut self, address: Address, rtu: &Rtu) -> Result<(), Ignored> {
        let found = self.find(address, rtu.remote_id, rtu.local_id);
        let id = match found {
            Err(Ignored::UnknownId) if self.bug(Bug::BelieveAnyRtu) => {
                let waiting = |c: &&Connection| c.state == State::RepSent;
                let any = self.connections.values().find(waiting);
                any.map(|c| c.local_id).ok_or(Ignored::UnknownId)?
            }
            other => other?,
        };
        match self.connections[&id].state {
            State::RepSent | State::MraRepRcvd => {
                self.now_established(id);
                Ok(())
            }
            // The peer has missed our REJ.
            State::Timewait => {
                let key = AnswerKey::Req(self.connections[&id].remote_key());
                if let Some(answer) = self.answer_cache.get(key) {
                    self.out.send(address, &answer.mad.encode());
                }
                Err(Ignored::State)
            }
            State::Established => Err(Ignored::Duplicate),
            _ => Err(Ignored::State),
        }
    }

    /// Establishes a connection on which data has arrived before the RTU. The peer can send
    /// data only after it has received our REP.
    ///
    /// # Errors
    /// If there is no such connection, or it was not accepted.
    pub fn communication_established(&mut self, conn: ConnId) -> Result<(), CallError> {
        let mute = self.bug(Bug::IgnoreCommEst);
        let connection = self.owned_connection(conn)?;
        match connection.state {
            _ if mute => Ok(()),
            State::RepSent | State::MraRepRcvd => {
                self.now_established(conn.0);
                Ok(())
            }
            State::Established => Ok(()),
            other => Err(CallError::State(other)),
        }
    }

    fn now_established(&mut self, id: u32) {
        let connection = self.connections.get_mut(&id).expect("found before");
        connection.stop_repeating(&mut self.timers);
        connection.state = State::Established;
        self.notify(Event::Established { conn: ConnId(id) });
    }
}
