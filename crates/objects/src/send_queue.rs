//! The ring of posted send work requests.
//!
//! The ring is generic over the state that a protocol keeps for each work request, such as
//! its sequence numbers.

use core::ops::{Deref, DerefMut};
use std::collections::VecDeque;

use crate::attr::QpCap;
use crate::error::{Reason, VerbsError};
use crate::operation::OpResponse;
use crate::room;
use crate::verbs::{SendData, SendFlags, SendOp, SendWr, Sge, UdTarget, WcOpcode, WcStatus};

/// The progress of a work request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// The work request is posted and not started.
    #[default]
    Posted,
    /// The work request has sequence numbers, and packets may have been sent.
    Started,
    /// The work request is done. It completes when it is the oldest in the queue.
    Done,
}

/// A send work request in the queue.
///
/// `P` is the protocol's state of the work request; a `Wqe` dereferences to it. Ten thousand
/// queue pairs have many work requests, so rarely used data is kept in side arrays of
/// [`SendQueue`].
#[derive(Debug, Default)]
pub struct Wqe<P> {
    /// The program's id of the work request.
    pub wr_id: u64,
    /// The operation and its remote arguments.
    pub op: SendOp,
    /// The first element of the gather list.
    pub sge: Sge,
    /// Flags of the work request.
    pub flags: SendFlags,
    /// Progress of the work request.
    pub phase: Phase,
    /// Number of elements of the gather list.
    pub num_sge: u8,
    /// Bytes of the message.
    pub length: u32,
    /// State of the protocol engine, valid once the work request has started.
    pub progress: P,
    /// Number of packets that one request of a READ asks for.
    ///
    /// It is no part of `progress`, because padding would make every slot 8 bytes larger.
    pub chunk: u16,
    /// The remote shared receive queue of an XRC work request.
    pub xrc_srq: u32,
}

impl<P> Deref for Wqe<P> {
    type Target = P;

    #[inline(always)]
    fn deref(&self) -> &P {
        &self.progress
    }
}

impl<P> DerefMut for Wqe<P> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut P {
        &mut self.progress
    }
}

/// The fields of a completion that a finished work request determines.
#[derive(Copy, Clone, Debug)]
pub struct Finished {
    /// The program's id of the work request.
    pub wr_id: u64,
    /// Opcode of the completion.
    pub opcode: WcOpcode,
    /// True if the message carried immediate data.
    pub immediate: bool,
    /// True if the work request asked for a completion.
    pub signaled: bool,
    /// Bytes of the message.
    pub length: u32,
}

impl Finished {
    /// Returns these fields for a work request.
    #[inline]
    pub fn of(wr_id: u64, op: &SendOp, flags: SendFlags, length: u32) -> Finished {
        Finished {
            wr_id,
            opcode: op.info().completion,
            immediate: op.imm().is_some(),
            signaled: flags.contains(SendFlags::SIGNALED),
            length,
        }
    }
}

/// A failure that is reported once all earlier work requests have completed.
#[derive(Debug)]
pub struct Failing {
    /// Index of the work request, counted from the oldest.
    index: usize,
    /// Status of the completion.
    pub status: WcStatus,
    /// Cause of the failure.
    pub reason: Reason,
}

impl<P> Wqe<P> {
    /// Returns the fields of the completion of this work request.
    #[inline]
    pub fn finished(&self) -> Finished {
        Finished::of(self.wr_id, &self.op, self.flags, self.length)
    }

    /// True if the data was copied when the work request was posted.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.flags.contains(SendFlags::INLINE)
    }

    /// True if the peer answers with data or a response of its own, not with an ACK.
    #[inline]
    pub fn wants_response(&self) -> bool {
        self.op.info().response == OpResponse::Own
    }

    /// Returns the number of bytes of the message before packet `packet`.
    #[inline]
    pub fn bytes_before(&self, packet: u32, mtu: u32) -> u64 {
        (u64::from(packet) * u64::from(mtu)).min(u64::from(self.length))
    }
}

/// The send queue of a queue pair: a ring of fixed slots.
///
/// Completing a work request moves no other. The first slot is a field of the ring, and an
/// empty ring starts again with that slot: a program with one work request at a time uses a
/// few neighbouring cache lines.
#[derive(Debug)]
#[repr(C)]
pub struct SendQueue<P> {
    slot_0: Wqe<P>,
    /// Slot of the oldest work request.
    first: usize,
    /// Number of work requests.
    len: usize,
    capacity: usize,
    /// The failure of the oldest work request that fails, if one does.
    failing: Option<Box<Failing>>,
    max_sge: u16,
    max_inline: u16,
    datagrams: bool,
    /// The slots after the first. The vector grows when a slot is used for the first time.
    slots: Vec<Wqe<P>>,
    /// Destinations of datagrams.
    targets: VecDeque<UdTarget>,
    /// Gather elements after the first, `max_sge - 1` for each slot. The vector grows when a
    /// slot needs them for the first time.
    more_sges: Vec<Sge>,
    /// Inline data, `max_inline` bytes for each slot. The vector grows when a slot needs them
    /// for the first time.
    inline: Vec<u8>,
}

impl<P: Default> SendQueue<P> {
    /// Creates a queue with the granted sizes, for datagrams or for connected messages.
    pub fn new(cap: &QpCap, datagrams: bool) -> Result<SendQueue<P>, VerbsError> {
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

    /// True if work requests may have a gather list.
    #[inline]
    pub fn takes_sges(&self) -> bool {
        self.max_sge > 0
    }

    /// Returns the most bytes of inline data of a work request.
    #[inline]
    pub fn max_inline(&self) -> usize {
        self.max_inline.into()
    }

    /// Returns the number of work requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if the queue has room for one work request after `ahead` others.
    #[inline]
    pub fn has_room(&self, ahead: usize) -> bool {
        self.capacity - self.len > ahead
    }

    /// Adds a work request with a message of `length` bytes. The caller has checked that the
    /// queue has room.
    #[inline(always)]
    pub fn push(&mut self, wr: SendWr<'_>, length: u32) {
        debug_assert!(self.has_room(0), "posting has checked that there is room");
        let slot = self.slot(self.len);
        if slot > 0 && slot > self.slots.len() {
            self.slots.push(Wqe::default());
        }
        // Each field is written in place. Building the struct and copying it would read
        // bytes that are still in the store buffer, which stalls.
        let wqe = match slot.checked_sub(1) {
            None => &mut self.slot_0,
            Some(behind) => &mut self.slots[behind],
        };
        wqe.wr_id = wr.wr_id;
        // An unused slot holds nothing that must be dropped (`release`).
        core::mem::forget(core::mem::replace(&mut wqe.op, wr.op));
        wqe.flags = wr.flags;
        wqe.phase = Phase::Posted;
        wqe.progress = P::default();
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
        if self.datagrams
            && let Some(ud) = wr.ud
        {
            self.targets.push_back(ud);
        }
        self.len += 1;
    }

    /// Returns a work request by its index, counted from the oldest.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Wqe<P>> {
        (index < self.len).then(|| self.at(self.slot(index)))
    }

    /// Returns a work request by its index, counted from the oldest.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Wqe<P>> {
        let slot = self.slot(index);
        (index < self.len).then(|| self.at_mut(slot))
    }

    /// Returns the oldest work request.
    #[inline]
    pub fn front(&self) -> Option<&Wqe<P>> {
        self.get(0)
    }

    /// Removes the oldest work request and returns the fields of its completion.
    #[inline]
    pub fn pop(&mut self) -> Option<Finished> {
        let finished = self.front()?.finished();
        self.remove_oldest();
        Some(finished)
    }

    /// Removes the oldest work request. The queue must not be empty.
    #[inline]
    pub fn remove_oldest(&mut self) {
        let slot = self.first;
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
    }

    /// Removes the newest work request. Only an injected bug calls this.
    pub fn pop_newest(&mut self) -> Option<Finished> {
        let newest = self.len.checked_sub(1)?;
        let finished = self.get(newest)?.finished();
        self.targets.pop_back();
        self.len = newest;
        self.release(self.slot(newest));
        Some(finished)
    }

    /// Removes all work requests without completions.
    pub fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    /// Drops the references that an unused slot holds to a region and a window.
    #[inline]
    fn release(&mut self, slot: usize) {
        let op = &mut self.at_mut(slot).op;
        if let SendOp::BindMw(_) = op {
            *op = SendOp::default();
        }
    }

    /// Records the failure of a work request. The failure of the oldest one is kept.
    pub fn fail(&mut self, index: usize, status: WcStatus, reason: Reason) {
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

    /// True if the recorded failure is that of work request `index`.
    #[inline]
    pub fn fails(&self, index: usize) -> bool {
        self.failing.as_ref().is_some_and(|f| f.index == index)
    }

    /// Removes and returns the failure of the oldest work request, if it has one.
    pub fn take_failure(&mut self) -> Option<Box<Failing>> {
        self.failing.take_if(|failing| failing.index == 0)
    }

    /// Returns the destination of a datagram.
    pub fn target(&self, index: usize) -> Option<&UdTarget> {
        self.targets.get(index)
    }

    /// Returns the gather list of a work request without its first element.
    #[inline]
    pub fn more_sges(&self, index: usize) -> &[Sge] {
        let slot = self.slot(index);
        match self.at(slot).num_sge as usize {
            0 | 1 => &[],
            sges => &self.more_sges[slot * (usize::from(self.max_sge) - 1)..][..sges - 1],
        }
    }

    /// Returns the inline data of a work request.
    #[inline]
    pub fn inline(&self, index: usize) -> &[u8] {
        let slot = self.slot(index);
        let length = self.at(slot).length as usize;
        match length {
            0 => &[],
            _ => &self.inline[slot * usize::from(self.max_inline)..][..length],
        }
    }

    #[inline]
    fn at(&self, slot: usize) -> &Wqe<P> {
        match slot.checked_sub(1) {
            None => &self.slot_0,
            Some(behind) => &self.slots[behind],
        }
    }

    #[inline]
    fn at_mut(&mut self, slot: usize) -> &mut Wqe<P> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_queue_restarts_at_slot_0_and_full_queue_wraps() {
        let cap = QpCap {
            max_send_wr: 3,
            max_recv_wr: 0,
            max_send_sge: 2,
            max_recv_sge: 0,
            max_inline_data: 8,
        };
        let mut queue = SendQueue::<()>::new(&cap, false).unwrap();
        let (mut pushed, mut popped) = (0, 0);
        // The fill levels are 1, 2, 3 and 3.
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
            assert!(!queue.is_empty() || queue.first == 0, "restarts");
        }
        assert_eq!((queue.len(), pushed), (0, popped));
    }
}
