//! The ring of posted sends, with the memory they refer to.

use std::collections::VecDeque;

use ferroce_wire::Psn;

use crate::attr::QpCap;
use crate::error::{Reason, VerbsError};
use crate::room;
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
    pub(crate) num_sge: u8,
    /// Bytes of the message.
    pub(crate) length: u32,
    /// The PSN of its first packet, once started.
    pub(crate) first_psn: Psn,
    /// How many PSNs it takes, once started.
    pub(crate) packets: u32,
    /// For a READ: how many packets one request asks for.
    pub(crate) chunk: u16,
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

    /// Whether its data was copied when it was posted.
    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.flags.contains(SendFlags::INLINE)
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

/// Has fixed slots, so that completing a work request moves nothing. The first of them
/// stands right here, and an empty queue begins anew with it: whoever has one work request
/// after the other finds all there is to them in a few neighbouring cache lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendQueue {
    slot_0: Wqe,
    /// The slot of the oldest, and how many there are.
    first: usize,
    len: usize,
    capacity: usize,
    /// The oldest work request that fails, if one does.
    failing: Option<Box<Failing>>,
    max_sge: u16,
    max_inline: u16,
    datagrams: bool,
    /// The slots behind the first; those that were never used are not there yet.
    slots: Vec<Wqe>,
    /// Where datagrams go.
    targets: VecDeque<UdTarget>,
    /// Gather elements beyond the first, `max_sge - 1` for each slot; those of
    /// slots that were never used are not there yet.
    more_sges: Vec<Sge>,
    /// `max_inline` bytes for each slot; those of slots that had no inline data are not
    /// there yet.
    inline: Vec<u8>,
}

impl SendQueue {
    /// A queue with the sizes that were granted, for datagrams or for messages.
    pub(crate) fn new(cap: &QpCap, datagrams: bool) -> Result<SendQueue, VerbsError> {
        let capacity = cap.max_send_wr as usize;
        let more = capacity * cap.max_send_sge.saturating_sub(1) as usize;
        let targets = if datagrams { capacity } else { 0 };
        let inline = capacity * cap.max_inline_data as usize;
        Ok(SendQueue {
            slot_0: Wqe::default(),
            first: 0,
            len: 0,
            capacity,
            failing: None,
            max_sge: cap.max_send_sge as u16,
            max_inline: cap.max_inline_data as u16,
            datagrams,
            slots: room::vec(capacity.saturating_sub(1), "sends")?,
            targets: room::deque(targets, "addresses of datagrams")?,
            more_sges: room::vec(more, "gather elements")?,
            inline: room::vec(inline, "bytes of inline data")?,
        })
    }

    /// Whether work requests may have a gather list.
    #[inline]
    pub(crate) fn takes_sges(&self) -> bool {
        self.max_sge > 0
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
    pub(crate) fn push(&mut self, wr: SendWr<'_>, length: u32) {
        debug_assert!(self.has_room(0), "posting has checked that there is room");
        let slot = self.slot(self.len);
        if slot > 0 && slot > self.slots.len() {
            self.slots.push(Wqe::default());
        }
        // Written where it stays: to copy what has just been written is slow.
        let wqe = match slot.checked_sub(1) {
            None => &mut self.slot_0,
            Some(behind) => &mut self.slots[behind],
        };
        wqe.wr_id = wr.wr_id;
        wqe.op = wr.op;
        wqe.flags = wr.flags;
        wqe.phase = Phase::Posted;
        wqe.packets = 0;
        wqe.length = length;
        wqe.xrc_srq = wr.xrc_srq;
        match wr.data {
            SendData::Sges(sges) => {
                wqe.num_sge = sges.len() as u8;
                if let [first, more @ ..] = sges {
                    wqe.sge = *first;
                    if !more.is_empty() {
                        let each = usize::from(self.max_sge) - 1;
                        let at = slot * each;
                        if self.more_sges.len() < at + more.len() {
                            self.more_sges.resize(at + each, Sge::default());
                        }
                        self.more_sges[at..][..more.len()].copy_from_slice(more);
                    }
                }
            }
            SendData::Inline(data) => {
                wqe.flags |= SendFlags::INLINE;
                wqe.num_sge = 0;
                let at = slot * usize::from(self.max_inline);
                if self.inline.len() < at + data.len() {
                    self.inline.resize(at + usize::from(self.max_inline), 0);
                }
                if !data.is_empty() {
                    self.inline[at..][..data.len()].copy_from_slice(data);
                }
            }
        }
        if let (true, Some(ud)) = (self.datagrams, wr.ud) {
            self.targets.push_back(ud);
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Wqe> {
        (index < self.len).then(|| self.at(self.slot(index)))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Wqe> {
        let slot = self.slot(index);
        (index < self.len).then(|| self.at_mut(slot))
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
        self.len -= 1;
        self.first = match self.len {
            0 => 0,
            _ => self.slot(1),
        };
        self.release(slot);
        if self.datagrams {
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
        let op = &mut self.at_mut(slot).op;
        if let SendOp::BindMw(_) = op {
            *op = SendOp::default();
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
        match self.at(slot).num_sge as usize {
            0 | 1 => &[],
            sges => &self.more_sges[slot * (usize::from(self.max_sge) - 1)..][..sges - 1],
        }
    }

    /// The data that was copied when it was posted.
    pub(crate) fn inline(&self, index: usize) -> &[u8] {
        let slot = self.slot(index);
        let length = self.at(slot).length as usize;
        match length {
            0 => &[],
            _ => &self.inline[slot * usize::from(self.max_inline)..][..length],
        }
    }

    #[inline]
    fn at(&self, slot: usize) -> &Wqe {
        match slot.checked_sub(1) {
            None => &self.slot_0,
            Some(behind) => &self.slots[behind],
        }
    }

    #[inline]
    fn at_mut(&mut self, slot: usize) -> &mut Wqe {
        match slot.checked_sub(1) {
            None => &mut self.slot_0,
            Some(behind) => &mut self.slots[behind],
        }
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
    fn an_empty_queue_begins_anew_and_a_full_one_wraps() {
        let cap = QpCap {
            max_send_wr: 3,
            max_recv_wr: 0,
            max_send_sge: 2,
            max_recv_sge: 0,
            max_inline_data: 8,
        };
        let mut queue = SendQueue::new(&cap, false).unwrap();
        let (mut pushed, mut popped) = (0, 0);
        // Fills it by one, two, three and three.
        for (push, pop) in [(1, 1), (2, 1), (2, 1), (1, 3), (1, 1)] {
            for _ in 0..push {
                let bytes = [pushed as u8; 4];
                queue.push(
                    SendWr {
                        wr_id: pushed,
                        op: SendOp::default(),
                        flags: SendFlags::empty(),
                        data: SendData::Inline(&bytes),
                        ud: None,
                        xrc_srq: 0,
                    },
                    4,
                );
                assert_eq!(queue.inline(queue.len() - 1), bytes);
                pushed += 1;
            }
            for index in 0..queue.len() {
                let wr_id = queue.get(index).map(|wqe| wqe.wr_id);
                assert_eq!(wr_id, Some(popped + index as u64));
                assert_eq!(queue.inline(index), [wr_id.unwrap() as u8; 4]);
            }
            for _ in 0..pop {
                assert_eq!(queue.pop().map(|send| send.wr_id), Some(popped));
                popped += 1;
            }
            assert!(queue.len() > 0 || queue.first == 0, "begins anew");
        }
        assert_eq!((queue.len(), pushed), (0, popped));
    }

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
