//! Saying no, being told no, and giving up.

use core::time::Duration;

use crate::bugs::Bug;
use crate::connection::{RemoteKey, Role};
use crate::message::{Message, Rej, Rep, Req, Subject};
use crate::remember::Asked;
use crate::{
    Address, CallError, Closed, Cm, ConnId, Event, Ignored, Mad, PrivateData, Reason, State, Time,
    duration,
};

impl Cm {
    /// Says no: to a request, or to a response that is not what it should be.
    /// The connection is gone.
    ///
    /// # Errors
    /// If there is no such connection, or it is too late.
    pub fn reject(
        &mut self,
        now: Time,
        conn: ConnId,
        reason: Reason,
        ari: &[u8],
        private_data: PrivateData<148>,
    ) -> Result<(), CallError> {
        let connection = self.call(conn)?;
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
        self.silence(conn.0);
        self.remove(conn.0);
        Ok(())
    }

    /// Sends a REJ and remembers it for peers who repeat what it answers.
    pub(crate) fn refuse(&mut self, now: Time, id: u32, mad: Mad) {
        let address = self.connections[&id].address;
        self.out.send(address, &mad.encode());
        self.remember(now, id, mad);
    }

    fn remember(&mut self, now: Time, id: u32, mad: Mad) {
        if self.bug(Bug::ForgetRefusals) {
            return;
        }
        let connection = &self.connections[&id];
        let asked = match connection.role {
            Role::Active => Asked::Rep(id),
            Role::Passive => Asked::Req(connection.remote_key()),
        };
        let later = match connection.mra_sent {
            true => duration(self.config.mra_timeout) + duration(connection.qp.timeout),
            false => Duration::ZERO,
        };
        let (address, horizon) = (connection.address, connection.horizon + later);
        self.remembered.insert((now, horizon), asked, address, mad);
    }

    /// A REQ of an attempt that is over: no, still. Its sender knows nothing of
    /// us yet, so the refusal must be one of its REQ, and for a reason that it
    /// does not look up by our ID.
    pub(crate) fn refuse_req_again(
        &mut self,
        address: Address,
        key: RemoteKey,
    ) -> Result<(), Ignored> {
        let Some(answer) = self.remembered.get(Asked::Req(key)) else {
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

    /// A REP to an attempt that is over: no, still.
    pub(crate) fn refuse_rep_again(&mut self, address: Address, rep: &Rep) -> Ignored {
        let Some(answer) = self.remembered.get(Asked::Rep(rep.remote_id)) else {
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

    /// Answers a REQ with a REJ, without keeping anything of it.
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
            // The program knows nothing of it yet and need not.
            State::ReqRcvd => {
                self.silence(id);
                self.over(now, id);
            }
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent => {
                self.notify(rejected(false));
                self.over(now, id);
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

    /// Which connection a REJ is about.
    fn find_rejected(&self, address: Address, rej: &Rej) -> Result<u32, Ignored> {
        // Who gave up may not know our ID; it names itself by its adapter.
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

    /// An attempt has failed at the other end. Messages that were repeated
    /// before that may still arrive.
    fn over(&mut self, now: Time, id: u32) {
        let mad = self.make_rej(id, Subject::Other, Reason::TIMEOUT);
        self.remember(now, id, mad);
        self.remove(id);
    }

    /// The peer does not answer: tells it so, in case it hears, and ends the
    /// attempt.
    pub(crate) fn give_up(&mut self, now: Time, id: u32) {
        let mad = self.make_rej(id, Subject::Other, Reason::TIMEOUT);
        self.refuse(now, id, mad);
        self.notify(Event::Unreachable { conn: ConnId(id) });
        self.remove(id);
    }

    /// A REJ of a connection. A timeout names our adapter.
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
