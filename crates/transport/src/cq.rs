//! Completion queues.
//!
//! A completion queue has its own lock and may serve queue pairs of several
//! engines; polling it takes no engine.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::VerbsError;
use crate::room;
use crate::verbs::{Wc, WcStatus};

/// Most completions a queue may hold. The kernel's rxe allows a 32nd of it, which is too
/// little for libfabric's unconnected endpoints.
pub const MAX_CQE: u32 = (1 << 20) - 1;

const ENTRIES: &str = "completion queue entries";

/// What wakes an armed queue.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Arm {
    /// Any completion.
    Any,
    /// A solicited one, or an error.
    Solicited,
}

/// What adding a completion did.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// It is queued.
    Quiet,
    /// It is queued, and whoever armed the queue must be told.
    Notify,
    /// There was no room: it is lost.
    Overflow,
}

/// A completion queue: `ibv_cq`.
#[derive(Debug)]
pub struct Cq {
    id: u32,
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
    /// A queue for at least `cqe` completions. `id` names it in events.
    pub fn new(id: u32, cqe: u32) -> Result<Arc<Cq>, VerbsError> {
        let capacity = capacity_for(cqe)?;
        room::for_an_object("bytes of a completion queue")?;
        let entries = room::deque(capacity, ENTRIES)?;
        Ok(Arc::new(Cq {
            id,
            inner: Mutex::new(Inner {
                entries,
                capacity,
                armed: None,
                overflowed: false,
            }),
        }))
    }

    /// The name given at creation.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// How many completions fit.
    pub fn capacity(&self) -> u32 {
        self.lock().capacity as u32
    }

    /// How many completions wait.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the oldest completion.
    pub fn pop(&self) -> Option<Wc> {
        self.lock().entries.pop_front()
    }

    /// Takes up to `max` completions, oldest first; returns how many.
    pub fn poll(&self, max: usize, mut take: impl FnMut(Wc)) -> usize {
        let mut inner = self.lock();
        let n = inner.entries.len().min(max);
        inner.entries.drain(..n).for_each(&mut take);
        n
    }

    /// Drops what waits of a queue pair that begins anew.
    pub fn forget(&self, qpn: u32) {
        self.lock().entries.retain(|wc| wc.qpn != qpn);
    }

    /// Drops what waits and gives the memory back. No queue pair completes here any more;
    /// who polls finds nothing.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.capacity = 0;
        inner.entries = VecDeque::new();
    }

    /// Asks to be told of the next completion, once. What is already queued
    /// does not count: poll after arming. Arming for any completion is not
    /// taken back by arming for solicited ones.
    pub fn arm(&self, what: Arm) {
        let mut inner = self.lock();
        if inner.armed != Some(Arm::Any) {
            inner.armed = Some(what);
        }
    }

    /// Changes the capacity; refused if what is queued would not fit.
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

    /// Whether completions have been lost for want of room.
    pub fn overflowed(&self) -> bool {
        self.lock().overflowed
    }

    pub(crate) fn push(&self, wc: Wc, solicited: bool) -> Pushed {
        self.open().push(wc, solicited)
    }

    /// The queue, held open to add several completions.
    pub(crate) fn open(&self) -> OpenCq<'_> {
        OpenCq(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .expect("no code panics while it holds a completion queue")
    }
}

/// A queue that is locked while completions are added.
pub(crate) struct OpenCq<'a>(MutexGuard<'a, Inner>);

impl OpenCq<'_> {
    #[inline]
    pub(crate) fn push(&mut self, wc: Wc, solicited: bool) -> Pushed {
        let inner = &mut *self.0;
        if inner.entries.len() >= inner.capacity {
            inner.overflowed = true;
            return Pushed::Overflow;
        }
        inner.entries.push_back(wc);
        let Some(arm) = inner.armed else {
            return Pushed::Quiet;
        };
        if arm == Arm::Any || solicited || wc.status != WcStatus::Success {
            inner.armed = None;
            return Pushed::Notify;
        }
        Pushed::Quiet
    }
}

/// Requested plus one, rounded up to a power of two, minus one: what rxe gives.
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
    fn overflow_loses_the_new_completion_and_keeps_the_old() {
        let cq = Cq::new(0, 1).unwrap();
        assert_eq!(cq.push(ok(1), false), Pushed::Quiet);
        assert_eq!(cq.push(ok(2), false), Pushed::Overflow);
        assert!(cq.overflowed());
        assert_eq!(cq.pop().map(|wc| wc.wr_id), Some(1));
        assert_eq!(cq.pop(), None);
    }

    #[test]
    fn arming_is_one_shot_and_ignores_what_is_queued() {
        let cq = Cq::new(0, 7).unwrap();
        cq.push(ok(1), false);
        cq.arm(Arm::Any);
        assert_eq!(cq.push(ok(2), false), Pushed::Notify);
        assert_eq!(cq.push(ok(3), false), Pushed::Quiet);
    }

    #[test]
    fn solicited_arming_waits_for_a_solicited_completion_or_an_error() {
        let cq = Cq::new(0, 7).unwrap();
        cq.arm(Arm::Solicited);
        assert_eq!(cq.push(ok(1), false), Pushed::Quiet);
        assert_eq!(cq.push(ok(2), true), Pushed::Notify);
        cq.arm(Arm::Solicited);
        assert_eq!(cq.push(wc(3, WcStatus::WrFlush), false), Pushed::Notify);
    }

    #[test]
    fn arming_for_any_is_not_downgraded() {
        let cq = Cq::new(0, 7).unwrap();
        cq.arm(Arm::Any);
        cq.arm(Arm::Solicited);
        assert_eq!(cq.push(ok(1), false), Pushed::Notify);
    }

    #[test]
    fn completions_of_one_queue_pair_can_be_forgotten() {
        let cq = Cq::new(0, 7).unwrap();
        cq.push(ok(1), false);
        cq.push(Wc { qpn: 18, ..ok(2) }, false);
        cq.push(ok(3), false);
        cq.forget(17);
        assert_eq!(cq.pop().map(|wc| wc.wr_id), Some(2));
        assert_eq!(cq.pop(), None);
    }

    #[test]
    fn resize_keeps_completions_and_refuses_to_lose_any() {
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
