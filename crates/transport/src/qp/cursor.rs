//! Where the requester stands: PSNs, the cursor in the send queue, budgets.

use ferroce_wire::Psn;

use crate::attr::QpAttr;
use crate::congestion::{PACKET_OVERHEAD, Window};
use crate::engine::{Config, Context};
use crate::psn_mark::PsnMark;
use crate::time::{Deadline, Time};

/// Whether a packet is the last of its message, and others wait behind it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum MessageEnd {
    NotLast,
    LastWithMore,
    LastInQueue,
}

#[derive(Debug)]
pub(super) struct Requester {
    /// The next PSN to send.
    pub(super) psn: Psn,
    /// The oldest PSN without an answer.
    pub(super) una: Psn,
    /// One past the highest PSN ever sent.
    pub(super) sent_up_to: Psn,
    /// The cursor: which work request, counted from the oldest,
    next: u32,
    /// and how many of its packets have left.
    pub(super) sent: u32,
    /// How many packets of the oldest work request have been answered.
    pub(super) acked: u32,
    /// READ requests, atomics and the like without an answer.
    pub(super) rd_atomic_outstanding: u16,
    /// Bytes in flight, as the window counts them.
    pub(super) in_flight: u32,
    pub(super) window: Window,
    /// The window, not the program, was what held sending up.
    pub(super) window_limited: bool,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// A retry is on its way: further NAKs say nothing new.
    pub(super) retrying: bool,
    /// When the ACK timeout of IBTA expires, and the next loss probe is due: both run
    /// from the first packet without an answer, and again from every answer.
    pub(super) ack_deadline: Deadline,
    pub(super) probe_deadline: Deadline,
    /// The packet that was sent again as a loss probe, until it is acknowledged: its answer
    /// may also come after a retry.
    pub(super) probe: PsnMark,
    pub(super) rnr_until: Deadline,
    /// Packets since the last that asks for an answer, and the PSN of the last
    /// answer that will come.
    since_ack_req: u32,
    last_response: PsnMark,
    /// The peer computes the ICRC of FLUSH as rxe does.
    pub(super) flush_quirk: bool,
}

impl Requester {
    pub(super) fn new(config: &Config) -> Requester {
        let zero = Psn::new(0);
        Requester {
            psn: zero,
            una: zero,
            sent_up_to: zero,
            next: 0,
            sent: 0,
            acked: 0,
            rd_atomic_outstanding: 0,
            in_flight: 0,
            window: Window::new(256, config.initial_window, config.max_window),
            window_limited: false,
            retries_left: 0,
            rnr_retries_left: 0,
            retrying: false,
            ack_deadline: Deadline::NONE,
            probe_deadline: Deadline::NONE,
            probe: PsnMark::NONE,
            rnr_until: Deadline::NONE,
            since_ack_req: 0,
            last_response: PsnMark::NONE,
            flush_quirk: false,
        }
    }

    pub(super) fn ready(&mut self, cx: &Context, attr: &QpAttr, mtu: u32) {
        *self = Requester::new(&cx.config);
        self.psn = attr.sq_psn;
        self.una = attr.sq_psn;
        self.sent_up_to = attr.sq_psn;
        self.window = Window::new(mtu, cx.config.initial_window, cx.config.max_window);
        self.attributes_changed(attr);
    }

    pub(super) fn attributes_changed(&mut self, attr: &QpAttr) {
        self.retries_left = attr.retry_cnt;
        self.rnr_retries_left = attr.rnr_retry;
    }

    /// Nothing more is sent or awaited.
    pub(super) fn stop(&mut self) {
        self.next = 0;
        self.sent = 0;
        self.acked = 0;
        self.rd_atomic_outstanding = 0;
        self.in_flight = 0;
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
            None => self.sent = 0, // it was under the cursor
        }
    }

    /// Moves the cursor to the oldest packet without an answer and returns its old place,
    /// for [`Requester::restore_cursor`].
    pub(super) fn move_cursor_to_oldest(&mut self) -> (Psn, u32, u32) {
        let place = (self.psn, self.next, self.sent);
        (self.psn, self.next, self.sent) = (self.una, 0, self.acked);
        place
    }

    /// Moves the cursor back to where it was.
    pub(super) fn restore_cursor(&mut self, place: (Psn, u32, u32)) {
        (self.psn, self.next, self.sent) = place;
    }

    pub(super) fn next_psn(&self) -> Psn {
        self.psn
    }

    pub(super) fn window(&self) -> u32 {
        self.window.size()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let timers = self.ack_deadline.min(self.probe_deadline);
        timers.min(self.rnr_until).get()
    }

    /// Moves the cursor back to the oldest packet without an answer.
    pub(super) fn rewind(&mut self) {
        // An answer to a packet that is sent again tells no round trip.
        self.window.stop_timing();
        self.psn = self.una;
        self.next = 0;
        self.sent = self.acked;
        self.rd_atomic_outstanding = 0;
        self.in_flight = 0;
        self.since_ack_req = 0;
        self.last_response = PsnMark::NONE;
    }

    /// Moves the cursor back by one packet, the last of work request `index`.
    pub(super) fn rewind_to_last_packet(&mut self, index: usize, psn: Psn, packets: u32) {
        self.psn = psn;
        self.next = index as u32;
        self.sent = packets - 1;
        self.in_flight = 0;
        self.since_ack_req = 0;
        self.last_response = PsnMark::NONE;
    }

    /// Whether an answer will come that speaks for everything up to `psn`.
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

    /// Whether `cost` more bytes may be in flight.
    #[inline]
    pub(super) fn admits(&mut self, cost: u32) -> bool {
        if self.in_flight == 0 || self.in_flight + cost <= self.window.size() {
            return true;
        }
        self.window_limited = true;
        // With nothing in flight that will be answered, no answer would ever
        // open the window again: one more packet goes, and asks.
        let last = self.last_response.get();
        last.is_none_or(|psn| psn.is_before(self.una))
    }

    /// Whether a packet of a message may leave, which has `others` behind it: they leave
    /// together, up to one that asks for an answer, or wait until they can.
    #[inline]
    pub(super) fn admits_group(&mut self, cost: u32, others: u32, mtu: u32) -> bool {
        let others = others.min(self.packets_until_ack_req() - 1);
        self.admits(cost + others * (mtu + PACKET_OVERHEAD))
    }

    /// Whether the packet about to leave must ask for an answer: the last of its message
    /// can leave it to the message that follows, within limits.
    #[inline]
    pub(super) fn needs_ack_req(&mut self, end: MessageEnd, room_for: u32) -> bool {
        self.since_ack_req += 1;
        let interval = self.window.ack_interval();
        let enough = match end {
            MessageEnd::NotLast => interval,
            MessageEnd::LastWithMore => interval.div_ceil(2),
            MessageEnd::LastInQueue => 1,
        };
        self.since_ack_req >= enough || self.in_flight + room_for > self.window.size()
    }

    /// The how manyth packet from now on must ask for an answer, as long as none ends a
    /// message.
    #[inline]
    pub(super) fn packets_until_ack_req(&self) -> u32 {
        let interval = self.window.ack_interval();
        interval.saturating_sub(self.since_ack_req).max(1)
    }

    /// Whether the message before the cursor is complete and has not asked for an answer.
    #[inline]
    pub(super) fn lacks_ack_req(&self) -> bool {
        self.sent == 0 && self.since_ack_req > 0
    }

    /// How many packets of so many bytes may be in flight in addition without one that
    /// asks for an answer.
    pub(super) fn packets_without_ack_req(&self, cost: u32) -> u32 {
        let room = self.window.size().saturating_sub(self.in_flight) / cost;
        // The next one may have to ask.
        room.min(self.packets_until_ack_req()).saturating_sub(1)
    }

    /// So many packets of so many bytes leave without asking.
    pub(super) fn note_sent_without_ack_req(&mut self, count: u32, cost: u32) {
        self.in_flight += count * cost;
        self.since_ack_req += count;
    }

    /// A packet leaves that `answers` packets from its PSN on will answer.
    #[inline]
    pub(super) fn note_ack_req(&mut self, psn: Psn, answers: u32, now: Time) {
        self.since_ack_req = 0;
        self.last_response = PsnMark::at(psn.add(answers - 1));
        self.window.sent(psn, now);
    }

    /// Notes that packets up to the cursor are out, and starts the clock.
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

    /// Starts both timers for an answer that is waited for from now on.
    #[inline]
    pub(super) fn start_timers(&mut self, cx: &Context, attr: &QpAttr) {
        let wait = ack_timeout_ns(cx, attr);
        self.ack_deadline = wait.map(|ns| cx.now.after_nanos(ns)).into();
        self.start_probe_timer(cx, attr);
    }

    /// Starts the timer of the next loss probe. No timeout means no probes either.
    #[inline]
    pub(super) fn start_probe_timer(&mut self, cx: &Context, attr: &QpAttr) {
        let wait = local_ack_timeout_ns(attr).map(|ns| self.window.probe_timeout_ns(ns));
        self.probe_deadline = wait.map(|ns| cx.now.after_nanos(ns)).into();
    }

    /// Stops both timers: no answer is waited for.
    #[inline]
    pub(super) fn stop_timers(&mut self) {
        self.ack_deadline = Deadline::NONE;
        self.probe_deadline = Deadline::NONE;
    }
}

/// The longest silence that is not yet a retry. IBTA 9.7.6.1.3: a timer may run up to four
/// times as long as its attribute says. Lost packets are found by probes long before, so
/// the timer takes all of it: a peer that is merely not scheduled is not declared dead.
/// It runs longer still where all retries together would not last as long as the link's
/// patience. A timeout of zero means for ever.
pub(super) fn ack_timeout_ns(cx: &Context, attr: &QpAttr) -> Option<u64> {
    let longest = 4 * local_ack_timeout_ns(attr)?;
    let patience = match cx.config.patience_ns {
        0 => 0,
        ns => ns.div_ceil(u64::from(attr.retry_cnt) + 1),
    };
    Some(longest.max(patience))
}

/// IBTA 9.9.2.1: 4.096 us times two to the power of the attribute; zero means for ever.
fn local_ack_timeout_ns(attr: &QpAttr) -> Option<u64> {
    (attr.timeout > 0).then(|| 4096u64 << attr.timeout)
}
