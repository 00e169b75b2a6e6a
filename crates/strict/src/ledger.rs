//! The work that a program has posted and whose completions it has not polled.
//!
//! Hardware counts by polled completions: a slot of a send queue is free, and a buffer is the
//! program's again, when a completion of this or a later work request was polled. This device
//! frees both when the peer has acknowledged, which a program cannot rely on.

use std::collections::{BTreeMap, VecDeque};

use crate::{Check, Finding};

/// A queue pair: the device, and its number there.
pub type QpId = (usize, u32);
/// A completion queue: the address of its object.
pub type CqId = usize;
/// A shared receive queue: the address of its object.
pub type SrqId = usize;

/// A range of memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first byte.
    pub start: u64,
    /// The byte behind the last.
    pub end: u64,
}

impl Range {
    /// True if the ranges share a byte.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The buffers of a send, as they were when it was posted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// The memory, in the order of the gather list.
    pub ranges: Vec<Range>,
    /// A checksum of their bytes.
    pub checksum: u32,
    /// The time of the post, of [`RecentWrites::now`](crate::RecentWrites::now).
    pub time: u64,
}

/// A posted send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The program's id.
    pub wr_id: u64,
    /// True if it completes with a completion in the queue.
    pub signaled: bool,
    /// The keys of its buffers.
    pub keys: Vec<u32>,
    /// Its buffers, if they can be compared.
    pub buffers: Option<Buffers>,
    /// The call stack of the post.
    pub posted_at: Vec<usize>,
}

/// A posted receive.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Received {
    wr_id: u64,
    keys: Vec<u32>,
}

/// The properties of a queue pair that the checks need.
#[derive(Clone, Debug)]
pub struct QpTrack {
    /// Size of the send queue.
    pub max_send_wr: u32,
    /// The completion queue of sends.
    pub send_cq: CqId,
    /// The completion queue of receives.
    pub recv_cq: CqId,
    /// The shared receive queue.
    pub srq: Option<SrqId>,
    /// True if all sends are signaled.
    pub signals_all: bool,
    /// True for a queue pair of datagrams.
    pub is_datagram: bool,
}

#[derive(Debug)]
struct Qp {
    track: QpTrack,
    sends: VecDeque<Sent>,
    receives: VecDeque<Received>,
    /// True if the queue pair is in a state in which the adapter uses its receives.
    is_active: bool,
}

#[derive(Debug, Default)]
struct Cq {
    capacity: u32,
    /// Number of work requests that may each add a completion.
    pending: u32,
}

/// A send whose completion, or that of a later one, was polled.
pub type Returned = Sent;

/// The posted work of a process.
#[derive(Debug, Default)]
pub struct Ledger {
    qps: BTreeMap<QpId, Qp>,
    cqs: BTreeMap<CqId, Cq>,
    srqs: BTreeMap<SrqId, VecDeque<Received>>,
}

impl Ledger {
    /// Returns an empty ledger.
    pub const fn new() -> Ledger {
        Ledger {
            qps: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
        }
    }

    /// Adds a completion queue, or changes its size.
    pub fn set_cq(&mut self, cq: CqId, capacity: u32) {
        self.cqs.entry(cq).or_default().capacity = capacity;
    }

    /// Removes a completion queue.
    pub fn remove_cq(&mut self, cq: CqId) {
        self.cqs.remove(&cq);
    }

    /// Removes a shared receive queue.
    pub fn remove_srq(&mut self, srq: SrqId) {
        self.srqs.remove(&srq);
    }

    /// Adds a queue pair.
    pub fn add_qp(&mut self, qp: QpId, track: QpTrack) {
        self.qps.insert(
            qp,
            Qp {
                track,
                sends: VecDeque::new(),
                receives: VecDeque::new(),
                is_active: true,
            },
        );
    }

    /// Removes a queue pair.
    pub fn remove_qp(&mut self, qp: QpId) {
        self.forget_work(qp);
        self.qps.remove(&qp);
    }

    /// Notes that the adapter no longer executes the work of a queue pair in the error state.
    pub fn fail_qp(&mut self, qp: QpId) {
        if let Some(qp) = self.qps.get_mut(&qp) {
            qp.is_active = false;
        }
    }

    /// Forgets the work of a queue pair that is reset.
    pub fn reset_qp(&mut self, qp: QpId) {
        self.forget_work(qp);
        if let Some(qp) = self.qps.get_mut(&qp) {
            qp.is_active = true;
        }
    }

    fn forget_work(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(&id) else {
            return;
        };
        let signaled = qp.sends.iter().filter(|sent| sent.signaled).count() as u32;
        let receives = qp.receives.len() as u32;
        qp.sends.clear();
        qp.receives.clear();
        let (send_cq, recv_cq) = (qp.track.send_cq, qp.track.recv_cq);
        self.release(send_cq, signaled);
        self.release(recv_cq, receives);
    }

    fn release(&mut self, cq: CqId, count: u32) {
        if let Some(cq) = self.cqs.get_mut(&cq) {
            cq.pending = cq.pending.saturating_sub(count);
        }
    }

    /// Returns the properties of a queue pair.
    pub fn track(&self, qp: QpId) -> Option<&QpTrack> {
        self.qps.get(&qp).map(|qp| &qp.track)
    }

    /// Checks whether hardware had room for one more send, signaled or not.
    pub fn check_send(&self, id: QpId, signaled: bool) -> Option<Finding> {
        let qp = self.qps.get(&id)?;
        let (posted, most) = (qp.sends.len(), qp.track.max_send_wr as usize);
        if posted >= most {
            let what = match qp.sends.iter().any(|sent| sent.signaled) {
                false => format!(
                    "queue pair {:#x} has {posted} work requests in its send queue of {most}, and \
                     none of them is signaled: no completion ever frees a slot",
                    id.1
                ),
                true => format!(
                    "queue pair {:#x} has {posted} work requests in its send queue of {most} whose \
                     completions were not polled",
                    id.1
                ),
            };
            return Some(Finding::warning(Check::SendQueue, what));
        }
        signaled.then(|| self.check_cq(qp.track.send_cq)).flatten()
    }

    /// Checks whether the completion queue has room for one more receive.
    pub fn check_receive(&self, id: QpId) -> Option<Finding> {
        self.check_cq(self.qps.get(&id)?.track.recv_cq)
    }

    /// Checks whether the only completion queue of a shared receive queue has room for one more
    /// receive. With several completion queues the program knows which of them gets how many.
    pub fn check_shared_receive(&self, srq: SrqId) -> Option<Finding> {
        self.check_cq(self.only_cq(srq)?)
    }

    fn only_cq(&self, srq: SrqId) -> Option<CqId> {
        let mut cqs = self.qps.values().filter_map(|qp| {
            let is_user = qp.track.srq == Some(srq);
            is_user.then_some(qp.track.recv_cq)
        });
        let first = cqs.next()?;
        cqs.all(|cq| cq == first).then_some(first)
    }

    fn check_cq(&self, id: CqId) -> Option<Finding> {
        let cq = self.cqs.get(&id)?;
        let shared = self
            .srqs
            .iter()
            .filter(|(srq, _)| self.only_cq(**srq) == Some(id));
        let shared: usize = shared.map(|(_, receives)| receives.len()).sum();
        let (pending, capacity) = (cq.pending as usize + shared, cq.capacity);
        (pending >= capacity as usize).then(|| {
            let what = format!(
                "a completion queue of {capacity} entries, for {} work requests that may complete \
                 before it is polled",
                pending + 1
            );
            Finding::warning(Check::CompletionQueue, what)
        })
    }

    /// Adds a send that was posted.
    pub fn sent(&mut self, id: QpId, sent: Sent) {
        let Some(qp) = self.qps.get_mut(&id) else {
            return;
        };
        let (signaled, cq) = (sent.signaled, qp.track.send_cq);
        qp.sends.push_back(sent);
        if signaled && let Some(cq) = self.cqs.get_mut(&cq) {
            cq.pending += 1;
        }
    }

    /// Adds a receive that was posted.
    pub fn posted_receive(&mut self, id: QpId, wr_id: u64, keys: Vec<u32>) {
        let Some(qp) = self.qps.get_mut(&id) else {
            return;
        };
        qp.receives.push_back(Received { wr_id, keys });
        if let Some(cq) = self.cqs.get_mut(&qp.track.recv_cq) {
            cq.pending += 1;
        }
    }

    /// Adds a receive that was posted to a shared receive queue.
    pub fn posted_shared_receive(&mut self, srq: SrqId, wr_id: u64, keys: Vec<u32>) {
        let receives = self.srqs.entry(srq).or_default();
        receives.push_back(Received { wr_id, keys });
    }

    /// Takes the sends that a polled completion returns to the program: the send itself and
    /// all before it.
    pub fn polled_send(&mut self, id: QpId, wr_id: u64, is_success: bool) -> Vec<Returned> {
        let Some(qp) = self.qps.get_mut(&id) else {
            return Vec::new();
        };
        if !is_success {
            qp.is_active = false;
        }
        // An unsignaled send has a completion only if it fails.
        let this = |sent: &Sent| sent.wr_id == wr_id && (sent.signaled || !is_success);
        let count = qp.sends.iter().position(this).map_or(0, |index| index + 1);
        let returned: Vec<Sent> = qp.sends.drain(..count).collect();
        let signaled = returned.iter().filter(|sent| sent.signaled).count() as u32;
        let cq = qp.track.send_cq;
        self.release(cq, signaled);
        returned
    }

    /// Takes the receive that a polled completion returns to the program.
    pub fn polled_receive(&mut self, id: QpId, wr_id: u64, is_success: bool) {
        let Some(qp) = self.qps.get_mut(&id) else {
            return;
        };
        if !is_success {
            qp.is_active = false;
        }
        let (queue, is_own) = match qp.track.srq {
            None => (Some(&mut qp.receives), true),
            Some(srq) => (self.srqs.get_mut(&srq), false),
        };
        let Some(queue) = queue else { return };
        let index = queue.iter().position(|posted| posted.wr_id == wr_id);
        let removed = index.and_then(|index| queue.remove(index)).is_some();
        let cq = qp.track.recv_cq;
        if removed && is_own {
            self.release(cq, 1);
        }
    }

    /// Checks whether work requests use a key that is about to be deregistered. Queue pairs
    /// in the error state execute nothing, and count for nothing.
    pub fn check_deregister(&self, device: usize, key: u32) -> Option<Finding> {
        let of_device = self.qps.iter().filter(|((of, _), _)| *of == device);
        for ((_, qpn), qp) in of_device.filter(|(_, qp)| qp.is_active) {
            let sends = qp.sends.iter().filter(|sent| sent.keys.contains(&key));
            let receives = qp
                .receives
                .iter()
                .filter(|posted| posted.keys.contains(&key));
            let (sends, receives) = (sends.count(), receives.count());
            if sends + receives > 0 {
                let what = format!(
                    "queue pair {qpn:#x} has {sends} sends and {receives} receives outstanding \
                     that use the region with key {key:#x}"
                );
                return Some(Finding::warning(Check::Deregistered, what));
            }
        }
        let used = self.srqs.iter().filter(|(srq, _)| {
            let active = |qp: &Qp| qp.is_active && qp.track.srq == Some(**srq);
            self.qps
                .iter()
                .any(|((of, _), qp)| *of == device && active(qp))
        });
        let receives = used.flat_map(|(_, receives)| receives);
        let count = receives.filter(|posted| posted.keys.contains(&key)).count();
        (count > 0).then(|| {
            let what = format!(
                "a shared receive queue has {count} receives that use the region with key {key:#x}"
            );
            Finding::warning(Check::Deregistered, what)
        })
    }
}

#[cfg(test)]
mod tests;
