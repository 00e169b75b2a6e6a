//! Sends and receives REJs, and gives up unanswered attempts.

use core::time::Duration;

use crate::answer_cache::AnswerKey;
use crate::bugs::Bug;
use crate::connection::{RemoteKey, Role};
use crate::message::{Message, Rej, Rep, Req, Subject};
use crate::{
    Address, CallError, Closed, Cm, ConnId, Event, Ignored, Mad, PrivateData, Reason, State, Time,
    duration,
};

impl Cm {
    /// Rejects a request (REQ) or a response (REP). The connection is gone.
    ///
    /// # Errors
    /// If there is no such connection, or it has no unanswered request or response.
    pub fn reject(
        &mut self,
        now: Time,
        conn: ConnId,
        reason: Reason,
        ari: &[u8],
        private_data: PrivateData<148>,
    ) -> Result<(), CallError> {
        let connection = self.owned_connection(conn)?;
        let subject = match connection.state {
            State::ReqRcvd | State::MraReqSent => Subject::Req,
            State::RepRcvd | State::MraRepSent => Subject::Rep,
            other => return Err(CallError::State(other)),
        };
        let mut mad = self.make_rej(conn.0, subject, reason);
        if let Message::Rej(rej) = &mut mad.message {
            rej.private_data = private_data;
            *rej = rej.with_ari(ari);
        }
        self.refuse(now, conn.0, mad);
        self.drop_events(conn.0);
        self.remove(conn.0);
        Ok(())
    }

    /// Sends a REJ and caches it for duplicates of the rejected message.
    pub(crate) fn refuse(&mut self, now: Time, id: u32, mad: Mad) {
        let address = self.connections[&id].address;
        self.out.send(address, &mad.encode());
        self.cache_rej(now, id, mad);
    }

    /// Caches a REJ for as long as the peer may retransmit the rejected message.
    fn cache_rej(&mut self, now: Time, id: u32, mad: Mad) {
        if self.bug(Bug::ForgetRefusals) {
            return;
        }
        let connection = &self.connections[&id];
        let key = match connection.role {
            Role::Active => AnswerKey::Rep(id),
            Role::Passive => AnswerKey::Req(connection.remote_key()),
        };
        let mra_wait = match connection.mra_sent {
            true => duration(self.config.mra_timeout) + duration(connection.qp.timeout),
            false => Duration::ZERO,
        };
        let (address, horizon) = (connection.address, connection.horizon + mra_wait);
        self.answer_cache.insert((now, horizon), key, address, mad);
    }

    /// Rejects a duplicate REQ of an attempt that has ended. Returns `Ok` if the REQ is not
    /// such a duplicate.
    ///
    /// The peer does not know our ID yet. So the REJ must be about the REQ, and its reason
    /// must not be TIMEOUT, for which the peer looks up the connection by our adapter and
    /// ID.
    pub(crate) fn refuse_req_again(
        &mut self,
        address: Address,
        key: RemoteKey,
    ) -> Result<(), Ignored> {
        let Some(answer) = self.answer_cache.get(AnswerKey::Req(key)) else {
            return Ok(());
        };
        if answer.address != address {
            return Err(Ignored::Address);
        }
        let mut mad = *answer.mad;
        if let Message::Rej(rej) = &mut mad.message {
            rej.subject = Subject::Req;
            if rej.reason == Reason::TIMEOUT {
                rej.reason = Reason::STALE_CONNECTION;
                *rej = rej.with_ari(&[]);
            }
        }
        self.out.send(address, &mad.encode());
        Err(Ignored::Duplicate)
    }

    /// Rejects a REP to an attempt that has ended.
    pub(crate) fn refuse_rep_again(&mut self, address: Address, rep: &Rep) -> Ignored {
        let Some(answer) = self.answer_cache.get(AnswerKey::Rep(rep.remote_id)) else {
            return Ignored::UnknownId;
        };
        if answer.address != address {
            return Ignored::Address;
        }
        let mut mad = *answer.mad;
        if let Message::Rej(rej) = &mut mad.message {
            rej.remote_id = rep.local_id;
            rej.subject = Subject::Rep;
        }
        self.out.send(address, &mad.encode());
        Ignored::Duplicate
    }

    /// Answers a REQ with a REJ and keeps no state.
    pub(crate) fn refuse_req(
        &mut self,
        address: Address,
        mad: &Mad,
        req: &Req,
        reason: Reason,
        ari: &[u8],
    ) {
        let rej = Rej {
            local_id: 0,
            remote_id: req.local_id,
            subject: Subject::Req,
            ari_len: 0,
            reason,
            ari: [0; 72],
            private_data: PrivateData::EMPTY,
        };
        let mad = Mad {
            tid: mad.tid,
            modifier: 0,
            message: Message::Rej(rej.with_ari(ari)),
        };
        self.out.send(address, &mad.encode());
    }

    pub(crate) fn handle_rej(
        &mut self,
        now: Time,
        address: Address,
        rej: &Rej,
    ) -> Result<(), Ignored> {
        let id = self.find_rejected(address, rej)?;
        let conn = ConnId(id);
        let stale = rej.reason == Reason::STALE_CONNECTION;
        let rejected = |timewait| Event::Rejected {
            conn,
            reason: rej.reason,
            ari: rej.ari().to_vec(),
            private_data: Box::new(rej.private_data),
            timewait,
        };
        match self.connections[&id].state {
            State::ReqSent | State::MraReqRcvd | State::RepSent | State::MraRepRcvd if stale => {
                self.notify(rejected(true));
                self.enter_timewait(now, id);
            }
            // The program has not taken the request event, so the event is dropped.
            State::ReqRcvd => {
                self.drop_events(id);
                self.end_rejected_attempt(now, id);
            }
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent => {
                self.notify(rejected(false));
                self.end_rejected_attempt(now, id);
            }
            State::Established | State::DreqSent => {
                self.notify(Event::Disconnected {
                    conn,
                    by: Closed::Rejected(rej.reason),
                    private_data: Box::default(),
                });
                self.enter_timewait(now, id);
            }
            State::DreqRcvd | State::Timewait => return Err(Ignored::State),
        }
        Ok(())
    }

    /// Finds the connection that a REJ is about.
    fn find_rejected(&self, address: Address, rej: &Rej) -> Result<u32, Ignored> {
        // A peer that gave up may not know our ID. It identifies itself by its adapter GUID.
        if rej.reason == Reason::TIMEOUT
            && let Some(guid) = rej.ari().first_chunk()
        {
            let key = (address.remote, u64::from_be_bytes(*guid), rej.local_id);
            if let Some(id) = self.by_remote.get(&key).copied()
                && (rej.remote_id == 0 || rej.remote_id == id)
            {
                return self.find(address, id, rej.local_id);
            }
        }
        match rej.subject {
            Subject::Req => self.find(address, rej.remote_id, 0),
            _ => self.find(address, rej.remote_id, rej.local_id),
        }
    }

    /// Removes a connection that the peer has rejected. Caches a REJ, because messages that
    /// the peer sent before may still arrive.
    fn end_rejected_attempt(&mut self, now: Time, id: u32) {
        let mad = self.make_rej(id, Subject::Other, Reason::TIMEOUT);
        self.cache_rej(now, id, mad);
        self.remove(id);
    }

    /// Ends an attempt that the peer does not answer. Sends a REJ, which the peer may still
    /// receive.
    pub(crate) fn give_up(&mut self, now: Time, id: u32) {
        let mad = self.make_rej(id, Subject::Other, Reason::TIMEOUT);
        self.refuse(now, id, mad);
        self.notify(Event::Unreachable { conn: ConnId(id) });
        self.remove(id);
    }

    /// Returns a REJ for a connection. For the reason TIMEOUT it carries our adapter GUID.
    pub(crate) fn make_rej(&self, id: u32, subject: Subject, reason: Reason) -> Mad {
        let connection = &self.connections[&id];
        let guid = self.config.ca_guid.to_be_bytes();
        let rej = Rej {
            local_id: id,
            remote_id: connection.remote_id,
            subject,
            ari_len: 0,
            reason,
            ari: [0; 72],
            private_data: PrivateData::EMPTY,
        };
        let rej = match reason {
            Reason::TIMEOUT => rej.with_ari(&guid),
            _ => rej,
        };
        Mad {
            tid: connection.tid,
            modifier: 0,
            message: Message::Rej(rej),
        }
    }
}
