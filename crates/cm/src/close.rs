//! Closes connections: DREQ, DREP, TIMEWAIT, and the connections of programs that have
//! ended.

use crate::bugs::Bug;
use crate::message::{Apr, AprStatus, Drep, Dreq, Lap, Message, Subject};
use crate::{
    Address, CallError, Closed, Cm, ConnId, Event, Ignored, Mad, PrivateData, Reason, State, Time,
    cm::remove_if, duration,
};

/// Longest TIMEWAIT that a peer's timeout may cause; a time code.
const MAX_TIMEWAIT: u8 = 24;

impl Cm {
    /// Sends a DREQ, or answers the peer's DREQ with a DREP.
    ///
    /// # Errors
    /// If there is no such connection, or it is not established.
    pub fn disconnect(
        &mut self,
        now: Time,
        conn: ConnId,
        private_data: PrivateData<220>,
    ) -> Result<(), CallError> {
        let connection = self.owned_connection(conn)?;
        match connection.state {
            State::Established => self.send_dreq(now, conn.0, private_data),
            State::DreqRcvd => {
                let data = PrivateData::at(0, &private_data.0).expect("DREP has more room");
                self.send_drep(now, conn.0, data);
            }
            other => return Err(CallError::State(other)),
        }
        Ok(())
    }

    /// Ends a connection that the program has given up, by REJ, DREQ or DREP as its state
    /// requires. The connection has no further events.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn destroy(&mut self, now: Time, conn: ConnId) -> Result<(), CallError> {
        let state = self.owned_connection(conn)?.state;
        let id = conn.0;
        let refusal = |subject, reason| Some((subject, reason));
        let refusal = match state {
            State::ReqSent | State::MraReqRcvd => refusal(Subject::Other, Reason::TIMEOUT),
            State::ReqRcvd | State::MraReqSent => refusal(Subject::Req, Reason::CONSUMER),
            State::RepRcvd | State::MraRepSent => refusal(Subject::Rep, Reason::CONSUMER),
            State::RepSent | State::MraRepRcvd => refusal(Subject::Other, Reason::CONSUMER),
            _ => None,
        };
        self.drop_events(id);
        self.connection(id).orphan = true;
        if let Some((subject, reason)) = refusal {
            let rej = self.make_rej(id, subject, reason);
            self.refuse(now, id, rej);
        }
        match state {
            State::Established => self.send_dreq(now, id, PrivateData::EMPTY),
            State::DreqRcvd => self.send_drep(now, id, PrivateData::EMPTY),
            State::DreqSent | State::Timewait => {}
            // The queue pair was ready to receive, so packets may be in flight.
            State::RepSent | State::MraRepRcvd => self.enter_timewait(now, id),
            _ => {
                self.remove(id);
            }
        }
        Ok(())
    }

    /// Closes an established connection that the peer seems to have lost. The DREQ informs
    /// a peer that has not lost it.
    pub(crate) fn close_stale(&mut self, now: Time, old: u32) {
        if self.connections[&old].state == State::Established {
            self.send_dreq(now, old, PrivateData::EMPTY);
        }
    }

    fn send_dreq(&mut self, now: Time, id: u32, private_data: PrivateData<220>) {
        let tid = self.new_tid(id);
        let connection = self.connections.get_mut(&id).expect("found before");
        let dreq = Dreq {
            local_id: id,
            remote_id: connection.remote_id,
            remote_qpn: connection.qp.remote_qpn,
            private_data,
        };
        let mad = Mad {
            tid,
            modifier: 0,
            message: Message::Dreq(dreq),
        }
        .encode();
        connection.state = State::DreqSent;
        connection.await_answer(&mut self.timers, now, mad);
        self.out.send(connection.address, &mad);
    }

    fn send_drep(&mut self, now: Time, id: u32, private_data: PrivateData<224>) {
        let connection = self.connections.get_mut(&id).expect("found before");
        let drep = make_drep(connection.tid, id, connection.remote_id, private_data).encode();
        self.out.send(connection.address, &drep);
        self.enter_timewait(now, id);
        self.connection(id).answer = Some(Box::new(drep));
    }

    pub(crate) fn handle_dreq(
        &mut self,
        now: Time,
        address: Address,
        mad: &Mad,
        dreq: &Dreq,
    ) -> Result<(), Ignored> {
        let mute = self.bug(Bug::NeverRepeatDrep);
        let id = match self.find(address, dreq.remote_id, dreq.local_id) {
            Err(Ignored::UnknownId) if self.holds_refusals(now) => return Err(Ignored::NotYet),
            // The connection is gone, and the peer has missed our DREP.
            Err(Ignored::UnknownId) if !mute => {
                let (ours, theirs) = (dreq.remote_id, dreq.local_id);
                let drep = make_drep(mad.tid, ours, theirs, PrivateData::EMPTY);
                self.out.send(address, &drep.encode());
                return Err(Ignored::UnknownId);
            }
            other => other?,
        };
        let any_qpn = self.bug(Bug::IgnoreQpn);
        let connection = self.connections.get_mut(&id).expect("found before");
        if connection.qp.local_qpn != dreq.remote_qpn && !any_qpn {
            return Err(Ignored::Qpn);
        }
        match connection.state {
            // Also without an RTU: a peer that sends a DREQ has received our REP.
            State::Established | State::RepSent | State::MraRepRcvd => {
                connection.tid = mad.tid;
                connection.stop_repeating(&mut self.timers);
                connection.state = State::DreqRcvd;
                self.closed_by_peer(id, dreq, true);
            }
            // Both sides have sent a DREQ, so both agree.
            State::DreqSent => {
                connection.tid = mad.tid;
                self.send_drep(now, id, PrivateData::EMPTY);
                self.closed_by_peer(id, dreq, false);
            }
            State::Timewait => {
                match &connection.answer {
                    _ if mute => {}
                    Some(drep) => self.out.send(address, drep),
                    None => {
                        let drep = make_drep(mad.tid, id, dreq.local_id, PrivateData::EMPTY);
                        self.out.send(address, &drep.encode());
                    }
                }
                return Err(Ignored::Duplicate);
            }
            State::DreqRcvd => return Err(Ignored::Duplicate),
            _ => return Err(Ignored::State),
        }
        Ok(())
    }

    fn closed_by_peer(&mut self, id: u32, dreq: &Dreq, answer_owed: bool) {
        let data = PrivateData::at(0, &dreq.private_data.0).expect("the field has more room");
        self.notify(Event::Disconnected {
            conn: ConnId(id),
            by: Closed::Peer { answer_owed },
            private_data: Box::new(data),
        });
    }

    pub(crate) fn handle_drep(
        &mut self,
        now: Time,
        address: Address,
        drep: &Drep,
    ) -> Result<(), Ignored> {
        let id = self.find(address, drep.remote_id, drep.local_id)?;
        match self.connections[&id].state {
            State::DreqSent => {}
            State::Timewait => return Err(Ignored::Duplicate),
            _ => return Err(Ignored::State),
        }
        self.notify(Event::Disconnected {
            conn: ConnId(id),
            by: Closed::Local,
            private_data: Box::new(drep.private_data),
        });
        self.enter_timewait(now, id);
        Ok(())
    }

    /// Refuses an alternate path: RoCE has none.
    pub(crate) fn handle_lap(
        &mut self,
        address: Address,
        mad: &Mad,
        lap: &Lap,
    ) -> Result<(), Ignored> {
        let id = self.find(address, lap.remote_id, lap.local_id)?;
        let connection = &self.connections[&id];
        if connection.qp.local_qpn != lap.remote_qpn {
            return Err(Ignored::Qpn);
        }
        if connection.state == State::Established {
            let apr = Apr {
                local_id: id,
                remote_id: lap.local_id,
                info_len: 0,
                status: AprStatus::UNSUPPORTED,
                info: [0; 72],
                private_data: PrivateData::EMPTY,
            };
            let mad = Mad {
                tid: mad.tid,
                modifier: 0,
                message: Message::Apr(apr),
            };
            self.out.send(address, &mad.encode());
        }
        Err(Ignored::State)
    }

    /// Enters TIMEWAIT, in which packets may still be in flight. The communication IDs stay
    /// reserved; the peer may use its queue pair again.
    pub(crate) fn enter_timewait(&mut self, now: Time, id: u32) {
        let connection = self.connections.get_mut(&id).expect("found before");
        connection.state = State::Timewait;
        connection.repeat = None;
        connection.answer = None;
        let wait = duration(connection.qp.timeout.min(MAX_TIMEWAIT));
        connection.arm(&mut self.timers, Some(now + wait));
        remove_if(&mut self.by_qpn, connection.qpn_key(), id);
    }

    /// Processes the deadline of a connection.
    pub(crate) fn connection_timeout(&mut self, now: Time, id: u32) {
        let stays = self.bug(Bug::TimewaitForever);
        let mute = self.bug(Bug::NeverRepeat);
        let forever = self.bug(Bug::RepeatForever);
        let connection = self.connections.get_mut(&id);
        let connection = connection.expect("timers name connections");
        match connection.state {
            State::Timewait if stays => connection.arm(&mut self.timers, None),
            State::Timewait => {
                self.notify(Event::TimewaitExit { conn: ConnId(id) });
                self.remove(id);
            }
            _ if connection.retries_left > 0 || forever => {
                connection.retries_left = connection.retries_left.saturating_sub(1);
                connection.prolonged = false;
                let due = now + connection.interval;
                connection.arm(&mut self.timers, Some(due));
                if let Some(message) = &connection.repeat
                    && connection.may_repeat()
                    && !mute
                {
                    self.out.send(connection.address, message);
                }
            }
            State::DreqSent => {
                self.notify(Event::Disconnected {
                    conn: ConnId(id),
                    by: Closed::TimedOut,
                    private_data: Box::default(),
                });
                self.enter_timewait(now, id);
            }
            _ => self.give_up(now, id),
        }
    }
}

fn make_drep(tid: u64, ours: u32, theirs: u32, private_data: PrivateData<224>) -> Mad {
    let drep = Drep {
        local_id: ours,
        remote_id: theirs,
        private_data,
    };
    Mad {
        tid,
        modifier: 0,
        message: Message::Drep(drep),
    }
}
