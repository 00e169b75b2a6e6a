//! Checks each event of an attempt to connect against the allowed outcomes.

use std::collections::BTreeMap;

use crate::{ConnId, Reason};

/// One end of an attempt.
#[derive(Clone, Default, Debug)]
pub(super) struct End {
    pub(super) host: usize,
    pub(super) conn: Option<ConnId>,
    pub(super) outcome: Option<Outcome>,
    /// True if the program has rejected the request or response.
    pub(super) refused: bool,
    /// True if the program has disconnected.
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
    /// True if the requested service has no listener.
    pub(super) no_listener: bool,
}

/// One side of an attempt.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Active,
    Passive,
}

#[derive(Default)]
pub(super) struct Oracle {
    pub(super) attempts: Vec<Attempt>,
    by_conn: BTreeMap<(usize, ConnId), (usize, Side)>,
    /// True if the network may drop all retransmissions of a message.
    pub(super) may_lose_contact: bool,
    /// True if the network may drop all answers to a REP.
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
            Side::Passive => self.passive.as_mut().expect("has received the request"),
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
    /// The active side has sent its REQ.
    pub(super) fn connecting(&mut self, host: usize, conn: ConnId, no_listener: bool) {
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
            no_listener,
        });
    }

    /// The passive side has received the request.
    pub(super) fn requested(&mut self, host: usize, conn: ConnId, attempt: usize) -> Verdict {
        let entry = &mut self.attempts[attempt];
        check(!entry.no_listener, || "request without a listener".into())?;
        check(entry.passive.is_none(), || "duplicate request".into())?;
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
        found.ok_or_else(|| format!("an event about unknown {conn:?}"))
    }

    pub(super) fn end(&mut self, host: usize, conn: ConnId) -> Result<&mut End, String> {
        let (attempt, side) = self.of(host, conn)?;
        Ok(self.attempts[attempt].end(side))
    }

    fn outcome(&mut self, host: usize, conn: ConnId, outcome: Outcome) -> Verdict {
        let end = self.end(host, conn)?;
        check(!end.destroyed, || {
            format!("an event about destroyed {conn:?}")
        })?;
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

    /// The passive side has received the RTU, or data that implies it.
    pub(super) fn rtu_received(&mut self, host: usize, conn: ConnId) -> Verdict {
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
            Reason::INVALID_SERVICE_ID => entry.no_listener,
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
        // The REP is retransmitted only four times until the peer answers it.
        let excused = destroyed || side == Side::Passive && self.may_lose_answers;
        check(self.may_lose_contact || excused, || {
            format!("{side:?} is unreachable in a network without a cut")
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
        check(cause, || "disconnected without a cause".into())?;
        check(!timed_out || self.may_lose_contact, || {
            "an unanswered DREQ in a network without a cut".into()
        })?;
        let entry = &mut self.attempts[attempt];
        let active_connected = entry.active.outcome == Some(Outcome::Connected);
        let end = entry.end(side);
        // The DREQ may be the first answer to the REP.
        let outcome = end.outcome.get_or_insert(Outcome::Connected);
        check(*outcome == Outcome::Connected, || {
            format!("disconnected after {outcome:?}")
        })?;
        check(active_connected, || "disconnected, never connected".into())?;
        check(!end.closed, || "disconnected twice".into())?;
        end.closed = true;
        Ok(())
    }

    pub(super) fn timewait_exit(&mut self, host: usize, conn: ConnId) -> Verdict {
        let end = self.end(host, conn)?;
        check(end.closed, || "TIMEWAIT exit before the close".into())?;
        check(!end.gone, || {
            "TIMEWAIT exit of a connection that is gone".into()
        })?;
        end.gone = true;
        Ok(())
    }

    /// Checks the end of a run: each attempt has ended, and both ends agree on its outcome.
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
                check(refused || attempt.active.destroyed, || {
                    fault("never received")
                })?;
                continue;
            };
            let one_destroyed = attempt.active.destroyed || passive.destroyed;
            let connected = |end: &End| end.outcome == Some(Outcome::Connected);
            // The active end closes when it receives the REJ of a passive end that gave up.
            let gave_up = self.may_lose_answers && passive.outcome == Some(Outcome::Unreachable);
            let agree = connected(&attempt.active) == connected(passive) || gave_up;
            check(agree || one_destroyed, || fault("the ends disagree"))?;
        }
        Ok(())
    }
}
