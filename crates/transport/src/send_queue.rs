//! The ring of posted sends, with the memory they refer to.

use std::collections::VecDeque;

use ferroce_wire::Psn;

use crate::error::Reason;
use crate::verbs::{SendData, SendFlags, SendOp, SendWr, Sge, UdTarget, WcOpcode, WcStatus};

/// How far a work request has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    /// Nothing of it has happened.
    #[default]
    Posted,
    /// It has PSNs, and packets may have left.
    Started,
    /// It is done and completes when it is the oldest.
    Done,
}

/// A send work request in the queue. Ten thousand queue pairs have many of
/// them, so what few need stands elsewhere: see [`SendQueue`].
#[derive(Debug, Default)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    /// The first element of the gather list.
    pub(crate) sge: Sge,
    pub(crate) flags: SendFlags,
    pub(crate) phase: Phase,
    pub(crate) inline: bool,
    pub(crate) num_sge: u8,
    /// Bytes of the message.
    pub(crate) length: u32,
    /// The PSN of its first packet, once started.
    pub(crate) first_psn: Psn,
    /// How many PSNs it takes, once started.
    pub(crate) packets: u32,
    /// For a READ: how many packets one request asks for.
    pub(crate) chunk: u32,
    pub(crate) xrc_srq: u32,
}

/// What remains to be said of a work request that is over.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    pub(crate) immediate: bool,
    pub(crate) signaled: bool,
    pub(crate) length: u32,
}

impl Finished {
    #[inline]
    pub(crate) fn of(wr_id: u64, op: &SendOp, flags: SendFlags, length: u32) -> Finished {
        let (opcode, immediate) = match op {
            SendOp::Send { imm } => (WcOpcode::Send, imm.is_some()),
            SendOp::SendInvalidate { .. } => (WcOpcode::Send, false),
            SendOp::Write { imm, .. } => (WcOpcode::RdmaWrite, imm.is_some()),
            SendOp::Read { .. } => (WcOpcode::RdmaRead, false),
            SendOp::CompareSwap { .. } => (WcOpcode::CompareSwap, false),
            SendOp::FetchAdd { .. } => (WcOpcode::FetchAdd, false),
            SendOp::AtomicWrite { .. } => (WcOpcode::AtomicWrite, false),
            SendOp::Flush { .. } => (WcOpcode::Flush, false),
            SendOp::LocalInvalidate { .. } => (WcOpcode::LocalInvalidate, false),
            SendOp::BindMw(_) => (WcOpcode::BindMw, false),
        };
        Finished {
            wr_id,
            opcode,
            immediate,
            signaled: flags.contains(SendFlags::SIGNALED),
            length,
        }
    }
}

/// Why a work request fails when its turn to complete comes.
#[derive(Debug)]
pub(crate) struct Failing {
    /// Which, counted from the oldest.
    index: usize,
    pub(crate) status: WcStatus,
    pub(crate) reason: Reason,
}

impl Wqe {
    #[inline]
    fn finished(&self) -> Finished {
        Finished::of(self.wr_id, &self.op, self.flags, self.length)
    }

    /// Answered by data or by a response of its own, not by a plain ACK.
    pub(crate) fn wants_response(&self) -> bool {
        matches!(
            self.op,
            SendOp::Read { .. }
                | SendOp::CompareSwap { .. }
                | SendOp::FetchAdd { .. }
                | SendOp::AtomicWrite { .. }
                | SendOp::Flush { .. }
        )
    }

    /// Bytes of the message before its packet number `packet`.
    pub(crate) fn bytes_before(&self, packet: u32, mtu: u32) -> u64 {
        (u64::from(packet) * u64::from(mtu)).min(u64::from(self.length))
    }
}

#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Fixed slots, so that completing a work request moves nothing; those that
    /// were never used are not there yet.
    slots: Vec<Wqe>,
    capacity: usize,
    /// The slot of the oldest, and how many there are.
    first: usize,
    len: usize,
    /// Where datagrams go; empty for other queue pairs.
    targets: VecDeque<UdTarget>,
    /// Gather elements beyond the first, `max_sge - 1` for each slot; those of
    /// slots that were never used are not there yet.
    more_sges: Vec<Sge>,
    inline: Box<[u8]>,
    /// The oldest work request that fails, if one does.
    failing: Option<Box<Failing>>,
    max_sge: usize,
    max_inline: usize,
}

impl SendQueue {
    pub(crate) fn new(capacity: u32, max_sge: u32, max_inline: u32) -> SendQueue {
        let (capacity, max_sge) = (capacity as usize, max_sge as usize);
        let max_inline = max_inline as usize;
        let more = capacity * max_sge.saturating_sub(1);
        SendQueue {
            slots: Vec::with_capacity(capacity),
            capacity,
            first: 0,
            len: 0,
            targets: VecDeque::new(),
            more_sges: Vec::with_capacity(more),
            inline: vec![0; capacity * max_inline].into_boxed_slice(),
            failing: None,
            max_sge,
            max_inline,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is room for one more when `ahead` others have been added.
    pub(crate) fn has_room(&self, ahead: usize) -> bool {
        self.capacity - self.len > ahead
    }

    /// Adds a work request with a message of so many bytes. There must be room.
    #[inline(always)]
    pub(crate) fn push(&mut self, wr: SendWr<'_>, length: u32, datagram: bool) {
        debug_assert!(self.has_room(0), "posting has checked that there is room");
        let slot = self.slot(self.len);
        if slot == self.slots.len() {
            self.slots.push(Wqe::default());
        }
        // Written where it stays: to copy what has just been written is slow.
        let wqe = &mut self.slots[slot];
        wqe.wr_id = wr.wr_id;
        wqe.op = wr.op;
        wqe.flags = wr.flags;
        wqe.phase = Phase::Posted;
        wqe.packets = 0;
        wqe.length = length;
        wqe.xrc_srq = wr.xrc_srq;
        match wr.data {
            SendData::Sges(sges) => {
                wqe.inline = false;
                wqe.num_sge = sges.len() as u8;
                if let [first, more @ ..] = sges {
                    wqe.sge = *first;
                    if !more.is_empty() {
                        let at = slot * (self.max_sge - 1);
                        if self.more_sges.len() < at + more.len() {
                            let end = at + self.max_sge - 1;
                            self.more_sges.resize(end, Sge::default());
                        }
                        self.more_sges[at..][..more.len()].copy_from_slice(more);
                    }
                }
            }
            SendData::Inline(data) => {
                wqe.inline = true;
                wqe.num_sge = 0;
                let at = slot * self.max_inline;
                self.inline[at..][..data.len()].copy_from_slice(data);
            }
        }
        if let (true, Some(ud)) = (datagram, wr.ud) {
            self.targets.push_back(ud);
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Wqe> {
        (index < self.len).then(|| &self.slots[self.slot(index)])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Wqe> {
        let slot = self.slot(index);
        (index < self.len).then(|| &mut self.slots[slot])
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Wqe> {
        self.get(0)
    }

    /// Removes the oldest; returns what its completion needs to say.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Finished> {
        let slot = self.first;
        let finished = self.front()?.finished();
        self.first = self.slot(1);
        self.len -= 1;
        self.release(slot);
        if !self.targets.is_empty() {
            self.targets.pop_front();
        }
        if let Some(failing) = &mut self.failing {
            match failing.index.checked_sub(1) {
                Some(index) => failing.index = index,
                None => self.failing = None,
            }
        }
        Some(finished)
    }

    /// Takes the newest: only a queue that goes wrong on purpose does so.
    pub(crate) fn pop_newest(&mut self) -> Option<Finished> {
        let newest = self.len.checked_sub(1)?;
        let finished = self.get(newest)?.finished();
        self.targets.pop_back();
        self.len = newest;
        self.release(self.slot(newest));
        Some(finished)
    }

    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    /// Lets go of what a slot that is no longer used holds on to.
    #[inline]
    fn release(&mut self, slot: usize) {
        if let SendOp::BindMw(_) = self.slots[slot].op {
            self.slots[slot].op = SendOp::default();
        }
    }

    /// Remembers that a work request will fail; of several the oldest counts.
    pub(crate) fn fail(&mut self, index: usize, status: WcStatus, reason: Reason) {
        if self
            .failing
            .as_ref()
            .is_none_or(|other| index < other.index)
        {
            self.failing = Some(Box::new(Failing {
                index,
                status,
                reason,
            }));
        }
    }

    /// Whether a work request will fail.
    #[inline]
    pub(crate) fn fails(&self, index: usize) -> bool {
        self.failing.as_ref().is_some_and(|f| f.index == index)
    }

    /// Why the oldest work request fails, if it does.
    pub(crate) fn take_failure(&mut self) -> Option<Box<Failing>> {
        self.failing.take_if(|failing| failing.index == 0)
    }

    /// Where a datagram goes.
    pub(crate) fn target(&self, index: usize) -> Option<&UdTarget> {
        self.targets.get(index)
    }

    /// The gather list of a work request beyond its first element.
    pub(crate) fn more_sges(&self, index: usize) -> &[Sge] {
        let slot = self.slot(index);
        match self.slots[slot].num_sge as usize {
            0 | 1 => &[],
            sges => &self.more_sges[slot * (self.max_sge - 1)..][..sges - 1],
        }
    }

    /// The data that was copied when it was posted.
    pub(crate) fn inline(&self, index: usize) -> &[u8] {
        let slot = self.slot(index);
        let length = self.slots[slot].length as usize;
        &self.inline[slot * self.max_inline..][..length]
    }

    #[inline]
    fn slot(&self, ahead: usize) -> usize {
        let slot = self.first + ahead;
        if slot >= self.capacity {
            slot - self.capacity
        } else {
            slot
        }
    }
}

/// Walks the parts of a list of memory that hold the bytes
/// `offset..offset + length` of a message, in order: `(sge, offset in it, bytes)`.
pub(crate) fn spans<'a>(
    sges: impl IntoIterator<Item = &'a Sge>,
    offset: u64,
    length: u64,
) -> impl Iterator<Item = (&'a Sge, u64, u32)> {
    let end = offset + length;
    let mut start = 0;
    sges.into_iter().filter_map(move |sge| {
        let (from, to) = (start, start + u64::from(sge.length));
        start = to;
        let (first, last) = (from.max(offset), to.min(end));
        (first < last).then(|| (sge, first - from, (last - first) as u32))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_exactly_the_bytes_asked_for() {
        let sge = |addr, length| Sge {
            addr,
            length,
            lkey: 0,
        };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 5), sge(400, 20)];
        let walk = |offset, length| -> Vec<(u64, u32)> {
            spans(&sges, offset, length)
                .map(|(sge, at, n)| (sge.addr + at, n))
                .collect()
        };
        assert_eq!(walk(0, 35), [(100, 10), (300, 5), (400, 20)]);
        assert_eq!(walk(9, 7), [(109, 1), (300, 5), (400, 1)]);
        assert_eq!(walk(10, 5), [(300, 5)]);
        assert_eq!(walk(16, 4), [(401, 4)]);
        assert_eq!(walk(3, 0), []);
        assert_eq!(walk(30, 100), [(415, 5)], "what is not there is not walked");
    }
}
