//! The active side: sends the REQ, receives the REP, sends the RTU.

use crate::bugs::Bug;
use crate::connection::{Connection, Ports, Role};
use crate::message::{Message, Mra, Path, Rep, Req, Rtu, Subject};
use crate::{
    Address, CallError, Cm, ConnId, Ece, Event, Gid, Ignored, Kind, Mad, PrivateData, QpParameters,
    Reason, Request, State, Time, ack_timeout, duration,
};

/// Longest wait that an MRA may ask for; a time code. The number of retransmissions is
/// limited, too, so every attempt to connect ends.
const MAX_MRA: u8 = 27;

impl Cm {
    /// Sends a REQ. An event reports the outcome.
    pub fn connect(&mut self, now: Time, request: &Request) -> ConnId {
        let id = self.new_id();
        let psn = self.new_psn();
        let tid = self.new_tid(id);
        let req = self.make_req(request, id, psn);
        let timeout = req.primary.ack_timeout;
        let life = duration(request.packet_life_time);
        let answer = duration(self.config.response_timeout);
        let mut connection = Connection {
            role: Role::Active,
            state: State::ReqSent,
            kind: request.kind,
            address: request.address,
            ports: Ports::of_req(Role::Active, request.service_id, &request.private_data),
            local_id: id,
            remote_id: 0,
            remote_guid: 0,
            tid,
            pending_for: None,
            qp: QpParameters {
                local_qpn: request.qpn & 0x00ff_ffff,
                remote_qpn: 0,
                rq_psn: psn,
                sq_psn: 0,
                path_mtu: request.path_mtu,
                responder_resources: request.responder_resources,
                initiator_depth: request.initiator_depth,
                timeout,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                flow_label: request.flow_label & 0xf_ffff,
                traffic_class: request.traffic_class,
                hop_limit: request.hop_limit,
                sl: request.sl,
            },
            packet_life_time: request.packet_life_time,
            interval: life * 2 + answer,
            max_retries: self.config.max_retries,
            retries_left: 0,
            repeat: None,
            prolonged: false,
            answer: None,
            deadline: None,
            horizon: (answer + duration(timeout)) * (u32::from(self.config.max_retries) + 1),
            mra_sent: false,
            orphan: false,
        };
        let mad = Mad {
            tid,
            modifier: request.ece.options,
            message: Message::Req(req),
        }
        .encode();
        self.out.send(request.address, &mad);
        connection.await_answer(&mut self.timers, now, mad);
        self.connections.insert(id, connection);
        ConnId(id)
    }

    fn make_req(&self, request: &Request, id: u32, psn: u32) -> Req {
        let (transport, extended_transport) = request.kind.to_wire();
        // A path that leaves the subnet has permissive LIDs.
        let subnet_local = request.hop_limit <= 1;
        let lid = if subnet_local { 0 } else { 0xffff };
        Req {
            local_id: id,
            vendor_id: request.ece.vendor_id,
            service_id: request.service_id,
            ca_guid: self.config.ca_guid,
            qkey: 0,
            qpn: request.qpn,
            responder_resources: request.responder_resources,
            eecn: 0,
            initiator_depth: request.initiator_depth,
            remote_eecn: 0,
            remote_response_timeout: self.config.response_timeout,
            transport,
            flow_control: request.flow_control,
            starting_psn: psn,
            local_response_timeout: self.config.response_timeout,
            retry_count: request.retry_count.min(7),
            pkey: 0xffff,
            path_mtu: request.path_mtu,
            rdc_exists: false,
            rnr_retry_count: request.rnr_retry_count.min(7),
            max_cm_retries: self.config.max_retries,
            srq: request.srq,
            extended_transport,
            primary: Path {
                local_lid: lid,
                remote_lid: lid,
                local_gid: Gid::from(request.address.local),
                remote_gid: Gid::from(request.address.remote),
                flow_label: request.flow_label,
                traffic_class: request.traffic_class,
                hop_limit: request.hop_limit,
                packet_rate: 0,
                sl: request.sl,
                subnet_local,
                ack_timeout: ack_timeout(request.packet_life_time, self.config.ack_delay),
            },
            alternate: Path::default(),
            sap_supported: false,
            private_data: request.private_data,
        }
    }

    pub(crate) fn handle_mra(
        &mut self,
        now: Time,
        address: Address,
        mra: &Mra,
    ) -> Result<(), Ignored> {
        // The MRA to a REQ is the peer's first message, so its ID is not known yet.
        let known = match mra.subject {
            Subject::Req => 0,
            _ => mra.local_id,
        };
        let id = self.find(address, mra.remote_id, known)?;
        if self.bug(Bug::MraRejects) {
            self.notify(Event::Unreachable { conn: ConnId(id) });
            self.remove(id);
            return Ok(());
        }
        let connection = self.connections.get_mut(&id).expect("found before");
        let next = match (connection.state, mra.subject) {
            (State::ReqSent | State::MraReqRcvd, Subject::Req) => State::MraReqRcvd,
            (State::RepSent | State::MraRepRcvd, Subject::Rep) => State::MraRepRcvd,
            _ => return Err(Ignored::State),
        };
        if connection.prolonged {
            return Err(Ignored::Duplicate);
        }
        connection.state = next;
        connection.prolonged = true;
        let service = duration(mra.service_timeout.min(MAX_MRA));
        let wait = service + duration(connection.qp.timeout);
        connection.arm(&mut self.timers, Some(now + wait));
        Ok(())
    }

    pub(crate) fn handle_rep(
        &mut self,
        now: Time,
        address: Address,
        mad: &Mad,
        rep: &Rep,
    ) -> Result<(), Ignored> {
        let id = match self.find(address, rep.remote_id, 0) {
            Err(Ignored::UnknownId) => return Err(self.repeated_rep(address, rep)),
            other => other?,
        };
        let connection = &self.connections[&id];
        if !matches!(connection.state, State::ReqSent | State::MraReqRcvd) {
            return Err(Ignored::State);
        }
        if rep.local_id == 0 {
            return Err(Ignored::UnknownId);
        }
        let remote_qpn = match connection.kind {
            Kind::Xrc => rep.eecn,
            Kind::Rc | Kind::Uc => rep.qpn,
        };
        let remote_key = (address.remote, rep.ca_guid, rep.local_id);
        let qpn_key = (address.remote, rep.ca_guid, remote_qpn);
        if self.by_remote.contains_key(&remote_key) {
            return Err(Ignored::Duplicate);
        }
        if let Some(old) = self.by_qpn.get(&qpn_key).copied() {
            self.stale_rep(now, id, rep.local_id, old);
            return Ok(());
        }
        self.by_remote.insert(remote_key, id);
        self.by_qpn.insert(qpn_key, id);

        let connection = self.connections.get_mut(&id).expect("found before");
        connection.stop_repeating(&mut self.timers);
        connection.state = State::RepRcvd;
        connection.remote_id = rep.local_id;
        connection.remote_guid = rep.ca_guid;
        let timeout = ack_timeout(connection.packet_life_time, rep.target_ack_delay);
        let qp = &mut connection.qp;
        qp.remote_qpn = remote_qpn;
        qp.sq_psn = rep.starting_psn;
        // The peer's initiator depth is our responder resources, and vice versa.
        qp.responder_resources = rep.initiator_depth;
        qp.initiator_depth = rep.responder_resources;
        qp.rnr_retry_count = rep.rnr_retry_count;
        qp.timeout = timeout;
        self.notify(Event::Response {
            conn: ConnId(id),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            srq: rep.srq,
            ece: Ece {
                vendor_id: rep.vendor_id,
                options: mad.modifier,
            },
            private_data: Box::new(rep.private_data),
        });
        Ok(())
    }

    /// Answers a REP that is a duplicate or arrives too late.
    fn repeated_rep(&mut self, address: Address, rep: &Rep) -> Ignored {
        let id = match self.find(address, rep.remote_id, rep.local_id) {
            Ok(id) => id,
            Err(Ignored::UnknownId) => return self.refuse_rep_again(address, rep),
            Err(other) => return other,
        };
        let mute = self.bug(Bug::NeverRepeatRtu);
        let connection = &self.connections[&id];
        if connection.role != Role::Active {
            return Ignored::State;
        }
        match (connection.state, &connection.answer) {
            (State::MraRepSent, _) => {
                let mra = self.make_mra(id, Subject::Rep);
                self.out.send(address, &mra.encode());
                self.connection(id).mra_sent = true;
            }
            (State::Established, Some(rtu)) if !mute => self.out.send(address, rtu),
            (State::Established, None) => {
                let rtu = make_rtu(connection, PrivateData::EMPTY);
                self.out.send(address, &rtu.encode());
            }
            _ => {}
        }
        Ignored::Duplicate
    }

    /// Rejects a REP that names the remote queue pair of another connection. The peer has
    /// lost that connection, so the new attempt fails and the old connection is closed.
    fn stale_rep(&mut self, now: Time, id: u32, remote_id: u32, old: u32) {
        self.connection(id).remote_id = remote_id;
        let rej = self.make_rej(id, Subject::Rep, Reason::STALE_CONNECTION);
        let address = self.connections[&id].address;
        self.out.send(address, &rej.encode());
        self.notify(Event::Rejected {
            conn: ConnId(id),
            reason: Reason::STALE_CONNECTION,
            ari: Vec::new(),
            private_data: Box::default(),
            timewait: true,
        });
        self.enter_timewait(now, id);
        self.close_stale(now, old);
    }

    /// Sends the RTU. The queue pair must be ready to send and receive.
    ///
    /// # Errors
    /// If there is no such connection, or it has not received a REP.
    pub fn establish(
        &mut self,
        conn: ConnId,
        private_data: PrivateData<224>,
    ) -> Result<(), CallError> {
        let connection = self.owned_connection(conn)?;
        if !matches!(connection.state, State::RepRcvd | State::MraRepSent) {
            return Err(CallError::State(connection.state));
        }
        connection.state = State::Established;
        let rtu = make_rtu(connection, private_data).encode();
        connection.answer = Some(Box::new(rtu));
        let address = connection.address;
        self.out.send(address, &rtu);
        Ok(())
    }

    pub(crate) fn make_mra(&self, id: u32, subject: Subject) -> Mad {
        let connection = &self.connections[&id];
        Mad {
            tid: connection.tid,
            modifier: 0,
            message: Message::Mra(Mra {
                local_id: id,
                remote_id: connection.remote_id,
                subject,
                service_timeout: self.config.mra_timeout,
                private_data: PrivateData::EMPTY,
            }),
        }
    }
}

fn make_rtu(connection: &Connection, private_data: PrivateData<224>) -> Mad {
    Mad {
        tid: connection.tid,
        modifier: 0,
        message: Message::Rtu(Rtu {
            local_id: connection.local_id,
            remote_id: connection.remote_id,
            private_data,
        }),
    }
}
