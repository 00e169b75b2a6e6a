//! Credits: pacing of unreliable senders by their receiver on the same machine.
//!
//! No peer acknowledges packets of UC and UD. A program that sends faster than its peer
//! receives would fill the peer's socket buffer, and further packets would be lost. Between
//! machines that is the rule. On one machine all programs share a [`CreditPage`]: senders
//! count what they put into a slot, and its owner counts what it took out. A sender waits
//! while half of the peer's socket buffer is in use, or one megabyte.
//!
//! Packets that the kernel dropped are never taken out. So the owner sets its count to that
//! of the senders whenever it finds its sockets empty. A sender waits at most 200 ms for an
//! owner that takes nothing out, because that owner may be stopped.

use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_net::slot_of_qpn;
use ferroce_roce::{Path, Run, Time};
use ferroce_wire::is_unreliable;

use crate::bugs::{Bug, Injected};

/// Number of slots of a machine: a slot is the top byte of a QPN.
pub const SLOTS: usize = 256;
/// Most bytes that wait at a receiver: more would leave the processor's caches.
pub(crate) const MAX_WAITING: u64 = 1 << 20;
/// Longest wait for an owner that takes nothing out.
pub const CREDIT_PATIENCE_NS: u64 = 200_000_000;
/// Socket-buffer space that the kernel charges for a packet beside its bytes.
const PACKET_OVERHEAD: u64 = 768;

/// Counts of all slots of a machine, in memory that its programs share.
#[repr(transparent)]
#[derive(Debug)]
pub struct CreditPage([CreditEntry; SLOTS]);

/// The counts of one slot. All are zero while the slot has no owner.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct CreditEntry {
    /// Most that senders may put in before they wait; 0 if they never wait.
    limit: AtomicU64,
    /// Count of the owner: what it took out.
    taken: AtomicU64,
    /// Separates the owner's cache line from that of the senders.
    _line: [u64; 6],
    /// Count of the senders: what they put in.
    put: AtomicU64,
}

impl CreditPage {
    fn entry(&self, slot: u8) -> &CreditEntry {
        &self.0[usize::from(slot)]
    }

    /// Returns what a slot holds by its counts. The value is negative after packets of other
    /// machines, which put nothing in.
    pub fn outstanding(&self, slot: u8) -> i64 {
        let entry = self.entry(slot);
        let put = entry.put.load(Ordering::Relaxed);
        put.wrapping_sub(entry.taken.load(Ordering::Relaxed)) as i64
    }
}

impl Default for CreditPage {
    fn default() -> CreditPage {
        CreditPage(core::array::from_fn(|_| CreditEntry::default()))
    }
}

/// Returns the socket-buffer space charged for so many bytes in so many packets.
pub fn packet_cost(bytes: usize, packets: usize) -> u64 {
    bytes as u64 + PACKET_OVERHEAD * packets as u64
}

/// The owner's side of a slot's entry.
#[derive(Debug)]
pub(crate) struct ReceiveCredits<P> {
    page: P,
    slot: u8,
    /// Count of the senders at the start of the turn.
    put_before: u64,
    taken: u64,
    pub(crate) injected: Injected,
}

impl<P: AsRef<CreditPage>> ReceiveCredits<P> {
    /// Opens the entry of a slot whose sockets have buffers of `buffer` bytes.
    pub(crate) fn new(page: P, slot: u8, buffer: usize) -> ReceiveCredits<P> {
        let entry = page.as_ref().entry(slot);
        let limit = MAX_WAITING.min(buffer as u64 / 2);
        entry.limit.store(limit, Ordering::Relaxed);
        let taken = entry.taken.load(Ordering::Relaxed);
        ReceiveCredits {
            page,
            slot,
            put_before: 0,
            taken,
            injected: Injected::default(),
        }
    }

    fn entry(&self) -> &CreditEntry {
        self.page.as_ref().entry(self.slot)
    }

    /// Begins a turn, before the sockets are read.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.put_before = self.entry().put.load(Ordering::Relaxed);
    }

    /// Counts a packet that the engine receives.
    #[inline]
    pub(crate) fn take(&mut self, packet: &[u8]) {
        if is_unreliable(packet) {
            let times = 1 + u64::from(self.injected.has(Bug::CreditTwice));
            self.taken = self
                .taken
                .wrapping_add(packet_cost(packet.len(), 1) * times);
        }
    }

    /// Ends a turn and publishes the count. `empty` says that no packet waited anywhere.
    #[inline]
    pub(crate) fn end(&mut self, empty: bool) {
        if empty {
            self.taken = self.put_before;
        }
        if self.entry().taken.load(Ordering::Relaxed) != self.taken {
            self.entry().taken.store(self.taken, Ordering::Relaxed);
        }
    }
}

/// A sender's side of all entries.
#[derive(Debug)]
pub(crate) struct SendCredits<P> {
    page: P,
    waiting: Option<Wait>,
    /// The wait that ended last because the slot's owner took nothing out.
    given_up: Option<(u8, u64)>,
}

/// A wait for the owner of a slot.
#[derive(Debug)]
struct Wait {
    since: Time,
    slot: u8,
    /// The owner's count when the wait began.
    taken: u64,
}

/// Space that a run takes in a slot of this machine.
#[derive(Debug, Copy, Clone)]
pub(crate) struct Charge {
    slot: u8,
    cost: u64,
}

/// The answer to a run that wants to be sent.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The receiver has no room.
    MustWait,
    /// The receiver has room, and the run takes some of it.
    Charged,
    /// The receiver counts nothing: its slot has no owner, or that owner sets no limit.
    Unlimited,
}

impl Charge {
    /// Returns the charge for a run of `bytes`; none if the run needs no credit.
    pub(crate) fn of(run: &Run, bytes: &[u8]) -> Option<Charge> {
        let flow = &run.path.flow;
        // Programs on one link have the same addresses.
        let same_machine = flow.destination == flow.source;
        (same_machine && is_unreliable(bytes)).then(|| Charge {
            slot: slot_of_qpn(run.dest_qpn()),
            cost: packet_cost(bytes.len(), run.packets.len()),
        })
    }
}

impl Charge {
    /// Returns the charge for packets of `segment` bytes, of which only the last may be shorter.
    pub(crate) fn of_packets(path: &Path, segment: usize, bytes: &[u8]) -> Option<Charge> {
        let same_machine = path.flow.destination == path.flow.source;
        let qpn = bytes.get(5..8)?;
        let qpn = u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]);
        (same_machine && is_unreliable(bytes)).then(|| Charge {
            slot: slot_of_qpn(qpn),
            cost: packet_cost(bytes.len(), bytes.len().div_ceil(segment)),
        })
    }
}

impl<P: AsRef<CreditPage>> SendCredits<P> {
    pub(crate) fn new(page: P) -> SendCredits<P> {
        SendCredits {
            page,
            waiting: None,
            given_up: None,
        }
    }

    /// Takes the room that a run needs at its receiver.
    pub(crate) fn admit(&mut self, charge: Charge, now: Time) -> Admission {
        let Charge { slot, cost } = charge;
        let entry = self.page.as_ref().entry(slot);
        let limit = entry.limit.load(Ordering::Relaxed);
        if limit == 0 {
            return Admission::Unlimited;
        }
        let taken = entry.taken.load(Ordering::Relaxed);
        let put = entry.put.load(Ordering::Relaxed);
        let outstanding = put.wrapping_sub(taken) as i64;
        let room = outstanding <= 0 || outstanding as u64 + cost <= limit;
        if !room && self.given_up != Some((slot, taken)) && !self.give_up(slot, taken, now) {
            return Admission::MustWait;
        }
        self.waiting = None;
        let entry = self.page.as_ref().entry(slot);
        entry.put.fetch_add(cost, Ordering::Relaxed);
        Admission::Charged
    }

    /// Gives back the room of a charged run that the wire has dropped: its receiver never takes it
    /// out. If the slot has another owner by now, that owner has some room more until its sockets are
    /// empty.
    #[cold]
    pub(crate) fn refund(&mut self, charge: Charge) {
        let entry = self.page.as_ref().entry(charge.slot);
        if entry.limit.load(Ordering::Relaxed) != 0 {
            entry.put.fetch_sub(charge.cost, Ordering::Relaxed);
        }
    }

    /// Returns true if the owner of a slot has taken nothing out for 200 ms.
    fn give_up(&mut self, slot: u8, taken: u64, now: Time) -> bool {
        match &self.waiting {
            Some(wait) if (wait.slot, wait.taken) == (slot, taken) => {
                let too_long = now.nanos_since(wait.since) > CREDIT_PATIENCE_NS;
                if too_long {
                    self.given_up = Some((slot, taken));
                }
                too_long
            }
            _ => {
                self.waiting = Some(Wait {
                    since: now,
                    slot,
                    taken,
                });
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SLOT: u8 = 7;

    fn credits() -> (
        ReceiveCredits<Arc<CreditPage>>,
        SendCredits<Arc<CreditPage>>,
    ) {
        let page = Arc::new(CreditPage::default());
        let receive = ReceiveCredits::new(Arc::clone(&page), SLOT, 20_000);
        (receive, SendCredits::new(page))
    }

    /// Returns true if a run is admitted, and charged.
    fn admit(send: &mut SendCredits<Arc<CreditPage>>, cost: u64, at_ms: u64) -> bool {
        let now = Time::from_nanos(at_ms * 1_000_000);
        send.admit(Charge { slot: SLOT, cost }, now) == Admission::Charged
    }

    #[test]
    fn sender_waits_while_half_of_the_buffer_is_in_use() {
        let (mut receive, mut send) = credits();
        assert!(admit(&mut send, 6000, 1));
        assert!(!admit(&mut send, 6000, 1));
        receive.begin();
        receive.take(&[0x64; 3000]);
        receive.end(false);
        assert!(admit(&mut send, 6000, 1), "3000 bytes and 768 are taken");
    }

    #[test]
    fn packets_of_reliable_queue_pairs_are_not_counted() {
        let (mut receive, mut send) = credits();
        assert!(admit(&mut send, 10_000, 1));
        receive.begin();
        receive.take(&[0x04; 9000]);
        receive.end(false);
        assert!(!admit(&mut send, 1, 1));
    }

    #[test]
    fn lost_packets_are_forgotten_when_the_sockets_are_empty() {
        let (mut receive, mut send) = credits();
        assert!(admit(&mut send, 10_000, 1));
        receive.begin();
        receive.end(true);
        assert!(admit(&mut send, 10_000, 1));
    }

    #[test]
    fn sender_waits_200_ms_for_an_owner_that_is_stopped() {
        let (mut receive, mut send) = credits();
        assert!(admit(&mut send, 10_000, 1));
        assert!(!admit(&mut send, 10_000, 2));
        assert!(!admit(&mut send, 10_000, 201));
        assert!(admit(&mut send, 10_000, 203), "after 200 ms");
        assert!(admit(&mut send, 10_000, 203), "no second wait");
        receive.begin();
        receive.take(&[0x64; 100]);
        receive.end(false);
        assert!(!admit(&mut send, 10_000, 204), "the owner is back");
    }

    #[test]
    fn dropped_run_takes_no_room() {
        let (_receive, mut send) = credits();
        assert!(admit(&mut send, 10_000, 1));
        assert!(!admit(&mut send, 10_000, 1));
        let (slot, cost) = (SLOT, 10_000);
        send.refund(Charge { slot, cost });
        assert!(admit(&mut send, 10_000, 1));
    }

    #[test]
    fn run_longer_than_the_limit_is_sent_into_an_empty_buffer() {
        let (_, mut send) = credits();
        assert!(admit(&mut send, 60_000, 1));
    }

    #[test]
    fn slot_without_owner_has_no_limit() {
        let (_, mut send) = credits();
        let charge = Charge {
            slot: 9,
            cost: 1 << 40,
        };
        assert_eq!(send.admit(charge, Time::ZERO), Admission::Unlimited);
        assert_eq!(send.admit(charge, Time::ZERO), Admission::Unlimited);
    }
}
