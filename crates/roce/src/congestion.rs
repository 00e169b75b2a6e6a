//! The congestion window: the bytes that a queue pair may have in flight.
//!
//! A receiver is often a socket with a small buffer. A go-back-N sender that overruns it
//! retransmits everything. So a window bounds the bytes in flight. It grows while
//! acknowledgements arrive, and shrinks
//!
//! - on loss,
//! - on a congestion notification,
//! - when two successive round trips take much longer than the shortest one: a queue builds
//!   up. A single long round trip may be a peer that waited for a processor.
//!
//! Loss proves that the window is too large, and can shrink it to four packets. Long round
//! trips prove less: on a busy host every packet waits for a processor. So they do not
//! shrink the window below 64 KiB.

use ferroce_wire::Psn;

use crate::psn_mark::PsnMark;
use crate::round_trip::RoundTrip;
use crate::time::Time;

/// Window cost of a packet beyond its payload: headers, and the receiver's bookkeeping per
/// packet, which fills small socket buffers.
pub(crate) const PACKET_OVERHEAD: u32 = 256;

/// Minimum window in packets, for peers that lose packets.
const FLOOR_PACKETS: u32 = 4;

/// Window in bytes below which long round trips do not shrink it. A new queue pair has as
/// many bytes in flight. READs of 64 KiB then take at most two requests, except with an MTU
/// of 256.
const DELAY_FLOOR: u32 = 64 << 10;

/// The congestion window of a queue pair.
#[derive(Debug)]
pub(crate) struct Window {
    size: u32,
    /// Below this size the window doubles each round trip; above, it grows by one packet.
    threshold: u32,
    ceiling: u32,
    packet: u32,
    /// PSN of the packet whose round trip is being measured.
    timed: PsnMark,
    /// Time at which that packet was sent.
    timed_since: Time,
    /// Estimate from the measured round trips.
    rtt: RoundTrip,
    /// The window is not cut again until this PSN is acknowledged.
    cut_until: PsnMark,
}

impl Window {
    /// Creates a window for packets of `mtu` bytes payload.
    pub(crate) fn new(mtu: u32, initial: u32, ceiling: u32) -> Window {
        let packet = mtu + PACKET_OVERHEAD;
        let floor = packet * FLOOR_PACKETS;
        let ceiling = ceiling.max(floor);
        Window {
            size: initial.clamp(floor, ceiling),
            threshold: ceiling,
            ceiling,
            packet,
            timed: PsnMark::NONE,
            timed_since: Time::ZERO,
            rtt: RoundTrip::default(),
            cut_until: PsnMark::NONE,
        }
    }

    /// Returns the bytes that may be in flight, including [`PACKET_OVERHEAD`] per packet.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of packets after which AckReq must be set.
    #[inline]
    pub(crate) fn ack_interval(&self) -> u32 {
        (self.size / self.packet / 4).clamp(1, 256)
    }

    /// Notes that a packet which will be acknowledged is sent.
    #[inline]
    pub(crate) fn sent(&mut self, psn: Psn, now: Time) {
        if self.timed == PsnMark::NONE {
            self.timed = PsnMark::at(psn);
            self.timed_since = now;
        }
    }

    /// Returns the time without a response before a loss probe. `limit` bounds it before
    /// backoff.
    pub(crate) fn probe_timeout_ns(&self, limit: u64) -> u64 {
        self.rtt.probe_timeout_ns(limit)
    }

    /// Returns the shortest time in which the peer can respond to the last probe.
    pub(crate) fn shortest_probe_response_ns(&self) -> u32 {
        self.rtt.shortest_probe_response_ns()
    }

    /// Doubles the probe timeout until the next round trip is measured.
    pub(crate) fn back_off(&mut self) {
        self.rtt.back_off();
    }

    /// Stops the measurement of a round trip.
    pub(crate) fn stop_timing(&mut self) {
        self.timed = PsnMark::NONE;
    }

    /// Notes that packet `psn` is retransmitted: its response no longer measures a round
    /// trip.
    pub(crate) fn sent_again(&mut self, psn: Psn) {
        if self.timed == PsnMark::at(psn) {
            self.timed = PsnMark::NONE;
        }
    }

    /// Notes that all packets before `una` are acknowledged, `bytes` of them now. The window
    /// grows only if it was `limited`: if it, not the program, held back packets.
    pub(crate) fn acked(&mut self, una: Psn, next: Psn, bytes: u32, limited: bool, now: Time) {
        if self.cut_until.get().is_some_and(|psn| !una.is_before(psn)) {
            self.cut_until = PsnMark::NONE;
        }
        if self.timed.is_before(una) {
            self.timed = PsnMark::NONE;
            self.rtt.sample(now.nanos_since(self.timed_since));
            if self.rtt.is_queue_building() && self.size > DELAY_FLOOR {
                self.cut(next, 8, DELAY_FLOOR);
                return;
            }
        }
        if limited && self.cut_until == PsnMark::NONE {
            let more = if self.size < self.threshold {
                bytes
            } else {
                (u64::from(self.packet) * u64::from(bytes) / u64::from(self.size)) as u32
            };
            self.size = self.size.saturating_add(more).min(self.ceiling);
        }
    }

    /// Halves the window after a reported gap or a congestion notification.
    pub(crate) fn lost(&mut self, next: Psn) {
        self.timed = PsnMark::NONE;
        self.cut(next, 2, self.floor());
    }

    /// Reduces the window to its minimum after an ACK timeout.
    pub(crate) fn timed_out(&mut self) {
        self.timed = PsnMark::NONE;
        // A stopped peer causes several timeouts. Only the first one finds the window that
        // was in use.
        if self.size > self.floor() {
            self.threshold = (self.size / 2).max(self.floor());
            self.size = self.floor();
        }
        self.cut_until = PsnMark::NONE;
    }

    /// Shrinks the window by 1/`part`, but not below `floor`, at most once per window of
    /// packets.
    fn cut(&mut self, next: Psn, part: u32, floor: u32) {
        if self.cut_until != PsnMark::NONE {
            return;
        }
        self.size = (self.size - self.size / part).max(floor);
        self.threshold = self.size;
        self.cut_until = PsnMark::at(next);
    }

    /// Returns the minimum window in bytes.
    fn floor(&self) -> u32 {
        self.packet * FLOOR_PACKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 1024;

    fn window() -> Window {
        Window::new(MTU, 64 << 10, 1 << 20)
    }

    fn psn(n: u32) -> Psn {
        Psn::new(n)
    }

    #[test]
    fn window_grows_only_while_it_is_the_limit() {
        let mut w = window();
        w.acked(psn(10), psn(20), 10_000, false, Time::ZERO);
        assert_eq!(w.size(), 64 << 10);
        w.acked(psn(20), psn(30), 10_000, true, Time::ZERO);
        assert_eq!(w.size(), (64 << 10) + 10_000);
        for n in 0..1000 {
            w.acked(psn(n), psn(n), 100_000, true, Time::ZERO);
        }
        assert_eq!(w.size(), 1 << 20, "the maximum window");
    }

    #[test]
    fn loss_halves_the_window_once_per_window() {
        let mut w = window();
        w.lost(psn(50));
        assert_eq!(w.size(), 32 << 10);
        w.lost(psn(60));
        assert_eq!(w.size(), 32 << 10, "the same congestion");
        w.acked(psn(50), psn(60), 1000, true, Time::ZERO);
        w.lost(psn(90));
        assert!(w.size() <= 17 << 10);
        for n in 0..100 {
            w.acked(psn(100 + n), psn(100 + n), 0, true, Time::ZERO);
            w.lost(psn(100 + n));
        }
        assert_eq!(
            w.size(),
            FLOOR_PACKETS * (MTU + PACKET_OVERHEAD),
            "the minimum window"
        );
    }

    #[test]
    fn two_successive_long_delays_shrink_the_window_by_an_eighth() {
        let mut w = Window::new(MTU, 1 << 20, 1 << 20);
        let mut time = 0;
        let mut round_trip = |w: &mut Window, n, took| {
            w.sent(psn(n), Time::from_nanos(time));
            time += took;
            w.acked(psn(n + 1), psn(n + 9), 0, false, Time::from_nanos(time));
        };
        round_trip(&mut w, 1, 20_000);
        round_trip(&mut w, 2, 3_000_000);
        round_trip(&mut w, 3, 20_000);
        round_trip(&mut w, 4, 3_000_000);
        assert_eq!(w.size(), 1 << 20, "single long delays");
        round_trip(&mut w, 5, 3_000_000);
        assert_eq!(w.size(), (1 << 20) / 8 * 7);
    }

    #[test]
    fn long_delays_do_not_shrink_the_window_below_64_kib() {
        let mut w = Window::new(MTU, 1 << 20, 1 << 20);
        let (mut time, mut sizes) = (0, Vec::new());
        for n in 0..200 {
            w.sent(psn(n), Time::from_nanos(time));
            // A short round trip now and then keeps the shortest one from ageing.
            time += if n % 8 == 0 { 20_000 } else { 5_000_000 };
            w.acked(psn(n + 1), psn(n + 1), 0, false, Time::from_nanos(time));
            sizes.push(w.size());
        }
        assert_eq!(w.size(), DELAY_FLOOR, "{sizes:?}");
        w.lost(psn(300));
        assert_eq!(w.size(), DELAY_FLOOR / 2, "loss shrinks it further");
    }

    #[test]
    fn window_below_64_kib_grows_in_spite_of_long_delays() {
        let mut w = window();
        w.lost(psn(0));
        for n in 0..50 {
            let sent = u64::from(n) * 10_000_000;
            w.sent(psn(n), Time::from_nanos(sent));
            let took = if n % 8 == 0 { 20_000 } else { 5_000_000 };
            let now = Time::from_nanos(sent + took);
            w.acked(psn(n + 1), psn(n + 1), 32 << 10, true, now);
        }
        assert!(w.size() >= DELAY_FLOOR, "{}", w.size());
    }

    #[test]
    fn only_the_first_of_several_timeouts_sets_the_threshold() {
        let mut w = window();
        w.timed_out();
        w.timed_out();
        for n in 0..20 {
            w.acked(psn(n), psn(n), w.size(), true, Time::ZERO);
        }
        assert!(w.size() > 32 << 10, "{}", w.size());
    }

    #[test]
    fn timeout_reduces_the_window_to_its_minimum() {
        let mut w = window();
        w.timed_out();
        assert_eq!(w.size(), FLOOR_PACKETS * (MTU + PACKET_OVERHEAD));
        w.acked(psn(5), psn(9), 5000, true, Time::ZERO);
        assert_eq!(w.size(), FLOOR_PACKETS * (MTU + PACKET_OVERHEAD) + 5000);
    }
}
