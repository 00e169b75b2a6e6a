//! Completion queues.
//!
//! A completion queue has its own lock. It can serve queue pairs of several engines, and
//! polling it takes no engine's lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::VerbsError;
use crate::room;
use crate::verbs::{Wc, WcStatus};

/// Largest capacity of a completion queue. The kernel's rxe allows 1/32 of it, which is too
/// little for libfabric's unconnected endpoints.
pub const MAX_CQE: u32 = (1 << 20) - 1;

const ENTRIES: &str = "completion queue entries";

/// The completions that an armed queue notifies of.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Arm {
    /// Any completion.
    Any,
    /// A solicited completion or an error.
    Solicited,
}

/// The outcome of adding a completion.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// The completion is queued.
    Quiet,
    /// The completion is queued, and the queue was armed for it: the program is notified.
    Notify,
    /// The queue is full and the completion is lost.
    Overflow,
}

/// A completion queue: `ibv_cq`.
#[derive(Debug)]
pub struct Cq {
    id: u32,
    /// Number of queued completions, stored under the lock. A poll of an empty queue reads it
    /// instead of taking the lock, which takes two locked instructions.
    queued: AtomicUsize,
    /// Number of the completion channel; 0 without one.
    channel: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    entries: VecDeque<Wc>,
    capacity: usize,
    armed: Option<Arm>,
    overflowed: bool,
}

impl Cq {
    /// Creates a queue for at least `cqe` completions. `id` names the queue in events.
    pub fn new(id: u32, cqe: u32) -> Result<Arc<Cq>, VerbsError> {
        let capacity = capacity_for(cqe)?;
        room::for_an_object("bytes of a completion queue")?;
        let entries = room::deque(capacity, ENTRIES)?;
        Ok(Arc::new(Cq {
            id,
            queued: AtomicUsize::new(0),
            channel: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                entries,
                capacity,
                armed: None,
                overflowed: false,
            }),
        }))
    }

    /// Returns the id given at creation.
    #[inline]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Sets the number of the completion channel that gets the events of this queue. It is not 0.
    pub fn set_channel(&self, number: u64) {
        self.channel.store(number, Ordering::Relaxed);
    }

    /// True if a program sees the order of completions in both queues: they are one queue, or their
    /// events come from one channel.
    pub fn is_ordered_with(&self, other: &Cq) -> bool {
        let channel = self.channel.load(Ordering::Relaxed);
        core::ptr::eq(self, other)
            || channel != 0 && channel == other.channel.load(Ordering::Relaxed)
    }

    /// Returns the number of completions that fit.
    pub fn capacity(&self) -> u32 {
        self.lock().capacity as u32
    }

    /// Returns the number of queued completions.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// True if no completion is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes and returns the oldest completion.
    pub fn pop(&self) -> Option<Wc> {
        let mut inner = self.lock();
        let oldest = inner.entries.pop_front();
        self.note_length(&inner);
        oldest
    }

    /// Passes up to `max` completions to `take`, oldest first, and returns their number.
    #[inline]
    pub fn poll(&self, max: usize, mut take: impl FnMut(Wc)) -> usize {
        if self.queued.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut inner = self.lock();
        let n = inner.entries.len().min(max);
        for _ in 0..n {
            if let Some(wc) = inner.entries.pop_front() {
                take(wc);
            }
        }
        self.note_length(&inner);
        n
    }

    /// Drops the queued completions of a queue pair that moves to RESET.
    pub fn forget(&self, qpn: u32) {
        let mut inner = self.lock();
        inner.entries.retain(|wc| wc.qpn != qpn);
        self.note_length(&inner);
    }

    /// Drops all completions and frees their memory. The queue stays empty: its capacity
    /// is 0 from now on.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.capacity = 0;
        inner.entries = VecDeque::new();
        self.note_length(&inner);
    }

    /// Arms the queue for one notification. Completions that are already queued do not
    /// notify, so poll after arming. Arming for solicited completions does not undo arming
    /// for any completion.
    pub fn arm(&self, what: Arm) {
        let mut inner = self.lock();
        if inner.armed != Some(Arm::Any) {
            inner.armed = Some(what);
        }
    }

    /// Changes the capacity. Fails if the queued completions do not fit.
    pub fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        let capacity = capacity_for(cqe)?;
        let mut inner = self.lock();
        let waiting = inner.entries.len();
        if capacity < waiting {
            return Err(VerbsError::invalid(format!(
                "{waiting} completions wait in the queue, it cannot shrink to {capacity}"
            )));
        }
        let more = capacity - waiting;
        let reserved = inner.entries.try_reserve_exact(more);
        reserved.map_err(|_| room::none(capacity, ENTRIES))?;
        inner.capacity = capacity;
        Ok(())
    }

    /// True if a completion was lost because the queue was full.
    pub fn overflowed(&self) -> bool {
        self.lock().overflowed
    }

    /// Adds a completion.
    #[inline]
    pub fn push(&self, wc: Wc, solicited: bool) -> Pushed {
        self.open().push(wc, solicited)
    }

    /// Locks the queue to add several completions.
    #[inline]
    pub fn open(&self) -> OpenCq<'_> {
        OpenCq {
            queued: &self.queued,
            inner: self.lock(),
        }
    }

    #[inline]
    fn note_length(&self, inner: &Inner) {
        self.queued.store(inner.entries.len(), Ordering::Release);
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .expect("no code panics while it holds a completion queue")
    }
}

/// A completion queue, locked while completions are added.
#[derive(Debug)]
pub struct OpenCq<'a> {
    queued: &'a AtomicUsize,
    inner: MutexGuard<'a, Inner>,
}

impl OpenCq<'_> {
    /// Adds a completion.
    #[inline]
    pub fn push(&mut self, wc: Wc, solicited: bool) -> Pushed {
        let inner = &mut *self.inner;
        if inner.entries.len() >= inner.capacity {
            inner.overflowed = true;
            return Pushed::Overflow;
        }
        inner.entries.push_back(wc);
        self.queued.store(inner.entries.len(), Ordering::Release);
        let Some(arm) = inner.armed else {
            return Pushed::Quiet;
        };
        if arm == Arm::Any || solicited || wc.status != WcStatus::Success {
            inner.armed = None;
            return Pushed::Notify;
        }
        Pushed::Quiet
    }

    /// Adds the completion of a send that the peer has acknowledged.
    ///
    /// A peer may put the ACK of a request behind its answer, because both then share a
    /// system call. If the newest completion is that answer, the send goes before it: on
    /// adapters a request completes before its answer arrives. libiscsi and tgt depend on
    /// this order.
    #[inline]
    pub fn push_acknowledged(&mut self, mut wc: Wc) -> Pushed {
        let is_answer = |newest: &&Wc| newest.qpn == wc.qpn && newest.is_received();
        let Some(answer) = self.inner.entries.back().filter(is_answer) else {
            return self.push(wc, false);
        };
        wc.timestamp = answer.timestamp;
        let pushed = self.push(wc, false);
        if pushed != Pushed::Overflow {
            let last = self.inner.entries.len() - 1;
            self.inner.entries.swap(last - 1, last);
        }
        pushed
    }
}

/// Returns the capacity that rxe grants: `cqe + 1` rounded up to a power of two, minus 1.
fn capacity_for(cqe: u32) -> Result<usize, VerbsError> {
    if cqe == 0 || cqe > MAX_CQE {
        return Err(VerbsError::invalid(format!(
            "{cqe} completion queue entries, between 1 and {MAX_CQE} are possible"
        )));
    }
    Ok(((cqe + 1).next_power_of_two() - 1) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;
    use crate::verbs::{NetworkHeader, WcFlags, WcOpcode};

    fn wc(wr_id: u64, status: WcStatus) -> Wc {
        Wc {
            wr_id,
            timestamp: Time::ZERO,
            status,
            opcode: WcOpcode::Recv,
            flags: WcFlags::empty(),
            byte_len: 0,
            imm: 0,
            qpn: 17,
            src_qp: 0,
            network: NetworkHeader::None,
        }
    }

    fn ok(wr_id: u64) -> Wc {
        wc(wr_id, WcStatus::Success)
    }

    #[test]
    fn capacity_is_rounded_as_rxe_rounds_it() {
        for (asked, got) in [
            (1, 1),
            (2, 3),
            (3, 3),
            (4, 7),
            (100, 127),
            (MAX_CQE, MAX_CQE),
        ] {
            assert_eq!(Cq::new(0, asked).unwrap().capacity(), got);
        }
        assert!(Cq::new(0, 0).is_err());
        assert!(Cq::new(0, MAX_CQE + 1).is_err());
    }

    #[test]
    fn overflow_loses_the_new_completion_and_keeps_the_old_ones() {
        let cq = Cq::new(0, 1).unwrap();
        assert_eq!(cq.push(ok(1), false), Pushed::Quiet);
        assert_eq!(cq.push(ok(2), false), Pushed::Overflow);
        assert!(cq.overflowed());
        assert_eq!(cq.pop().map(|wc| wc.wr_id), Some(1));
        assert_eq!(cq.pop(), None);
    }

    #[test]
    fn arming_is_one_shot_and_ignores_queued_completions() {
        let cq = Cq::new(0, 7).unwrap();
        cq.push(ok(1), false);
        cq.arm(Arm::Any);
        assert_eq!(cq.push(ok(2), false), Pushed::Notify);
        assert_eq!(cq.push(ok(3), false), Pushed::Quiet);
    }

    #[test]
    fn solicited_arming_notifies_of_solicited_completions_and_errors() {
        let cq = Cq::new(0, 7).unwrap();
        cq.arm(Arm::Solicited);
        assert_eq!(cq.push(ok(1), false), Pushed::Quiet);
        assert_eq!(cq.push(ok(2), true), Pushed::Notify);
        cq.arm(Arm::Solicited);
        assert_eq!(cq.push(wc(3, WcStatus::WrFlush), false), Pushed::Notify);
    }

    #[test]
    fn arming_for_any_is_not_undone_by_arming_for_solicited() {
        let cq = Cq::new(0, 7).unwrap();
        cq.arm(Arm::Any);
        cq.arm(Arm::Solicited);
        assert_eq!(cq.push(ok(1), false), Pushed::Notify);
    }

    /// Adds an answer of this queue pair and two sends of queue pair 17. Returns the order.
    fn answer_and_two_sends(answer: Wc, entries: u32) -> Vec<u64> {
        let cq = Cq::new(0, entries).unwrap();
        cq.push(answer, false);
        for wr_id in [2, 3] {
            let opcode = WcOpcode::Send;
            cq.open().push_acknowledged(Wc {
                opcode,
                ..ok(wr_id)
            });
        }
        let mut order = Vec::new();
        cq.poll(8, |wc| order.push(wc.wr_id));
        order
    }

    #[test]
    fn acknowledged_send_completes_before_the_answer() {
        assert_eq!(answer_and_two_sends(ok(1), 7), [2, 3, 1]);
        assert_eq!(answer_and_two_sends(ok(1), 1), [1], "no room for the sends");
        let other = Wc { qpn: 18, ..ok(1) };
        assert_eq!(answer_and_two_sends(other, 7), [1, 2, 3]);
        let flushed = wc(1, WcStatus::WrFlush);
        assert_eq!(answer_and_two_sends(flushed, 7), [1, 2, 3]);
    }

    #[test]
    fn completions_of_a_reset_queue_pair_are_dropped() {
        let cq = Cq::new(0, 7).unwrap();
        cq.push(ok(1), false);
        cq.push(Wc { qpn: 18, ..ok(2) }, false);
        cq.push(ok(3), false);
        cq.forget(17);
        assert_eq!(cq.pop().map(|wc| wc.wr_id), Some(2));
        assert_eq!(cq.pop(), None);
    }

    #[test]
    fn resize_keeps_completions_or_fails() {
        let cq = Cq::new(0, 7).unwrap();
        for i in 0..5 {
            cq.push(ok(i), false);
        }
        assert!(cq.resize(3).is_err());
        assert_eq!(cq.capacity(), 7);
        cq.resize(15).unwrap();
        assert_eq!(cq.capacity(), 15);
        let mut seen = Vec::new();
        assert_eq!(cq.poll(99, |wc| seen.push(wc.wr_id)), 5);
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }
}
