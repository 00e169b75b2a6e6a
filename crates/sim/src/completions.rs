//! Polling of completions and events, and their checks.

use ferroce_roce::{Arm, Event, QpEvent, Wc, WcStatus};

use crate::model::{CqMode, Drain, RecvOwner, Solicited};
use crate::slot::{WrRef, wr_name};
use crate::world::{Check, World};

impl World {
    /// Polls a completion queue as its program would: at random times, or after a
    /// notification.
    pub(crate) fn poll_as_program(&mut self, cq: usize) -> Check {
        match self.cqs[cq].mode {
            CqMode::Polled => {
                let lazy = self.cqs[cq].small && !self.healed;
                if self.rng.chance(if lazy { 0.3 } else { 0.8 }) {
                    let most = self.rng.pick(&[1, 16, usize::MAX]);
                    self.poll(cq, most)?;
                }
                Ok(())
            }
            CqMode::Any if !self.cqs[cq].notified => Ok(()),
            CqMode::Any => self.poll_and_arm(cq, Arm::Any),
            CqMode::Solicited => self.poll_solicited(cq),
        }
    }

    /// Polls all completions, arms the queue, and polls once more. The second poll
    /// catches completions that came before the queue was armed.
    fn poll_and_arm(&mut self, cq: usize, arm: Arm) -> Check {
        self.poll(cq, usize::MAX)?;
        self.cqs[cq].notified = false;
        self.cqs[cq].cq.arm(arm);
        self.poll(cq, usize::MAX)?;
        Ok(())
    }

    /// Polls a queue armed for solicited completions. Checks that it was notified if
    /// and only if one of its completions is solicited.
    fn poll_solicited(&mut self, cq: usize) -> Check {
        let notified = self.cqs[cq].notified;
        if !notified && !self.rng.chance(0.3) && !self.healed {
            return Ok(());
        }
        let before = self.cqs[cq].armed;
        let solicited = self.poll(cq, usize::MAX)?;
        let right = solicited == Solicited::Unknown || solicited == notified.into();
        if before && !right {
            return Err(format!(
                "completion queue {cq}, armed for solicited completions: \
                 notified {notified}, with a solicited one among them: {solicited:?}"
            ));
        }
        if notified || !before {
            self.cqs[cq].notified = false;
            self.cqs[cq].armed = true;
            self.cqs[cq].cq.arm(Arm::Solicited);
        }
        Ok(())
    }

    /// Polls all completions of a host.
    pub(crate) fn poll_host(&mut self, host: usize) -> Check {
        if self.hosts[host].is_dead {
            return Ok(());
        }
        for cq in 0..self.cqs.len() {
            if self.cqs[cq].host != host {
                continue;
            }
            if self.cqs[cq].mode == CqMode::Solicited {
                self.cqs[cq].armed = false; // the check of notifications misses these completions
            }
            self.poll(cq, usize::MAX)?;
        }
        Ok(())
    }

    /// Polls up to `most` completions; returns whether one was solicited.
    pub(crate) fn poll(&mut self, cq: usize, most: usize) -> Result<Solicited, String> {
        let mut solicited = Solicited::No;
        for _ in 0..most {
            let Some(wc) = self.cqs[cq].cq.pop() else {
                break;
            };
            let host = self.cqs[cq].host;
            self.trace.host(self.now, host, || {
                let (name, status) = (wr_name(wc.wr_id), wc.status);
                let rest = match status {
                    WcStatus::Success => format!("{:?}, {} bytes", wc.opcode, wc.byte_len),
                    _ => String::new(),
                };
                format!("completion of {name} on qp {:#x}: {status} {rest}", wc.qpn)
            });
            solicited = solicited.max(self.completed(cq, &wc)?);
        }
        Ok(solicited)
    }

    /// Checks a completion.
    fn completed(&mut self, cq: usize, wc: &Wc) -> Result<Solicited, String> {
        let host = self.cqs[cq].host;
        let name = wr_name(wc.wr_id);
        let Some(&qp) = self.by_number.get(&(host, wc.qpn)) else {
            return Err(format!("completion of {name} for unknown qp {:#x}", wc.qpn));
        };
        let context = format!("{name} on {}", self.qp_name(qp));
        if wc.timestamp > self.now || wc.timestamp < self.cqs[cq].latest {
            return Err(format!("{context} completed at {}", wc.timestamp));
        }
        self.cqs[cq].latest = wc.timestamp;
        let reported = matches!(wc.status, WcStatus::Success | WcStatus::WrFlush)
            || self.failures.get(&wc.wr_id) == Some(&wc.status);
        if !reported {
            return Err(format!(
                "{context}: {}, but no failure event reported it",
                wc.status
            ));
        }
        let wr = WrRef::of(wc.wr_id);
        self.coverage
            .completed(matches!(wr, WrRef::Recv(_)), wc.status);
        match wr {
            WrRef::Send(send) if send < self.sends.len() => {
                if self.qps[qp].send_cq != cq {
                    return Err(format!("{context} completed in queue {cq}"));
                }
                self.send_completed(qp, send, wc)
                    .map_err(|e| format!("{context}: {e}"))?;
                Ok((wc.status != WcStatus::Success).into())
            }
            WrRef::Recv(recv) if recv < self.recvs.len() => {
                if self.recv_cq_of(qp, recv) != cq {
                    return Err(format!("{context} completed in queue {cq}"));
                }
                self.recv_completed(qp, recv, wc)
                    .map_err(|e| format!("{context}: {e}"))
            }
            _ => Err(format!("completion of {context}, which was never posted")),
        }
    }

    /// Returns the completion queue of a receive. An XRC shared receive queue has one
    /// of its own.
    fn recv_cq_of(&self, qp: usize, recv: usize) -> usize {
        match self.recvs[recv].owner {
            RecvOwner::Srq(srq) => self.srqs[srq].xrc.map(|(_, cq)| cq),
            RecvOwner::Qp(_) => None,
        }
        .unwrap_or(self.qps[qp].recv_cq)
    }

    /// Returns true if a queue pair's completions go to a completion queue.
    fn completes_in(&self, qp: usize, cq: usize) -> bool {
        let model = &self.qps[qp];
        let xrc = |srq: &crate::model::SrqModel| {
            srq.xrc
                .is_some_and(|(domain, its)| model.domain == Some(domain) && its == cq)
        };
        model.send_cq == cq || model.recv_cq == cq || self.srqs.iter().any(xrc)
    }

    /// Checks an event of an engine.
    pub(crate) fn note_event(&mut self, host: usize, event: &Event) -> Check {
        match event {
            Event::Failure(failure) => {
                if let Some(wr_id) = failure.wr_id {
                    self.failures.insert(wr_id, failure.status);
                }
                Ok(())
            }
            Event::CqNotify { cq } => {
                let model = &mut self.cqs[*cq as usize];
                if model.host != host || model.mode == CqMode::Polled {
                    return Err(format!("completion queue {cq} was never armed"));
                }
                model.notified = true;
                self.coverage.mark("completion queue notified");
                Ok(())
            }
            Event::CqError { cq } => {
                let model = &mut self.cqs[*cq as usize];
                model.overflowed = true;
                if !model.small {
                    return Err(format!(
                        "completion queue {cq} overflowed, although it is large enough"
                    ));
                }
                self.coverage.mark("completion queue overflowed");
                let cq = *cq as usize;
                for qp in 0..self.qps.len() {
                    if self.completes_in(qp, cq) {
                        self.qps[qp].cause.cq_overflow = true;
                    }
                }
                Ok(())
            }
            Event::SrqLimitReached { srq } => {
                let found = self.srqs.iter_mut().find(|s| s.srq.number() == *srq);
                let armed = found.is_some_and(|model| std::mem::take(&mut model.limit_armed));
                self.coverage.mark("shared receive queue ran low");
                match armed {
                    true => Ok(()),
                    false => Err(format!(
                        "limit event of shared receive queue {srq:#x}, whose limit is not armed"
                    )),
                }
            }
            Event::Qp { qpn, kind } => {
                let Some(&qp) = self.by_number.get(&(host, *qpn)) else {
                    return Err(format!("event {kind:?} of unknown qp {qpn:#x}"));
                };
                self.note_qp_event(qp, *kind)
            }
        }
    }

    fn note_qp_event(&mut self, qp: usize, kind: QpEvent) -> Check {
        let healed = self.healed;
        self.coverage.event(kind);
        let model = &mut self.qps[qp];
        model.events.push(kind);
        if kind == QpEvent::SqDrained {
            if model.drain != Drain::Draining {
                return Err(format!(
                    "{} reports SQ_DRAINED without a drain",
                    self.qp_name(qp)
                ));
            }
            model.drain = Drain::Drained;
            if healed {
                let at = self.now.after_nanos(1);
                self.event_queue
                    .schedule(at, crate::event_queue::SimEvent::Resume { qp });
            }
        }
        Ok(())
    }
}
