//! Knows what every attempt to connect may lead to.

use std::collections::BTreeMap;

use crate::{ConnId, Reason};

/// One end of an attempt.
#[derive(Clone, Default, Debug)]
pub(super) struct End {
    pub(super) host: usize,
    pub(super) conn: Option<ConnId>,
    pub(super) outcome: Option<Outcome>,
    /// Its program has said no, or goodbye.
    pub(super) refused: bool,
    pub(super) hung_up: bool,
    pub(super) destroyed: bool,
    pub(super) closed: bool,
    pub(super) gone: bool,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Connected,
    Rejected(Reason),
    Unreachable,
}

/// An attempt to connect.
#[derive(Clone, Default, Debug)]
pub(super) struct Attempt {
    pub(super) active: End,
    pub(super) passive: Option<End>,
    pub(super) nobody_listens: bool,
}

/// Which end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Active,
    Passive,
}

#[derive(Default)]
pub(super) struct Oracle {
    pub(super) attempts: Vec<Attempt>,
    by_conn: BTreeMap<(usize, ConnId), (usize, Side)>,
    /// Retries may run out.
    pub(super) may_lose_contact: bool,
    /// Messages are lost, and so all answers to a REP may be.
    pub(super) may_lose_answers: bool,
}

pub(super) type Verdict = Result<(), String>;

fn check(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

impl Attempt {
    pub(super) fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Active => &mut self.active,
            Side::Passive => self.passive.as_mut().expect("it was asked"),
        }
    }

    fn peer(&self, side: Side) -> Option<&End> {
        match side {
            Side::Active => self.passive.as_ref(),
            Side::Passive => Some(&self.active),
        }
    }
}

impl Oracle {
    pub(super) fn connecting(&mut self, host: usize, conn: ConnId, nobody_listens: bool) {
        let active = End {
            host,
            conn: Some(conn),
            ..End::default()
        };
        let side = (self.attempts.len(), Side::Active);
        self.by_conn.insert((host, conn), side);
        self.attempts.push(Attempt {
            active,
            passive: None,
            nobody_listens,
        });
    }

    pub(super) fn asked(&mut self, host: usize, conn: ConnId, attempt: usize) -> Verdict {
        let entry = &mut self.attempts[attempt];
        check(!entry.nobody_listens, || "asked without a listener".into())?;
        check(entry.passive.is_none(), || "asked twice".into())?;
        entry.passive = Some(End {
            host,
            conn: Some(conn),
            ..End::default()
        });
        self.by_conn.insert((host, conn), (attempt, Side::Passive));
        Ok(())
    }

    pub(super) fn of(&self, host: usize, conn: ConnId) -> Result<(usize, Side), String> {
        let found = self.by_conn.get(&(host, conn)).copied();
        found.ok_or_else(|| format!("an event about {conn:?}, which nobody knows"))
    }

    pub(super) fn end(&mut self, host: usize, conn: ConnId) -> Result<&mut End, String> {
        let (attempt, side) = self.of(host, conn)?;
        Ok(self.attempts[attempt].end(side))
    }

    fn outcome(&mut self, host: usize, conn: ConnId, outcome: Outcome) -> Verdict {
        let end = self.end(host, conn)?;
        check(!end.destroyed, || format!("told about destroyed {conn:?}"))?;
        check(end.outcome.is_none(), || {
            format!("{outcome:?} after {:?}", end.outcome)
        })?;
        end.outcome = Some(outcome);
        Ok(())
    }

    /// The active side has sent its RTU.
    pub(super) fn established(&mut self, host: usize, conn: ConnId) -> Verdict {
        self.outcome(host, conn, Outcome::Connected)
    }

    /// The passive side believes that the active side has its REP.
    pub(super) fn heard_rtu(&mut self, host: usize, conn: ConnId) -> Verdict {
        let (attempt, _) = self.of(host, conn)?;
        let active = self.attempts[attempt].active.outcome;
        check(active == Some(Outcome::Connected), || {
            format!("established, but the active side is {active:?}")
        })?;
        self.outcome(host, conn, Outcome::Connected)
    }

    pub(super) fn rejected(
        &mut self,
        host: usize,
        conn: ConnId,
        reason: Reason,
        timewait: bool,
    ) -> Verdict {
        let (attempt, side) = self.of(host, conn)?;
        let entry = &self.attempts[attempt];
        let peer = entry.peer(side);
        let refused = peer.is_some_and(|end| end.refused || end.destroyed);
        let lost = peer.is_some_and(|end| end.destroyed || end.outcome.is_some());
        let cause = match reason {
            Reason::INVALID_SERVICE_ID => entry.nobody_listens,
            Reason::TIMEOUT | Reason::STALE_CONNECTION => lost,
            _ => refused,
        };
        check(cause, || format!("{reason} without a cause at {side:?}"))?;
        self.outcome(host, conn, Outcome::Rejected(reason))?;
        let end = self.end(host, conn)?;
        end.closed = timewait;
        end.gone = !timewait;
        Ok(())
    }

    pub(super) fn unreachable(&mut self, host: usize, conn: ConnId) -> Verdict {
        let (attempt, side) = self.of(host, conn)?;
        let entry = &self.attempts[attempt];
        let destroyed = entry.peer(side).is_some_and(|end| end.destroyed);
        // A REP is repeated four times only before the peer has answered it.
        let excused = destroyed || side == Side::Passive && self.may_lose_answers;
        check(self.may_lose_contact || excused, || {
            format!("{side:?} lost contact in a network that delivers")
        })?;
        self.outcome(host, conn, Outcome::Unreachable)?;
        self.end(host, conn)?.gone = true;
        Ok(())
    }

    pub(super) fn disconnected(&mut self, host: usize, conn: ConnId, timed_out: bool) -> Verdict {
        let (attempt, side) = self.of(host, conn)?;
        let entry = &mut self.attempts[attempt];
        let left = |end: &End| end.hung_up || end.destroyed || end.refused;
        let gave_up = |end: &End| end.outcome == Some(Outcome::Unreachable);
        let peer = entry.peer(side).cloned();
        let cause = left(entry.end(side)) || peer.is_some_and(|end| left(&end) || gave_up(&end));
        check(cause, || "disconnected by nobody".into())?;
        check(!timed_out || self.may_lose_contact, || {
            "a DREQ without an answer in a network that delivers".into()
        })?;
        let entry = &mut self.attempts[attempt];
        let active_connected = entry.active.outcome == Some(Outcome::Connected);
        let end = entry.end(side);
        // A DREQ may be the first to say that the REP had arrived.
        let told = end.outcome.get_or_insert(Outcome::Connected);
        check(*told == Outcome::Connected, || {
            format!("disconnected after {told:?}")
        })?;
        check(active_connected, || "disconnected, never connected".into())?;
        check(!end.closed, || "disconnected twice".into())?;
        end.closed = true;
        Ok(())
    }

    pub(super) fn timewait_exit(&mut self, host: usize, conn: ConnId) -> Verdict {
        let end = self.end(host, conn)?;
        check(end.closed, || "TIMEWAIT without an end".into())?;
        check(!end.gone, || "gone twice".into())?;
        end.gone = true;
        Ok(())
    }

    /// Everything is over: both ends must agree.
    pub(super) fn judge(&self) -> Verdict {
        for (number, attempt) in self.attempts.iter().enumerate() {
            let fault = |what: &str| format!("attempt {number}: {what}: {attempt:?}");
            for end in [Some(&attempt.active), attempt.passive.as_ref()]
                .into_iter()
                .flatten()
            {
                let settled = end.destroyed || end.refused || end.gone;
                check(settled, || fault("hangs"))?;
                let open = end.outcome == Some(Outcome::Connected) && !end.closed;
                check(!open || end.destroyed, || fault("never closed"))?;
            }
            if self.may_lose_contact {
                continue;
            }
            let Some(passive) = &attempt.passive else {
                let reason = attempt.active.outcome;
                let refused = reason == Some(Outcome::Rejected(Reason::INVALID_SERVICE_ID));
                check(refused || attempt.active.destroyed, || fault("never asked"))?;
                continue;
            };
            let anybody_left = attempt.active.destroyed || passive.destroyed;
            let connected = |end: &End| end.outcome == Some(Outcome::Connected);
            // The active end closes when it hears that the passive one has given up.
            let gave_up = self.may_lose_answers && passive.outcome == Some(Outcome::Unreachable);
            let agree = connected(&attempt.active) == connected(passive) || gave_up;
            check(agree || anybody_left, || fault("the ends disagree"))?;
        }
        Ok(())
    }
}
