//! How much a queue pair may have in flight.
//!
//! A receiver is often a socket with a small buffer, and a go-back-N sender
//! that overruns it sends everything again. So the bytes in flight are bounded
//! by a window that grows while answers come, and shrinks on loss, on a
//! congestion notification, and when answers take much longer than the
//! shortest round trip seen, twice in a row: a queue has built up somewhere. Once
//! may be no more than somebody who had to wait for a processor.

use ferroce_wire::Psn;

use crate::psn_mark::PsnMark;
use crate::round_trip::RoundTrip;
use crate::time::Time;

/// What a packet costs beyond its payload: headers, and the receiver's
/// bookkeeping, which is what small socket buffers run out of.
pub(crate) const PACKET_OVERHEAD: u32 = 256;

/// Packets that may always be in flight.
const FLOOR_PACKETS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Window {
    size: u32,
    /// Below it the window doubles each round trip, above it grows by a packet.
    threshold: u32,
    ceiling: u32,
    packet: u32,
    /// The packet whose round trip is being measured,
    timed: PsnMark,
    /// and when it left.
    timed_since: Time,
    /// The round trips that were measured.
    rtt: RoundTrip,
    /// No second cut until this PSN is acknowledged.
    cut_until: PsnMark,
}

impl Window {
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

    /// Bytes that may be in flight, each packet counted with its overhead.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// How many packets may leave before one must ask for an answer.
    #[inline]
    pub(crate) fn ack_interval(&self) -> u32 {
        (self.size / self.packet / 4).clamp(1, 256)
    }

    /// A packet that will be answered leaves.
    #[inline]
    pub(crate) fn sent(&mut self, psn: Psn, now: Time) {
        if self.timed == PsnMark::NONE {
            self.timed = PsnMark::at(psn);
            self.timed_since = now;
        }
    }

    /// Returns how long to wait for an answer before a loss probe, at most about `limit`.
    pub(crate) fn probe_timeout_ns(&self, limit: u64) -> u64 {
        self.rtt.probe_timeout_ns(limit)
    }

    /// Returns the shortest round trip measured, or 0 if there is none.
    pub(crate) fn shortest_round_trip_ns(&self) -> u32 {
        self.rtt.shortest_ns()
    }

    /// Doubles the probe timeout until the next round trip is measured.
    pub(crate) fn back_off(&mut self) {
        self.rtt.back_off();
    }

    /// Forgets the packet whose round trip is being measured.
    pub(crate) fn stop_timing(&mut self) {
        self.timed = PsnMark::NONE;
    }

    /// Notes that packet `psn` is sent again: its answer no longer tells a round trip.
    pub(crate) fn sent_again(&mut self, psn: Psn) {
        if self.timed == PsnMark::at(psn) {
            self.timed = PsnMark::NONE;
        }
    }

    /// Everything before `una` has been answered, `bytes` of it just now.
    pub(crate) fn acked(&mut self, una: Psn, next: Psn, bytes: u32, limited: bool, now: Time) {
        if self.cut_until.get().is_some_and(|psn| !una.is_before(psn)) {
            self.cut_until = PsnMark::NONE;
        }
        if self.timed.is_before(una) {
            self.timed = PsnMark::NONE;
            self.rtt.sample(now.nanos_since(self.timed_since));
            if self.rtt.is_queue_building() {
                self.cut(next, 8);
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

    /// A gap was reported, or the network said it is congested.
    pub(crate) fn lost(&mut self, next: Psn) {
        self.timed = PsnMark::NONE;
        self.cut(next, 2);
    }

    /// No answer came at all.
    pub(crate) fn timed_out(&mut self) {
        self.timed = PsnMark::NONE;
        self.threshold = (self.size / 2).max(self.floor());
        self.size = self.floor();
        self.cut_until = PsnMark::NONE;
    }

    /// Takes away one `part`th, once in a window.
    fn cut(&mut self, next: Psn, part: u32) {
        if self.cut_until != PsnMark::NONE {
            return;
        }
        self.size = (self.size - self.size / part).max(self.floor());
        self.threshold = self.size;
        self.cut_until = PsnMark::at(next);
    }

    /// What it never falls below.
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
    fn the_window_grows_only_while_it_is_the_limit() {
        let mut w = window();
        w.acked(psn(10), psn(20), 10_000, false, Time::ZERO);
        assert_eq!(w.size(), 64 << 10);
        w.acked(psn(20), psn(30), 10_000, true, Time::ZERO);
        assert_eq!(w.size(), (64 << 10) + 10_000);
        for n in 0..1000 {
            w.acked(psn(n), psn(n), 100_000, true, Time::ZERO);
        }
        assert_eq!(w.size(), 1 << 20, "the ceiling holds");
    }

    #[test]
    fn loss_halves_it_once_a_window() {
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
            "the floor holds"
        );
    }

    #[test]
    fn long_delays_shrink_it_gently() {
        let mut w = window();
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
        assert_eq!(w.size(), 64 << 10, "now and then it happens");
        round_trip(&mut w, 5, 3_000_000);
        assert_eq!(w.size(), (64 << 10) / 8 * 7);
    }

    #[test]
    fn a_timeout_starts_over_from_the_floor() {
        let mut w = window();
        w.timed_out();
        assert_eq!(w.size(), FLOOR_PACKETS * (MTU + PACKET_OVERHEAD));
        w.acked(psn(5), psn(9), 5000, true, Time::ZERO);
        assert_eq!(w.size(), FLOOR_PACKETS * (MTU + PACKET_OVERHEAD) + 5000);
    }
}
