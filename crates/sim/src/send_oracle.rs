//! The oracle for sends. It checks that they complete in order and exactly once,
//! with a status that has a cause, and with the effect that the status implies.

use ferroce_roce::{QpState, Wc, WcStatus};

use crate::model::{End, Kind};
use crate::world::{Check, World};

impl World {
    /// Checks the completion of a send.
    pub(crate) fn send_completed(&mut self, qp: usize, send: usize, wc: &Wc) -> Check {
        let record = &self.sends[send];
        if record.qp != qp {
            return Err(format!(
                "completed on a queue pair other than {}",
                record.qp
            ));
        }
        if let Some(end) = record.end {
            return Err(format!(
                "completed with {}, but it has already ended: {end:?}",
                wc.status
            ));
        }
        let (index, signaled) = (record.index, record.signaled);
        self.complete_unsignaled(qp, index)?;
        self.qps[qp].ended = index + 1;
        if wc.status == WcStatus::Success {
            if !signaled {
                return Err("a completion of an unsignaled request".into());
            }
            self.check_send_fields(send, wc)?;
            return self.send_succeeded(qp, send);
        }
        let first = self.qps[qp].first_error;
        match first {
            None => {
                self.check_first_error(qp, send, wc.status)?;
                self.qps[qp].first_error = Some((send, wc.status));
            }
            Some(_) if wc.status != WcStatus::WrFlush => {
                return Err(format!(
                    "{} after an error, where only a flush may follow",
                    wc.status
                ));
            }
            Some(_) => {}
        }
        self.send_failed(send, End::Completed(wc.status));
        Ok(())
    }

    /// Records that all requests before `index` have succeeded. Checks that they are
    /// unsignaled.
    fn complete_unsignaled(&mut self, qp: usize, index: usize) -> Check {
        let (from, lossy) = (self.qps[qp].ended, self.qps[qp].cause.cq_overflow);
        if index < from {
            return Err(format!(
                "number {index} of its queue, but number {from} is next"
            ));
        }
        for skipped in from..index {
            let other = self.qps[qp].sends[skipped];
            if lossy {
                // Its completion may be lost in the overflow, so its outcome is unknown.
                self.send_failed(other, End::Discarded);
                continue;
            }
            if self.sends[other].signaled || self.qps[qp].first_error.is_some() {
                return Err(format!("completed before send {other}"));
            }
            self.send_succeeded(qp, other)
                .map_err(|e| format!("implies that send {other} has succeeded: {e}"))?;
        }
        Ok(())
    }

    /// Records that the requests of a failed queue pair that have no error completion
    /// succeeded, unsignaled, before the failure.
    pub(crate) fn finish_unsignaled(&mut self, qp: usize) -> Check {
        let model = &self.qps[qp];
        let over = model.is(QpState::Err) || model.is(QpState::Sqe);
        if !over || model.pending() == 0 || !self.cqs[model.send_cq].cq.is_empty() {
            return Ok(());
        }
        let all = model.sends.len();
        let done = self.complete_unsignaled(qp, all);
        done.map_err(|e| format!("the failure of {}: {e}", self.qp_name(qp)))?;
        self.qps[qp].ended = all;
        Ok(())
    }

    fn check_send_fields(&self, send: usize, wc: &Wc) -> Check {
        let record = &self.sends[send];
        if wc.opcode != record.kind.wc_opcode() {
            return Err(format!("completed as {:?}", wc.opcode));
        }
        let len = match record.kind {
            Kind::Bind | Kind::LocalInvalidate | Kind::Flush => 0,
            Kind::Send
            | Kind::SendInvalidate
            | Kind::Write
            | Kind::Read
            | Kind::CompareSwap
            | Kind::FetchAdd
            | Kind::AtomicWrite => record.payload.len(),
        };
        if wc.byte_len as usize != len {
            return Err(format!("completed with {} bytes, not {len}", wc.byte_len));
        }
        Ok(())
    }

    /// Records the success of a request, and checks its effect.
    fn send_succeeded(&mut self, qp: usize, send: usize) -> Check {
        if self.qps[qp].first_error.is_some() {
            return Err("success after an error".into());
        }
        let record = &self.sends[send];
        if !record.allowed.success {
            return Err(format!(
                "succeeded, but it should have failed with {:?}",
                record.allowed.errors
            ));
        }
        self.check_effect(qp, send)?;
        self.sends[send].end = Some(End::Completed(WcStatus::Success));
        self.free_local(send);
        self.free_remote(qp, send);
        let record = &self.sends[send];
        if let Some(w) = record.window {
            self.window_ended(w, record.kind, true);
        }
        Ok(())
    }

    fn check_effect(&self, qp: usize, send: usize) -> Check {
        let record = &self.sends[send];
        let reliable = self.qps[qp].kind.is_reliable();
        match record.kind {
            Kind::Write | Kind::AtomicWrite if reliable => {
                let Some((host, place)) = record.remote else {
                    return Ok(());
                };
                let filled = self.hosts[host].arena.filled(place.va);
                if filled != place.len {
                    return Err(format!(
                        "succeeded with {filled} of {} bytes written",
                        place.len
                    ));
                }
                Ok(())
            }
            Kind::Read => {
                let got = self.local_bytes(send);
                match got == *record.payload {
                    true => Ok(()),
                    false => {
                        Err("succeeded, but the local memory does not hold the remote data".into())
                    }
                }
            }
            Kind::FetchAdd | Kind::CompareSwap => self.check_atomic(send),
            Kind::Flush => {
                let peer = self.peer_of(qp).ok_or("no peer")?;
                let (start, len, persistent) = record.flush.ok_or("no range")?;
                let arena = &self.hosts[self.qps[peer].host].arena;
                match arena.was_flushed(start, len, persistent) {
                    true => Ok(()),
                    false => Err("succeeded, but nothing was flushed".into()),
                }
            }
            Kind::Send if self.qps[qp].is_datagram() => {
                match self.qps[qp].datagrams_sent > record.index {
                    true => Ok(()),
                    false => Err("succeeded, but its datagram was not sent".into()),
                }
            }
            // The receiver's completion shows the effect of a message.
            Kind::Send | Kind::SendInvalidate | Kind::Write | Kind::AtomicWrite => Ok(()),
            // Later requests show the state of a window.
            Kind::LocalInvalidate | Kind::Bind => Ok(()),
        }
    }

    fn check_atomic(&self, send: usize) -> Check {
        let target = self.sends[send].atomic.ok_or("no target")?;
        let op = self.hosts[target.host]
            .arena
            .atomic(target.va, target.operand);
        let Some(original) = op.original else {
            return Err("succeeded, but was never executed".into());
        };
        let got = self.local_bytes(send);
        if got != original.to_ne_bytes() {
            return Err(format!(
                "returned {got:x?}, not {:x?}",
                original.to_ne_bytes()
            ));
        }
        Ok(())
    }

    /// Returns the contents of a request's local memory.
    fn local_bytes(&self, send: usize) -> Vec<u8> {
        let record = &self.sends[send];
        let arena = &self.hosts[self.qps[record.qp].host].arena;
        let pieces = record.local.iter().map(|p| arena.peek(p.va, p.len));
        pieces.flatten().collect()
    }

    /// Records that a request failed or was discarded. Its effect may have happened
    /// in part or in full.
    pub(crate) fn send_failed(&mut self, send: usize, end: End) {
        self.sends[send].end = Some(end);
        self.free_local(send);
        let (owner, kind) = (self.sends[send].qp, self.sends[send].kind);
        if let Some(w) = self.sends[send].window {
            self.window_ended(w, kind, false);
            // A late packet may arrive when the window is bound to other memory.
            self.sends[send].allowed.refusable = true;
        }
        // Late packets may still have an effect while the peer can receive.
        let can_receive = self
            .peer_of(owner)
            .is_some_and(|peer| self.qps[peer].can_receive());
        if !can_receive {
            self.close_remote(send);
        }
    }

    /// Returns the request's local memory to the program. Any further access by the
    /// adapter is a violation.
    fn free_local(&mut self, send: usize) {
        let host = self.qps[self.sends[send].qp].host;
        for place in std::mem::take(&mut self.sends[send].local) {
            self.hosts[host].arena.remove(place.va);
            self.hosts[host].release(place);
        }
    }

    fn free_remote(&mut self, qp: usize, send: usize) {
        let record = &self.sends[send];
        let unsure = !self.qps[qp].kind.is_reliable(); // packets may still be in flight
        let Some((host, place)) = record.remote else {
            return;
        };
        if unsure {
            return;
        }
        let (last, window) = (record.frees_remote, record.window.is_some());
        if last || window {
            self.hosts[host].arena.remove(place.va);
        }
        if last {
            self.hosts[host].release(place);
        }
        self.sends[send].remote = None;
    }

    /// Forbids any effect of the request on the peer's memory from now on.
    pub(crate) fn close_remote(&mut self, send: usize) {
        let record = &self.sends[send];
        if let Some((host, place)) = record.remote {
            self.hosts[host].arena.close(place.va);
        }
        if let Some(target) = record.atomic {
            let arena = &self.hosts[target.host].arena;
            arena.close_atomic(target.va, target.operand);
        }
    }

    /// Records that a queue pair no longer accepts requests. From now on its peer's
    /// requests must not have an effect.
    pub(crate) fn stopped_receiving(&mut self, qp: usize) {
        let Some(peer) = self.peer_of(qp) else {
            return;
        };
        self.qps[peer].cause.peer_gone = true;
        for at in 0..self.qps[peer].sends.len() {
            self.close_remote(self.qps[peer].sends[at]);
        }
    }

    /// Checks that the first error of a queue pair has a cause, and that both ends
    /// agree on the failure.
    fn check_first_error(&mut self, qp: usize, send: usize, status: WcStatus) -> Check {
        let (model, record) = (&self.qps[qp], &self.sends[send]);
        let setup = &model.setup;
        let legal = match status {
            WcStatus::WrFlush => self.has_outside_cause(qp),
            WcStatus::RetryExceeded => {
                let most = model.sent.values().max().copied().unwrap_or(0);
                let tries = u32::from(setup.retry_cnt) + 1;
                // The requester retransmits one packet before each request that fails locally,
                // to have the earlier requests acknowledged.
                let fails_here = |send: &&usize| {
                    let errors = &self.sends[**send].allowed.errors;
                    errors.contains(&WcStatus::LocalProtection)
                };
                let again = model.sends.iter().filter(fails_here).count() as u32;
                if model.peer_unreachable && again == 0 {
                    self.coverage.mark("retries counted exactly");
                }
                let most_tries = tries + again + most_probes(setup.timeout, tries);
                // Runs that wait for room in memory use up retries.
                let waited = self.scenario.local.is_some() && model.cause.outage;
                let few = most < tries && !waited;
                if few || model.peer_unreachable && most > most_tries {
                    return Err(format!(
                        "retries exceeded after {most} transmissions, not {tries}"
                    ));
                }
                // A retransmitted READ gets no response if its rkey was deregistered.
                let forgotten = record.kind == Kind::Read && record.allowed.refusable;
                let excuse = model.cause.peer_gone || model.cause.outage || forgotten;
                model.kind.is_reliable() && (excuse || self.scenario.features.few_retries)
            }
            WcStatus::RnrRetryExceeded => {
                setup.rnr_retry < 7 && model.rnr_naks > u32::from(setup.rnr_retry)
            }
            WcStatus::RemoteOperation
                if matches!(record.kind, Kind::Send | Kind::SendInvalidate) =>
            {
                record.allowed.errors.contains(&status)
                    || self
                        .peer_of(qp)
                        .is_some_and(|peer| self.qps[peer].bad_receives)
            }
            _ => record.allowed.errors.contains(&status),
        };
        if !legal {
            return Err(format!("{status} without a cause"));
        }
        if model.kind.is_reliable() && !model.is(QpState::Err) {
            return Err(format!(
                "{status}, but the queue pair is in {:?}",
                model.state
            ));
        }
        let remote = matches!(
            status,
            WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperation
        );
        if remote
            && self
                .peer_of(qp)
                .is_some_and(|peer| self.qps[peer].can_receive())
        {
            return Err(format!("{status}, but the peer still accepts requests"));
        }
        Ok(())
    }

    /// Returns true if something other than its own sends may have failed a queue pair.
    pub(crate) fn has_outside_cause(&self, qp: usize) -> bool {
        let model = &self.qps[qp];
        let refused = self.peer_of(qp).is_some_and(|peer| {
            let peer_sends = self.qps[peer].sends.iter();
            model.bad_receives || peer_sends.clone().any(|&s| self.sends[s].allowed.refusable)
        });
        model.cause.program || model.cause.cq_overflow || refused
    }
}

/// Returns the most loss probes during this many ACK timeouts without a response.
/// Each timeout is four times its attribute. The first probe comes after a
/// millisecond or the attribute, whichever is less; each further one waits twice
/// as long.
fn most_probes(timeout: u8, timeouts: u32) -> u32 {
    let attribute = 4096u64 << timeout;
    let first = attribute.min(1_000_000);
    (4 * attribute * u64::from(timeouts) / first).ilog2() + 1
}
