//! The simulated programs. They act at random, but end every connection that they begin.

use super::oracle::Side;
use super::world::{DATAGRAMS, NO_LISTENER, SERVICE, World};
use crate::message::SidrStatus;
use crate::{
    Accept, Address, Closed, ConnId, Ece, Event, Incoming, IpHeader, PrivateData, Reason, Request,
    SidrAnswer, SidrId, SidrRequest, State,
};

/// An action of a program.
#[derive(Debug)]
pub(super) enum Action {
    Connect {
        to: usize,
    },
    SidrRequest {
        to: usize,
    },
    Accept(ConnId),
    Reject(ConnId),
    Establish(ConnId),
    Disconnect(ConnId),
    Destroy(ConnId),
    /// Data arrives on the queue pair.
    Data(ConnId),
    Answer(SidrId),
}

pub(super) trait Program {
    fn act(&mut self, host: usize, action: Action) -> Result<(), String>;
    fn handle_event(&mut self, host: usize, event: Event) -> Result<(), String>;
}

impl Program for World {
    fn act(&mut self, host: usize, action: Action) -> Result<(), String> {
        let now = self.now;
        match action {
            Action::Connect { to } => self.connect(host, to),
            Action::SidrRequest { to } => self.sidr_request(host, to),
            Action::Accept(conn) => {
                let qpn = self.new_qpn(host);
                // The peer may have given up meanwhile.
                let _ = self.hosts[host].cm.accept(now, conn, &Accept::new(qpn));
            }
            Action::Reject(conn) => {
                let cm = &mut self.hosts[host].cm;
                let data = PrivateData::EMPTY;
                if cm.reject(now, conn, Reason::CONSUMER, &[], data).is_ok() {
                    self.oracle.end(host, conn)?.refused = true;
                }
            }
            Action::Establish(conn) => self.establish(host, conn)?,
            Action::Disconnect(conn) => {
                let cm = &mut self.hosts[host].cm;
                if cm.disconnect(now, conn, PrivateData::EMPTY).is_ok() {
                    self.oracle.end(host, conn)?.hung_up = true;
                }
            }
            Action::Destroy(conn) => {
                if self.hosts[host].cm.destroy(now, conn).is_ok() {
                    self.oracle.end(host, conn)?.destroyed = true;
                }
            }
            Action::Data(conn) => {
                let cm = &mut self.hosts[host].cm;
                let early = cm.state(conn) == Some(State::RepSent);
                if cm.communication_established(conn).is_ok() && early {
                    self.run.data_before_rtu += 1;
                    if cm.state(conn) != Some(State::Established) {
                        return Err("data does not establish the connection".into());
                    }
                }
            }
            Action::Answer(sidr) => {
                let answer = SidrAnswer {
                    status: SidrStatus::VALID,
                    qpn: 0x77,
                    qkey: 0x0123_4567,
                    ece: Ece::default(),
                    private_data: PrivateData::EMPTY,
                };
                let cm = &mut self.hosts[host].cm;
                cm.sidr_answer(now, sidr, &answer)
                    .expect("the request is unanswered");
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, host: usize, event: Event) -> Result<(), String> {
        match event {
            Event::Request(incoming) => self.handle_request(host, &incoming),
            Event::Response { conn, .. } => {
                self.handle_response(host, conn);
                Ok(())
            }
            Event::Established { conn } => {
                self.oracle.rtu_received(host, conn)?;
                self.plan_end(host, conn);
                Ok(())
            }
            Event::Rejected {
                conn,
                reason,
                timewait,
                ..
            } => self.oracle.rejected(host, conn, reason, timewait),
            Event::Unreachable { conn } => self.oracle.unreachable(host, conn),
            Event::Disconnected { conn, by, .. } => {
                let timed_out = by == Closed::TimedOut;
                self.oracle.disconnected(host, conn, timed_out)?;
                if by == (Closed::Peer { answer_owed: true }) {
                    let think = self.rng.micros(0, 2_000_000);
                    let action = match self.rng.percent(20) {
                        true => Action::Destroy(conn),
                        false => Action::Disconnect(conn),
                    };
                    self.plan(think, host, action);
                }
                Ok(())
            }
            Event::TimewaitExit { conn } => self.oracle.timewait_exit(host, conn),
            Event::SidrRequest(incoming) => {
                let think = self.rng.micros(0, 2_000_000);
                self.plan(think, host, Action::Answer(incoming.sidr));
                Ok(())
            }
            Event::SidrReply { status, qpn, .. } => {
                self.run.resolved += 1;
                match (status, qpn) {
                    (SidrStatus::VALID, 0x77) => Ok(()),
                    other => Err(format!("resolved to {other:?}")),
                }
            }
            Event::SidrUnreachable { .. } => match self.oracle.may_lose_contact {
                true => Ok(()),
                false => Err("an unanswered SIDR request in a network without a cut".into()),
            },
        }
    }
}

impl World {
    fn new_qpn(&mut self, host: usize) -> u32 {
        let host = &mut self.hosts[host];
        host.next_qpn += 1;
        host.next_qpn
    }

    fn between(&self, host: usize, to: usize) -> Address {
        Address {
            local: self.hosts[host].ip,
            remote: self.hosts[to].ip,
        }
    }

    fn connect(&mut self, host: usize, to: usize) {
        let no_listener = self.rng.percent(8);
        let service = if no_listener { NO_LISTENER } else { SERVICE };
        let qpn = self.new_qpn(host);
        let mut request = Request::new(self.between(host, to), service, qpn);
        header(request.address).emit(&mut request.private_data.0);
        let number = self.oracle.attempts.len() as u64;
        request.private_data.0[IpHeader::LEN..][..8].copy_from_slice(&number.to_be_bytes());
        let conn = self.hosts[host].cm.connect(self.now, &request);
        self.oracle.connecting(host, conn, no_listener);
        if self.rng.percent(6) {
            let when = self.rng.micros(0, 10_000_000);
            self.plan(when, host, Action::Destroy(conn));
        }
    }

    fn sidr_request(&mut self, host: usize, to: usize) {
        let address = self.between(host, to);
        let mut request = SidrRequest {
            address,
            service_id: DATAGRAMS,
            private_data: PrivateData::EMPTY,
        };
        header(address).emit(&mut request.private_data.0);
        self.hosts[host].cm.sidr_request(self.now, &request);
    }

    fn handle_request(&mut self, host: usize, incoming: &Incoming) -> Result<(), String> {
        let number = incoming.user_data().first_chunk().expect("56 bytes");
        let attempt = u64::from_be_bytes(*number) as usize;
        self.oracle.requested(host, incoming.conn, attempt)?;
        let think = self.think();
        let action = match self.rng.below(100) {
            0..75 => Action::Accept(incoming.conn),
            75..95 => Action::Reject(incoming.conn),
            _ => Action::Destroy(incoming.conn),
        };
        self.plan(think, host, action);
        if self.rng.percent(4) {
            let when = think + self.think();
            self.plan(when, host, Action::Destroy(incoming.conn));
        }
        Ok(())
    }

    fn handle_response(&mut self, host: usize, conn: ConnId) {
        let think = self.think();
        let action = match self.rng.below(100) {
            0..90 => Action::Establish(conn),
            90..96 => Action::Reject(conn),
            _ => Action::Destroy(conn),
        };
        self.plan(think, host, action);
    }

    fn establish(&mut self, host: usize, conn: ConnId) -> Result<(), String> {
        let cm = &mut self.hosts[host].cm;
        if cm.establish(conn, PrivateData::EMPTY).is_err() {
            return Ok(());
        }
        self.oracle.established(host, conn)?;
        self.plan_end(host, conn);
        let (attempt, side) = self.oracle.of(host, conn)?;
        assert_eq!(side, Side::Active);
        let passive = self.oracle.attempts[attempt].passive.as_ref();
        let (there, theirs) = passive
            .and_then(|end| Some((end.host, end.conn?)))
            .ok_or("a response without a request")?;
        if self.rng.percent(40) && !self.oracle.may_lose_contact {
            let travel = self.rng.micros(1, 20_000);
            self.plan(travel, there, Action::Data(theirs));
        }
        Ok(())
    }

    /// Plans the end of an established connection: `disconnect`, or in 15 percent `destroy`.
    fn plan_end(&mut self, host: usize, conn: ConnId) {
        let when = match self.rng.percent(20) {
            true => self.rng.micros(100_000_000, 200_000_000),
            false => self.rng.micros(0, 30_000_000),
        };
        let action = match self.rng.percent(15) {
            true => Action::Destroy(conn),
            false => Action::Disconnect(conn),
        };
        self.plan(when, host, action);
    }

    /// Returns the time until the program decides: usually short, but in slow runs sometimes
    /// so long that the peer retransmits several times.
    fn think(&mut self) -> crate::Time {
        match self.slow && self.rng.percent(30) {
            true => self.rng.micros(1_000_000, 100_000_000),
            false => self.rng.micros(0, 200_000),
        }
    }
}

fn header(address: Address) -> IpHeader {
    IpHeader {
        source_port: 40_000,
        source: address.local,
        destination: address.remote,
    }
}
