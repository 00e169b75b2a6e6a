//! Simulated programs: they poll completions, post receives and post sends.

use ferroce_roce::{QpState, QpType, SendFlags, SendOp};

use crate::event_queue::SimEvent;
use crate::model::Drain;
use crate::payload::payload;
use crate::post::{Draft, DraftData};
use crate::world::{Check, World};

/// The next action of a program.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Choice {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
    Flush,
    /// A READ and then a fenced WRITE of the same memory.
    ReadThenWrite,
    /// A WRITE and then a READ of the same memory.
    WriteThenRead,
    /// A bind, use or invalidation of a memory window.
    Window,
}

impl World {
    /// Runs one step of the program on a host.
    pub(crate) fn program(&mut self, host: usize) -> Check {
        if self.device_rng.chance(self.hosts[host].polls / 4.0) {
            self.poll_turn(host)?;
        }
        let posted = (self.sends.len(), self.recvs.len());
        for cq in 0..self.cqs.len() {
            if self.cqs[cq].host == host {
                self.poll_as_program(cq)?;
            }
        }
        for qp in 0..self.qps.len() {
            if self.qps[qp].host != host || self.qps[qp].state.is_none() {
                continue;
            }
            let pace = if self.healed {
                1.0
            } else {
                self.scenario.receive_pace
            };
            if self.rng.chance(pace) {
                self.post_receives(qp)?;
            }
            self.arm_limit(qp)?;
            self.post_sends(qp)?;
            if self.scenario.features.reconnect {
                self.consider_reconnecting(qp)?;
            }
            self.finish_unsignaled(qp)?;
            self.recover(qp)?;
            self.check_completed_transfer(qp)?;
        }
        if self.rng.chance(0.01) {
            self.resize_queues(host)?;
        }
        // A program that posts nothing does not call its device.
        if posted != (self.sends.len(), self.recvs.len()) {
            self.after_receives(host)?;
        }
        let busy = self.qps.iter().any(|qp| qp.host == host && qp.todo > 0);
        let step = self.scenario.step_ns * if busy { 1 } else { 4 };
        let at = self.now.after_nanos(step / 2 + self.rng.below(step));
        self.event_queue.schedule(at, SimEvent::Program { host });
        Ok(())
    }

    fn post_sends(&mut self, qp: usize) -> Check {
        if !self.qps[qp].can_send() {
            return Ok(());
        }
        let mut before = self.sends.len();
        for _ in 0..self.rng.range(0..=6) {
            let model = &self.qps[qp];
            if model.todo == 0 || !self.may_post(qp) {
                break;
            }
            let room = self.room(qp)?;
            if room == 0 {
                self.try_full_queue(qp)?;
                break;
            }
            self.post_something(qp, room)?;
            self.qps[qp].todo -= 1;
            if self.rng.chance(0.3) {
                self.after_posts(qp)?;
                before = self.sends.len();
            }
        }
        if self.rng.chance(0.02) {
            self.try_invalid_call(qp)?;
        }
        self.post_final_signaled(qp)?;
        match self.sends.len() == before {
            true => Ok(()),
            false => self.after_posts(qp),
        }
    }

    /// Returns true if the program may post to a queue pair.
    fn may_post(&mut self, qp: usize) -> bool {
        match self.qps[qp].state {
            Some(QpState::Rts | QpState::Sqd) => true,
            // Requests posted to a failed queue pair are flushed; a few suffice.
            Some(QpState::Err | QpState::Sqe) => {
                if !self.scenario.features.reconnect && !self.rng.chance(0.3) {
                    self.qps[qp].todo = 0;
                }
                self.qps[qp].todo > 0 && self.rng.chance(0.2)
            }
            _ => false,
        }
    }

    /// Resizes the completion queues and shared receive queues of a host.
    fn resize_queues(&mut self, host: usize) -> Check {
        for cq in self.cqs.iter().filter(|cq| cq.host == host && !cq.small) {
            let size = self.rng.range(4000..=8000) as u32;
            cq.cq.resize(size).map_err(|e| format!("resize: {e}"))?;
        }
        for srq in self.srqs.iter().filter(|srq| srq.host == host) {
            let size = self.rng.range(64..=200) as u32;
            srq.srq.resize(size).map_err(|e| format!("resize: {e}"))?;
        }
        Ok(())
    }

    /// Arms the limit of a shared receive queue.
    fn arm_limit(&mut self, qp: usize) -> Check {
        let Some(srq) = self.qps[qp].srq else {
            return Ok(());
        };
        if self.srqs[srq].limit_armed || !self.rng.chance(0.1) {
            return Ok(());
        }
        let limit = self.rng.range(1..=16) as u32;
        let set = self.srqs[srq].srq.set_limit(limit);
        set.map_err(|e| format!("set_limit: {e}"))?;
        self.srqs[srq].limit_armed = true;
        Ok(())
    }

    /// Moves a queue pair from SQE back to RTS, once all its sends have been flushed.
    fn recover(&mut self, qp: usize) -> Check {
        let model = &self.qps[qp];
        if !model.is(QpState::Sqe) || model.pending() > 0 || !self.rng.chance(0.3) {
            return Ok(());
        }
        self.coverage.mark("send queue recovered");
        self.modify(qp, QpState::Rts)?;
        self.qps[qp].first_error = None;
        // A send that failed while the queue was drained has ended the drain.
        if self.qps[qp].drain == Drain::Drained {
            self.qps[qp].drain = Drain::No;
        }
        Ok(())
    }

    /// Returns the number of work requests that the send queue has room for.
    fn room(&self, qp: usize) -> Result<u32, String> {
        let model = &self.qps[qp];
        let query = self.hosts[model.host].engine().query_qp(model.qpn);
        let query = query.map_err(|e| e.to_string())?;
        if query.sends > model.pending() {
            return Err(format!("{} holds {} sends", self.qp_name(qp), query.sends));
        }
        Ok(model.cap.max_send_wr - query.sends as u32)
    }

    fn post_something(&mut self, qp: usize, room: u32) -> Check {
        let kind = self.qps[qp].kind;
        if kind.is_datagram() {
            return self.post_datagram(qp);
        }
        if self.rng.chance(self.scenario.bad) && !self.healed {
            return self.post_bad(qp);
        }
        let choice = match self.qps[qp].only {
            Some(choice) => choice,
            None => self.choose(kind, room),
        };
        self.post_choice(qp, choice)
    }

    fn choose(&mut self, kind: QpType, room: u32) -> Choice {
        use Choice::*;
        if self.scenario.features.windows && kind == QpType::Rc && self.rng.chance(0.6) {
            return Window;
        }
        if self.scenario.features.fences && kind != QpType::Uc && room > 1 && self.rng.chance(0.4) {
            return self
                .rng
                .pick(&[ReadThenWrite, ReadThenWrite, WriteThenRead]);
        }
        match kind {
            QpType::Uc => self.rng.pick(&[Send, Write]),
            QpType::XrcInitiator => {
                self.rng
                    .pick(&[Send, Send, Write, Write, Read, Read, FetchAdd, CompareSwap])
            }
            _ => self.rng.pick(&[
                Send,
                Send,
                Send,
                Write,
                Write,
                Write,
                Read,
                Read,
                Read,
                FetchAdd,
                FetchAdd,
                CompareSwap,
                AtomicWrite,
                Flush,
            ]),
        }
    }

    /// Draws the flags of a work request.
    pub(crate) fn draw_flags(&mut self, qp: usize) -> SendFlags {
        let mut flags = SendFlags::empty();
        let last = self.qps[qp].todo <= 1;
        flags.set(SendFlags::SIGNALED, last || self.rng.chance(0.5));
        flags.set(SendFlags::SOLICITED, self.rng.chance(0.2));
        flags.set(SendFlags::FENCE, self.rng.chance(0.1));
        flags
    }

    /// Draws the length of a message, often near a multiple of the path MTU.
    pub(crate) fn draw_len(&mut self, qp: usize, most: u64) -> u64 {
        if self.qps[qp].only.is_some() {
            return self.rng.range(most / 2..=most);
        }
        let mtu = self.qps[qp].setup.mtu.bytes() as u64;
        let len = match self.rng.below(10) {
            0 => 0,
            1 | 2 => self.rng.range(1..=16),
            3..=5 => self.rng.range(1..=8) * mtu + self.rng.range(0..=2) - 1,
            6 | 7 => self.rng.range(0..=most.min(4 * mtu)),
            _ => self.rng.range(0..=most),
        };
        len.min(most)
    }

    /// Posts a final signaled request if the program's last request is unsignaled.
    /// Its completion shows that the earlier requests have completed.
    fn post_final_signaled(&mut self, qp: usize) -> Check {
        let model = &self.qps[qp];
        let Some(&last) = model.sends.last() else {
            return Ok(());
        };
        let silent = !self.sends[last].signaled && self.sends[last].end.is_none();
        let idle = model.todo == 0 && model.is(QpState::Rts) && model.drain == Drain::No;
        if !silent || !idle || self.room(qp)? == 0 {
            return Ok(());
        }
        if self.qps[qp].is_datagram() {
            return self.post_datagram(qp);
        }
        let op = SendOp::Write {
            remote_addr: 0,
            rkey: 0,
            imm: None,
        };
        let mut draft = Draft::new(op);
        draft.flags = SendFlags::SIGNALED;
        draft.xrc_srq = self.draw_xrc_srq(qp);
        self.submit(qp, draft)
    }

    /// Draws the shared receive queue of an XRC request.
    pub(crate) fn draw_xrc_srq(&mut self, qp: usize) -> Option<usize> {
        if self.qps[qp].kind != QpType::XrcInitiator {
            return None;
        }
        let domain = self.qps[self.peer_of(qp)?].domain?;
        let all = self.srqs_of_domain(domain);
        Some(self.rng.pick(&all))
    }

    /// Sets the payload of a draft, from memory or inline. Returns `None` if there is
    /// no memory for it.
    pub(crate) fn draw_source(&mut self, qp: usize, draft: &mut Draft, len: u64) -> Option<()> {
        draft.payload = payload(self.seed, self.next_wr_id(), len as usize);
        let inline = len <= u64::from(self.qps[qp].cap.max_inline_data) && self.rng.chance(0.2);
        draft.data = if inline {
            draft.flags |= SendFlags::INLINE;
            DraftData::Inline
        } else {
            DraftData::Places(self.alloc_source(qp, &draft.payload)?)
        };
        Some(())
    }
}
