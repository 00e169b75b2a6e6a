//! The congestion window: bounds the bytes that a queue pair has in flight.
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
//!
//! The queue pair reports events to the window ([`Window::sent`], [`Window::acknowledged`],
//! [`Window::lost`], [`Window::marked`], [`Window::timed_out`]) and asks it whether packets
//! may be sent ([`Window::admits`], [`Window::room`]). It knows nothing else about it, so
//! another congestion control is another `Window`, which `Requester::new` creates. Round
//! trips are measured elsewhere ([`RoundTrip`](crate::round_trip::RoundTrip)).

use ferroce_wire::Psn;

use crate::engine::Config;
use crate::psn_mark::PsnMark;
use crate::round_trip::Sample;

/// Window cost of a packet beyond its payload: headers, and the receiver's bookkeeping per
/// packet, which fills small socket buffers.
pub(crate) const PACKET_OVERHEAD: u32 = 256;

/// Minimum window in packets, for peers that lose packets.
const FLOOR_PACKETS: u32 = 4;

/// Window in bytes below which long round trips do not shrink it. A new queue pair has as
/// many bytes in flight. READs of 64 KiB then take at most two requests, except with an MTU
/// of 256.
const DELAY_FLOOR: u32 = 64 << 10;

/// Tolerated delay beyond the shortest round trip. A longer delay indicates a queue.
const TOLERATED_DELAY_NS: u64 = 1_000_000;

/// The congestion window of a queue pair. All sizes include [`PACKET_OVERHEAD`] per packet.
#[derive(Debug)]
pub(crate) struct Window {
    /// Bytes that may be in flight.
    size: u32,
    /// Bytes in flight.
    in_flight: u32,
    /// Below this size the window doubles each round trip; above, it grows by one packet.
    threshold: u32,
    ceiling: u32,
    /// The window is not cut again until this PSN is acknowledged.
    cut_until: PsnMark,
    /// Cost of a packet with a full payload.
    packet: u16,
    /// Number of packets after which AckReq must be set: a quarter of the window. It is kept,
    /// because computing it takes a division for every packet.
    ack_interval: u16,
    /// True if the window, and not the program, limits sending: only then may it grow.
    is_limit: bool,
    /// Number of successive round trips that were much longer than the shortest, at most 2.
    slow_in_a_row: u8,
}

/// An acknowledgement of packets.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Acknowledged {
    /// Cost of the packets.
    pub(crate) bytes: u32,
    /// Oldest PSN that is still not acknowledged.
    pub(crate) una: Psn,
    /// Next PSN to send.
    pub(crate) next: Psn,
    /// Round trip that the acknowledgement completes.
    pub(crate) round_trip: Option<Sample>,
}

impl Window {
    /// Creates a window for packets of `mtu` bytes payload.
    pub(crate) fn new(mtu: u32, config: &Config) -> Window {
        let packet = mtu + PACKET_OVERHEAD;
        let floor = packet * FLOOR_PACKETS;
        let ceiling = config.max_window.max(floor);
        let mut window = Window {
            size: 0,
            in_flight: 0,
            threshold: ceiling,
            ceiling,
            cut_until: PsnMark::NONE,
            packet: packet as u16, // an MTU is 4096 at most
            ack_interval: 1,
            is_limit: false,
            slow_in_a_row: 0,
        };
        window.resize(config.initial_window.clamp(floor, ceiling));
        window
    }

    /// Lowers the maximum of a new window.
    pub(crate) fn limit(&mut self, maximum: u32) {
        let floor = u32::from(self.packet) * FLOOR_PACKETS;
        self.ceiling = self.ceiling.min(maximum.max(floor));
        self.threshold = self.ceiling;
        self.resize(self.size.min(self.ceiling));
    }

    fn resize(&mut self, size: u32) {
        self.size = size;
        self.ack_interval = (size / u32::from(self.packet) / 4).clamp(1, 256) as u16;
    }

    /// Returns the bytes that may be in flight.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the bytes in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the bytes that may be sent now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.size.saturating_sub(self.in_flight)
    }

    /// Returns the number of packets after which AckReq must be set.
    #[inline]
    pub(crate) fn ack_interval(&self) -> u32 {
        self.ack_interval.into()
    }

    /// True if `cost` bytes may be sent now: they fit, or nothing else is in flight. If not,
    /// the window is the limit.
    #[inline]
    pub(crate) fn admits(&mut self, cost: u32) -> bool {
        let admits = self.in_flight == 0 || self.in_flight + cost <= self.size;
        self.is_limit |= !admits;
        admits
    }

    /// Notes whether the window, and not the program, limits sending.
    #[inline]
    pub(crate) fn set_limit(&mut self, is_limit: bool) {
        self.is_limit = is_limit;
    }

    /// Notes that packets, or requests for response packets, of `cost` bytes are sent.
    #[inline]
    pub(crate) fn sent(&mut self, cost: u32) {
        self.in_flight += cost;
    }

    /// Notes that nothing is in flight any more, because all of it will be sent again.
    pub(crate) fn forget_in_flight(&mut self) {
        self.in_flight = 0;
    }

    /// Notes an acknowledgement. The window grows only if it was the limit.
    pub(crate) fn acknowledged(&mut self, ack: Acknowledged) {
        self.in_flight = self.in_flight.saturating_sub(ack.bytes);
        let cut_ends = |psn: Psn| !ack.una.is_before(psn);
        if self.cut_until.get().is_some_and(cut_ends) {
            self.cut_until = PsnMark::NONE;
        }
        if let Some(sample) = ack.round_trip
            && self.is_queue_building(sample)
            && self.size > DELAY_FLOOR
        {
            self.cut(ack.next, 8, DELAY_FLOOR);
            return;
        }
        if self.is_limit && self.cut_until == PsnMark::NONE {
            let more = if self.size < self.threshold {
                ack.bytes
            } else {
                (u64::from(self.packet) * u64::from(ack.bytes) / u64::from(self.size)) as u32
            };
            self.resize(self.size.saturating_add(more).min(self.ceiling));
        }
    }

    /// Halves the window after a reported gap. `next` is the PSN after all that were sent.
    pub(crate) fn lost(&mut self, next: Psn) {
        self.cut(next, 2, self.floor());
    }

    /// Halves the window after a congestion notification.
    pub(crate) fn marked(&mut self, next: Psn) {
        self.cut(next, 2, self.floor());
    }

    /// Reduces the window to its minimum after an ACK timeout.
    pub(crate) fn timed_out(&mut self) {
        // A stopped peer causes several timeouts. Only the first one finds the window that
        // was in use.
        if self.size > self.floor() {
            self.threshold = (self.size / 2).max(self.floor());
            self.resize(self.floor());
        }
        self.cut_until = PsnMark::NONE;
    }

    /// Counts a round trip. True if it and the one before were much longer than the shortest:
    /// a queue builds up.
    fn is_queue_building(&mut self, sample: Sample) -> bool {
        let shortest = u64::from(sample.shortest_ns);
        let tolerated = (4 * shortest).max(shortest + TOLERATED_DELAY_NS);
        self.slow_in_a_row = match u64::from(sample.ns) > tolerated {
            true => (self.slow_in_a_row + 1).min(2),
            false => 0,
        };
        self.slow_in_a_row == 2
    }

    /// Shrinks the window by 1/`part`, but not below `floor`, at most once per window of
    /// packets.
    fn cut(&mut self, next: Psn, part: u32, floor: u32) {
        if self.cut_until != PsnMark::NONE {
            return;
        }
        self.resize((self.size - self.size / part).max(floor));
        self.threshold = self.size;
        self.cut_until = PsnMark::at(next);
    }

    /// Returns the minimum window in bytes.
    fn floor(&self) -> u32 {
        u32::from(self.packet) * FLOOR_PACKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 1024;
    const FLOOR: u32 = FLOOR_PACKETS * (MTU + PACKET_OVERHEAD);

    fn window_of(initial_window: u32) -> Window {
        let max_window = 1 << 20;
        let config = Config {
            initial_window,
            max_window,
            ..Config::default()
        };
        Window::new(MTU, &config)
    }

    fn window() -> Window {
        window_of(64 << 10)
    }

    fn psn(n: u32) -> Psn {
        Psn::new(n)
    }

    /// Acknowledges all packets before `una`, which is also the next to send.
    fn acknowledge(w: &mut Window, una: u32, bytes: u32) {
        w.acknowledged(Acknowledged {
            bytes,
            una: psn(una),
            next: psn(una),
            round_trip: None,
        });
    }

    /// Acknowledges like [`acknowledge`], after a round trip; the shortest takes 20 us.
    fn acknowledge_after(w: &mut Window, una: u32, bytes: u32, ns: u32) {
        w.acknowledged(Acknowledged {
            bytes,
            una: psn(una),
            next: psn(una),
            round_trip: Some(Sample {
                ns,
                shortest_ns: 20_000,
            }),
        });
    }

    #[test]
    fn bytes_beyond_the_window_are_not_admitted() {
        let mut w = window();
        assert!(w.admits(1 << 20), "nothing is in flight");
        w.sent(60 << 10);
        assert!(w.admits(4 << 10));
        assert!(!w.is_limit);
        assert!(!w.admits((4 << 10) + 1));
        assert!(w.is_limit);
        assert_eq!(w.room(), 4 << 10);
        acknowledge(&mut w, 1, 60 << 10);
        assert_eq!(w.in_flight, 0);
    }

    #[test]
    fn window_grows_only_while_it_is_the_limit() {
        let mut w = window();
        acknowledge(&mut w, 10, 10_000);
        assert_eq!(w.size(), 64 << 10);
        w.set_limit(true);
        acknowledge(&mut w, 20, 10_000);
        assert_eq!(w.size(), (64 << 10) + 10_000);
        for n in 0..1000 {
            acknowledge(&mut w, n, 100_000);
        }
        assert_eq!(w.size(), 1 << 20, "the maximum window");
    }

    #[test]
    fn loss_halves_the_window_once_per_window() {
        let mut w = window();
        w.set_limit(true);
        w.lost(psn(50));
        assert_eq!(w.size(), 32 << 10);
        w.lost(psn(60));
        w.marked(psn(60));
        assert_eq!(w.size(), 32 << 10, "the same congestion");
        acknowledge(&mut w, 50, 1000);
        w.lost(psn(90));
        assert!(w.size() <= 17 << 10);
        for n in 0..100 {
            acknowledge(&mut w, 100 + n, 0);
            w.lost(psn(100 + n));
        }
        assert_eq!(w.size(), FLOOR, "the minimum window");
    }

    #[test]
    fn two_successive_long_delays_shrink_the_window_by_an_eighth() {
        let mut w = window_of(1 << 20);
        for (n, ns) in [3_000_000, 20_000, 3_000_000].into_iter().enumerate() {
            acknowledge_after(&mut w, n as u32, 0, ns);
        }
        assert_eq!(w.size(), 1 << 20, "single long delays");
        acknowledge(&mut w, 4, 0);
        acknowledge_after(&mut w, 5, 0, 3_000_000);
        assert_eq!(w.size(), (1 << 20) / 8 * 7);
    }

    #[test]
    fn long_delays_do_not_shrink_the_window_below_64_kib() {
        let mut w = window_of(1 << 20);
        for n in 0..200 {
            acknowledge_after(&mut w, n, 0, 5_000_000);
        }
        assert_eq!(w.size(), DELAY_FLOOR);
        w.lost(psn(300));
        assert_eq!(w.size(), DELAY_FLOOR / 2, "loss shrinks it further");
    }

    #[test]
    fn window_below_64_kib_grows_in_spite_of_long_delays() {
        let mut w = window();
        w.lost(psn(0));
        w.set_limit(true);
        for n in 0..50 {
            acknowledge_after(&mut w, n, 32 << 10, 5_000_000);
        }
        assert!(w.size() >= DELAY_FLOOR, "{}", w.size());
    }

    #[test]
    fn only_the_first_of_several_timeouts_sets_the_threshold() {
        let mut w = window();
        w.set_limit(true);
        w.timed_out();
        w.timed_out();
        for n in 0..20 {
            let size = w.size();
            acknowledge(&mut w, n, size);
        }
        assert!(w.size() > 32 << 10, "{}", w.size());
    }

    #[test]
    fn timeout_reduces_the_window_to_its_minimum() {
        let mut w = window();
        w.set_limit(true);
        w.timed_out();
        assert_eq!(w.size(), FLOOR);
        acknowledge(&mut w, 5, 5000);
        assert_eq!(w.size(), FLOOR + 5000);
    }
}
