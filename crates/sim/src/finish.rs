//! The checks at the end of a run: all work has ended, and both ends of each
//! connection agree on its outcome.

use ferroce_roce::{Counter, QpEvent, QpState, QpType, WcStatus};

use crate::host::Host;
use crate::model::{Drain, End, Kind, SendRecord};
use crate::scenario::Family;
use crate::slot::{send_wr_id, wr_name};
use crate::world::{Check, World};

/// Most timers that may still expire with nothing outstanding. The engine leaves
/// stale timer entries behind.
const MOST_IDLE_TIMERS: usize = 200;

impl World {
    /// Returns true once no packet, work request or planned step is outstanding.
    pub(crate) fn is_finished(&self) -> bool {
        self.in_flight == 0
            && self.hosts.iter().all(Host::is_idle)
            && self.are_channels_empty()
            && (0..self.qps.len()).all(|qp| self.is_idle(qp))
    }

    fn is_idle(&self, qp: usize) -> bool {
        let model = &self.qps[qp];
        let over = match model.state {
            None => true,
            Some(QpState::Reset) => model.reconnect_at.is_none(),
            Some(QpState::Rts | QpState::Sqd) => model.drain == Drain::No && model.todo == 0,
            Some(QpState::Err | QpState::Sqe) => model.todo == 0,
            _ => false,
        };
        let lost = model.cause.cq_overflow && model.is(QpState::Err);
        over && (lost || model.pending() == 0)
            && (lost || model.datagrams.is_empty())
            && self.undelivered(qp) == 0
    }

    /// Returns the number of messages that completed at the peer but were not received.
    fn undelivered(&self, qp: usize) -> usize {
        let model = &self.qps[qp];
        let Some(peer) = model.peer else {
            return 0;
        };
        if !model.kind.is_reliable() || model.cause.cq_overflow {
            return 0;
        }
        let sent = self.qps[peer].messages.iter();
        let sent = sent.filter(|&&send| self.sends[send].succeeded()).count();
        sent.saturating_sub(model.delivered)
    }

    /// Runs the final checks.
    pub(crate) fn finish(&mut self) -> Check {
        self.trace.line(self.now, || "all work has ended".into());
        for host in 0..self.hosts.len() {
            self.poll_host(host)?;
        }
        for qp in 0..self.qps.len() {
            let checked = self
                .check_failure(qp)
                .and_then(|()| self.check_events(qp))
                .and_then(|()| self.check_agreement(qp));
            checked.map_err(|why| format!("{}: {why}", self.qp_name(qp)))?;
        }
        self.check_unreliable_writes()?;
        self.check_retries()?;
        for qp in 0..self.qps.len() {
            self.kill(qp)?;
        }
        for host in 0..self.hosts.len() {
            self.poll_host(host)?;
        }
        for qp in 0..self.qps.len() {
            let checked = self.check_all_ended(qp);
            checked.map_err(|why| format!("{}: {why}", self.qp_name(qp)))?;
        }
        self.check_shared_queues()?;
        self.check_channels()?;
        self.check_timers()
    }

    /// Checks that a failed queue pair has a cause, and that its peer has failed too.
    fn check_failure(&self, qp: usize) -> Check {
        let model = &self.qps[qp];
        if !model.is(QpState::Err) {
            return Ok(());
        }
        let own = model
            .first_error
            .is_some_and(|(_, status)| status != WcStatus::WrFlush);
        if !own && !self.has_outside_cause(qp) {
            return Err("failed without a cause".into());
        }
        let otherwise = own || model.cause.program || model.cause.cq_overflow;
        let events = [QpEvent::AccessError, QpEvent::RequestError, QpEvent::Fatal];
        let reported = model.recv_failed || model.events.iter().any(|event| events.contains(event));
        if !otherwise && !reported {
            return Err("failed, but neither a completion nor an event reported the cause".into());
        }
        let peer = self.peer_of(qp).map(|peer| &self.qps[peer]);
        if let Some(peer) = peer
            && model.kind.is_reliable()
            && !otherwise
            && peer.is(QpState::Rts)
        {
            return Err("refused a request, but its peer is still in RTS".into());
        }
        Ok(())
    }

    /// Checks that both ends of an idle connection agree on the next PSN, and that
    /// the queue pair holds the expected number of work requests.
    fn check_agreement(&self, qp: usize) -> Check {
        let model = &self.qps[qp];
        if !model.is(QpState::Rts) {
            return Ok(());
        }
        let query = |qp: usize| {
            let model = &self.qps[qp];
            let query = self.hosts[model.host].engine().query_qp(model.qpn);
            query.map_err(|e| e.to_string())
        };
        let own = query(qp)?;
        let waiting = model.recvs.len() - model.recvs_ended;
        let held = waiting.checked_sub(own.receives);
        if own.sends > 0 || model.has_own_rq() && held.is_none_or(|held| held > 1) {
            return Err(format!(
                "holds {} sends and {} receives",
                own.sends, own.receives
            ));
        }
        let Some(peer) = self
            .peer_of(qp)
            .filter(|&peer| self.qps[peer].is(QpState::Rts))
        else {
            return Ok(());
        };
        let (next, expected) = (own.attr.sq_psn, query(peer)?.attr.rq_psn);
        if model.kind.is_reliable() && model.can_send() && next != expected {
            return Err(format!(
                "sends psn {next} next, but its peer expects {expected}"
            ));
        }
        Ok(())
    }

    fn check_events(&self, qp: usize) -> Check {
        let model = &self.qps[qp];
        let has = |event| model.events.contains(&event);
        if model.early_requests > 0 && !has(QpEvent::CommunicationEstablished) {
            return Err("request packets arrived in RTR, but no COMM_EST event was raised".into());
        }
        let shared = model.srq.is_some() && model.kind != QpType::XrcTarget;
        if shared && model.is(QpState::Err) && !has(QpEvent::LastWqeReached) {
            return Err("failed without a LAST_WQE_REACHED event".into());
        }
        Ok(())
    }

    /// Checks that all UC WRITEs arrived in a network without faults. Big messages are
    /// exempt, because they can overflow the receive buffer.
    fn check_unreliable_writes(&self) -> Check {
        if self.scenario.family != Family::Clean || self.scenario.features.big {
            return Ok(());
        }
        for (send, record) in self.sends.iter().enumerate() {
            let plain = record.kind == Kind::Write && record.imm.is_none() && record.succeeded();
            let Some((host, place)) = record.remote.filter(|_| plain) else {
                continue;
            };
            let filled = self.hosts[host].arena.filled(place.va);
            if filled != place.len {
                return Err(format!(
                    "send {send}: {filled} of {} bytes arrived",
                    place.len
                ));
            }
        }
        Ok(())
    }

    /// Checks that no requester retried where every request was answered in time.
    fn check_retries(&mut self) -> Check {
        if !self.scenario.needs_no_retry() {
            return Ok(());
        }
        self.coverage.mark("no retry allowed");
        for (index, host) in self.hosts.iter().enumerate() {
            let retries = host.counters.get(Counter::CompleterRetryErr);
            if retries > 0 {
                return Err(format!(
                    "host {index} retried {retries} times, although no packet was lost"
                ));
            }
        }
        Ok(())
    }

    /// Checks that every work request has ended, including flushed receives.
    fn check_all_ended(&self, qp: usize) -> Check {
        let model = &self.qps[qp];
        if model.cause.cq_overflow {
            return Ok(());
        }
        if let Some(&send) = model.sends.get(model.ended) {
            return Err(format!("send {send} never completed"));
        }
        if let Some(&recv) = model.recvs.get(model.recvs_ended) {
            return Err(format!("recv {recv} was never flushed"));
        }
        Ok(())
    }

    fn check_shared_queues(&self) -> Check {
        for (index, srq) in self.srqs.iter().enumerate() {
            let users = self.qps.iter().filter(|qp| qp.host == srq.host);
            let lossy = users.clone().any(|qp| qp.cause.cq_overflow);
            if self.hosts[srq.host].is_dead {
                continue;
            }
            if srq.limit_armed && srq.srq.query().2 == 0 {
                return Err(format!(
                    "shared receive queue {index} ran low without an event"
                ));
            }
            let (want, got) = (srq.outstanding.len(), srq.srq.posted());
            let lost = want.checked_sub(got);
            if !lossy && lost.is_none_or(|lost| lost > srq.may_be_lost) {
                return Err(format!(
                    "shared receive queue {index} holds {got} receives, {want} have not completed"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the engine stops arming timers when nothing is outstanding.
    fn check_timers(&mut self) -> Check {
        for (index, host) in self.hosts.iter_mut().enumerate() {
            if host.is_dead {
                continue;
            }
            let mut fired = 0;
            while let Some(due) = host.engine().next_timeout() {
                fired += 1;
                if fired > MOST_IDLE_TIMERS {
                    return Err(format!("host {index} sets timers with nothing outstanding"));
                }
                host.engine_mut().handle_timeout(due.max(self.now));
            }
        }
        Ok(())
    }

    /// Describes all work that is still outstanding when a run hangs.
    pub(crate) fn describe_hang(&self) -> String {
        let mut text = format!("hangs after {} steps, at {}:", self.steps, self.now);
        for qp in 0..self.qps.len() {
            if self.is_idle(qp) {
                continue;
            }
            let model = &self.qps[qp];
            text += &format!(
                "\n  {} in {:?}: {} to post, {:?}, {} undelivered, {} datagrams unreported",
                self.qp_name(qp),
                model.state,
                model.todo,
                model.drain,
                self.undelivered(qp),
                model.datagrams.len()
            );
            let open = |send: &&usize| self.sends[**send].end.is_none();
            for &send in model.sends.iter().filter(open).take(4) {
                text += &format!("\n    {}", describe_send(send, &self.sends[send]));
            }
        }
        text
    }
}

fn describe_send(index: usize, record: &SendRecord) -> String {
    let name = wr_name(send_wr_id(index));
    let (kind, len) = (record.kind, record.payload.len());
    let end = match record.end {
        Some(End::Completed(status)) => status.to_string(),
        Some(End::Discarded) => "discarded".into(),
        None => "outstanding".into(),
    };
    format!("{name}: {kind:?} of {len} bytes, {end}")
}
