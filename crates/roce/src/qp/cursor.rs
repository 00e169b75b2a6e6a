//! State of the requester: PSNs, the cursor in the send queue, retry counters and deadlines.
//!
//! The cursor is a work request and the number of its packets that have been sent. The next
//! packet depends on the cursor alone, so going back N packets only moves the cursor.
//!
//! The functions about AckReq decide which packets set that bit. Several packets of every
//! window set it, so that ACKs keep the window moving.

use ferroce_wire::Psn;

use crate::attr::QpAttr;
use crate::congestion::{PACKET_OVERHEAD, Window};
use crate::engine::{Config, Context};
use crate::psn_mark::PsnMark;
use crate::round_trip::RoundTrip;
use crate::time::{Deadline, Time};

/// Value of [`Requester::probe_sent_ns`] until the probe is sent.
const NOT_SENT: u32 = 0;

/// Position of a packet in its message, and of the message in the send queue.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum MessageEnd {
    /// More packets of the message follow.
    NotLast,
    /// The message ends, and another work request is queued behind it.
    LastWithMore,
    /// The message ends, and no work request is queued behind it.
    LastInQueue,
}

/// State of the requester.
#[derive(Debug)]
pub(super) struct Requester {
    /// Next PSN to send.
    pub(super) psn: Psn,
    /// Oldest unacknowledged PSN (TCP's SND.UNA).
    pub(super) una: Psn,
    /// One past the highest PSN ever sent; after a rewind it is ahead of `psn`.
    pub(super) sent_up_to: Psn,
    /// Cursor: index of the work request, counted from the oldest.
    next: u32,
    /// Cursor: number of packets of that work request that have been sent.
    pub(super) sent: u32,
    /// Number of packets of the oldest work request that have been acknowledged.
    pub(super) acked: u32,
    /// Outstanding READ requests, atomics, atomic writes and flushes; `max_rd_atomic` bounds
    /// them.
    pub(super) rd_atomic_outstanding: u8,
    /// Bytes in flight, and their bound.
    pub(super) window: Window,
    pub(super) round_trip: RoundTrip,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// True between a retry and the next progress: further NAKs report the same loss.
    pub(super) retrying: bool,
    /// Expiry of the ACK timeout. It restarts with every acknowledgement.
    pub(super) ack_deadline: Deadline,
    /// Time of the next loss probe. It restarts with every acknowledgement.
    pub(super) probe_deadline: Deadline,
    /// PSN of the packet that was retransmitted as a loss probe, until it is acknowledged. A
    /// retry does not clear it, because the response to the probe may arrive later.
    pub(super) probe: PsnMark,
    /// Time when the probe was sent: the low 32 bits of its nanoseconds, or [`NOT_SENT`].
    probe_sent_ns: u32,
    /// End of the RNR wait, during which nothing is sent.
    pub(super) rnr_until: Deadline,
    /// Packets sent since the last one that causes a response.
    since_ack_req: u16,
    /// PSN of the last response that the packets in flight will cause.
    last_response: PsnMark,
    /// True if the peer computes the ICRC of FLUSH in rxe's way.
    pub(super) flush_quirk: bool,
}

impl Requester {
    pub(super) fn new(config: &Config, mtu: u32) -> Requester {
        let zero = Psn::new(0);
        Requester {
            psn: zero,
            una: zero,
            sent_up_to: zero,
            next: 0,
            sent: 0,
            acked: 0,
            rd_atomic_outstanding: 0,
            window: Window::new(mtu, config),
            round_trip: RoundTrip::default(),
            retries_left: 0,
            rnr_retries_left: 0,
            retrying: false,
            ack_deadline: Deadline::NONE,
            probe_deadline: Deadline::NONE,
            probe: PsnMark::NONE,
            probe_sent_ns: NOT_SENT,
            rnr_until: Deadline::NONE,
            since_ack_req: 0,
            last_response: PsnMark::NONE,
            flush_quirk: false,
        }
    }

    /// Starts with the attributes of a queue pair that enters RTS.
    /// `in_memory` says whether its packets travel through shared memory.
    pub(super) fn ready(&mut self, cx: &Context, attr: &QpAttr, mtu: u32, in_memory: bool) {
        *self = Requester::new(&cx.config, mtu);
        if in_memory {
            self.window.limit(cx.config.memory_window);
        }
        self.psn = attr.sq_psn;
        self.una = attr.sq_psn;
        self.sent_up_to = attr.sq_psn;
        self.attributes_changed(attr);
    }

    /// Restores both retry counters from the attributes.
    pub(super) fn attributes_changed(&mut self, attr: &QpAttr) {
        self.retries_left = attr.retry_cnt;
        self.rnr_retries_left = attr.rnr_retry;
    }

    /// Stops sending and forgets everything in flight.
    pub(super) fn stop(&mut self) {
        self.next = 0;
        self.sent = 0;
        self.acked = 0;
        self.rd_atomic_outstanding = 0;
        self.window.forget_in_flight();
        self.una = self.psn;
        self.sent_up_to = self.psn;
        self.stop_timers();
        self.probe = PsnMark::NONE;
        self.rnr_until = Deadline::NONE;
        self.since_ack_req = 0;
        self.last_response = PsnMark::NONE;
    }

    /// Returns the index of the work request under the cursor, counted from the oldest.
    #[inline]
    pub(super) fn index(&self) -> usize {
        self.next as usize
    }

    /// Notes that the oldest work request has left the queue.
    #[inline]
    pub(super) fn forget_oldest(&mut self) {
        self.acked = 0;
        match self.next.checked_sub(1) {
            Some(next) => self.next = next,
            None => self.sent = 0, // the cursor was on the removed work request
        }
    }

    /// Notes that `packets` more packets of the oldest work request are acknowledged.
    #[inline]
    pub(super) fn advance(&mut self, packets: u32) {
        self.acked += packets;
        self.una = self.una.add(packets);
    }

    /// Moves the cursor to the oldest unacknowledged packet and returns its old position,
    /// for [`Requester::restore_cursor`].
    pub(super) fn move_cursor_to_oldest(&mut self) -> (Psn, u32, u32) {
        let place = (self.psn, self.next, self.sent);
        (self.psn, self.next, self.sent) = (self.una, 0, self.acked);
        place
    }

    /// Restores a position of the cursor.
    pub(super) fn restore_cursor(&mut self, place: (Psn, u32, u32)) {
        (self.psn, self.next, self.sent) = place;
    }

    /// Returns the next PSN to send.
    pub(super) fn next_psn(&self) -> Psn {
        self.psn
    }

    /// Returns the size of the congestion window in bytes.
    pub(super) fn window(&self) -> u32 {
        self.window.size()
    }

    /// Returns the earliest deadline.
    pub(super) fn deadline(&self) -> Option<Time> {
        let timers = self.ack_deadline.min(self.probe_deadline);
        timers.min(self.rnr_until).get()
    }

    /// Moves the cursor back to the oldest unacknowledged packet.
    pub(super) fn rewind(&mut self) {
        // Karn's rule: an ACK of a retransmitted packet is no round-trip sample.
        self.round_trip.stop();
        self.psn = self.una;
        self.next = 0;
        self.sent = self.acked;
        self.rd_atomic_outstanding = 0;
        self.window.forget_in_flight();
        self.since_ack_req = 0;
        self.last_response = PsnMark::NONE;
    }

    /// Moves the cursor back to the last packet of work request `index`.
    pub(super) fn rewind_to_last_packet(&mut self, index: usize, psn: Psn, packets: u32) {
        self.psn = psn;
        self.next = index as u32;
        self.sent = packets - 1;
        self.window.forget_in_flight();
        self.since_ack_req = 0;
        self.last_response = PsnMark::NONE;
    }

    /// True if a packet in flight will cause a response that covers `psn`.
    pub(super) fn expects_response_for(&self, psn: Psn) -> bool {
        self.last_response
            .get()
            .is_some_and(|last| !last.is_before(psn))
    }

    /// Moves the cursor to the next work request.
    #[inline]
    pub(super) fn step(&mut self) {
        self.next += 1;
        self.sent = 0;
    }

    /// True if the window has room for `cost` more bytes.
    #[inline]
    pub(super) fn admits(&mut self, cost: u32) -> bool {
        if self.window.admits(cost) {
            return true;
        }
        // If no packet in flight causes a response, no ACK would ever open the window:
        // one more packet is sent, with AckReq.
        let last = self.last_response.get();
        last.is_none_or(|psn| psn.is_before(self.una))
    }

    /// Notes that a READ waits because `max_rd_atomic` allows no further request.
    ///
    /// The window is the limit nevertheless if it `split` the READ into requests of `cost`
    /// bytes. It may then grow to twice that cost: the READ has no more in flight, so a
    /// larger window would be untested.
    #[inline]
    pub(super) fn note_read_waits(&mut self, split: bool, cost: u32) {
        self.window
            .set_limit(split && 2 * cost > self.window.size());
    }

    /// True if a packet of a message and the packets behind it, up to the next AckReq, fit
    /// the window. Smaller groups wait, so that runs stay long. `others` is the number of
    /// packets of the message behind this one.
    #[inline]
    pub(super) fn admits_group(&mut self, cost: u32, others: u32, mtu: u32) -> bool {
        let others = match others {
            0 => 0,
            _ => others.min(self.packets_until_ack_req() - 1),
        };
        self.admits(cost + others * (mtu + PACKET_OVERHEAD))
    }

    /// Counts a packet and returns whether it must set AckReq.
    ///
    /// A last packet may leave AckReq to the next message, for half an ACK interval. A
    /// packet after which the window has no space for `room_for` bytes sets it too.
    #[inline]
    pub(super) fn needs_ack_req(&mut self, end: MessageEnd, room_for: u32) -> bool {
        self.since_ack_req += 1;
        let interval = self.window.ack_interval();
        let enough = match end {
            MessageEnd::NotLast => interval,
            MessageEnd::LastWithMore => interval.div_ceil(2),
            MessageEnd::LastInQueue => 1,
        };
        u32::from(self.since_ack_req) >= enough || self.window.room() < room_for
    }

    /// Returns the number of packets up to and including the next one that must set AckReq,
    /// if none of them ends a message.
    #[inline]
    pub(super) fn packets_until_ack_req(&self) -> u32 {
        let interval = self.window.ack_interval();
        interval.saturating_sub(self.since_ack_req.into()).max(1)
    }

    /// True if the message before the cursor has been sent completely and without AckReq.
    #[inline]
    pub(super) fn lacks_ack_req(&self) -> bool {
        self.sent == 0 && self.since_ack_req > 0
    }

    /// Returns how many packets of `cost` bytes can be sent before one must set AckReq.
    pub(super) fn packets_without_ack_req(&self, cost: u32) -> u32 {
        let room = self.window.room() / cost;
        // The last of them may have to set AckReq.
        room.min(self.packets_until_ack_req()).saturating_sub(1)
    }

    /// Counts packets of `cost` bytes that are sent without AckReq.
    pub(super) fn note_sent_without_ack_req(&mut self, count: u32, cost: u32) {
        self.window.sent(count * cost);
        // At most one ACK interval, which is 256 packets or fewer.
        self.since_ack_req += count as u16;
    }

    /// Notes a request that causes `responses` response packets from its PSN on.
    ///
    /// Packets from `fresh_from` on are sent for the first time. Only these are timed (Karn's
    /// rule): the response to a retransmitted packet may belong to the original, and would
    /// make the round trip look too short.
    #[inline]
    pub(super) fn note_ack_req(&mut self, psn: Psn, responses: u32, fresh_from: Psn, now: Time) {
        self.since_ack_req = 0;
        self.last_response = PsnMark::at(psn.add(responses - 1));
        if !psn.is_before(fresh_from) {
            self.round_trip.sent(psn, now);
        }
    }

    /// Notes that a probe of the oldest packet is to be sent.
    pub(super) fn schedule_probe(&mut self) {
        self.probe = PsnMark::at(self.una);
        self.probe_sent_ns = NOT_SENT;
    }

    /// Notes that the probe is sent.
    pub(super) fn note_probe_sent(&mut self, now: Time) {
        self.probe_sent_ns = (now.as_nanos() as u32).max(NOT_SENT + 1);
    }

    /// True if a response that arrives now can be caused by the probe: it was sent, and the
    /// shortest round trip has passed since. Otherwise the response belongs to a late
    /// original. Each further probe without a new sample halves that time, because the peer
    /// may have become faster.
    ///
    /// A thread may bring a time from before the probe: it read the clock before it waited
    /// for the lock. The age is negative then, and also 2.1 to 4.3 s after the probe. A
    /// response that is wrongly taken for early costs one more probe.
    pub(super) fn probe_can_be_answered(&self, now: Time) -> bool {
        let age = (now.as_nanos() as u32)
            .wrapping_sub(self.probe_sent_ns)
            .cast_signed();
        self.probe_sent_ns != NOT_SENT
            && u32::try_from(age)
                .is_ok_and(|age| age >= self.round_trip.shortest_probe_response_ns())
    }

    /// Notes that all packets before the cursor are sent, and starts the timers.
    #[inline]
    pub(super) fn note_sent(&mut self, cx: &Context, attr: &QpAttr) {
        if self.sent_up_to.is_before(self.psn) {
            self.sent_up_to = self.psn;
        }
        if self.ack_deadline.is_none() {
            self.start_timers(cx, attr);
        } else if self.probe_deadline.is_none() {
            self.start_probe_timer(cx, attr);
        }
    }

    /// Restarts the ACK timeout and the probe timer.
    #[inline]
    pub(super) fn start_timers(&mut self, cx: &Context, attr: &QpAttr) {
        let wait = ack_timeout_ns(cx, attr);
        self.ack_deadline = wait.map(|ns| cx.now.after_nanos(ns)).into();
        self.start_probe_timer(cx, attr);
    }

    /// Starts the timer of the next loss probe, unless the ACK timeout is off.
    #[inline]
    pub(super) fn start_probe_timer(&mut self, cx: &Context, attr: &QpAttr) {
        let wait = local_ack_timeout_ns(attr).map(|ns| self.round_trip.probe_timeout_ns(ns));
        self.probe_deadline = wait.map(|ns| cx.now.after_nanos(ns)).into();
    }

    /// Stops both timers.
    #[inline]
    pub(super) fn stop_timers(&mut self) {
        self.ack_deadline = Deadline::NONE;
        self.probe_deadline = Deadline::NONE;
    }
}

/// Returns the time without a response after which the requester retries.
///
/// IBTA 9.7.6.1.3 allows a timer to run up to four times as long as its attribute says.
/// Loss probes find lost packets long before, so this timer takes the full factor: a peer
/// that is only waiting for a processor is not declared dead. The timer runs longer still
/// where all retries together would last less than the link's `patience_ns`. A timeout
/// attribute of 0 turns the timer off.
pub(super) fn ack_timeout_ns(cx: &Context, attr: &QpAttr) -> Option<u64> {
    let longest = 4 * local_ack_timeout_ns(attr)?;
    let patience = match cx.config.patience_ns {
        0 => 0,
        ns => ns.div_ceil(u64::from(attr.retry_cnt) + 1),
    };
    Some(longest.max(patience))
}

/// Returns the Local ACK Timeout, 4.096 us * 2^timeout; an attribute of 0 means no timeout.
fn local_ack_timeout_ns(attr: &QpAttr) -> Option<u64> {
    (attr.timeout > 0).then(|| 4096u64 << attr.timeout)
}
