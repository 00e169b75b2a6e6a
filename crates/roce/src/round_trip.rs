//! Round-trip timing: measures round trips, and decides when a loss probe is sent.
//!
//! One packet at a time is timed. The estimator is that of TCP (RFC 6298): a smoothed round
//! trip and its mean deviation. The round trip of a retransmitted packet is no sample
//! (Karn's rule). So retransmission stops the measurement, and the backoff lasts until the
//! next valid sample.

use ferroce_wire::Psn;

use crate::psn_mark::PsnMark;
use crate::time::Time;

/// Minimum time before a loss probe: a peer on a busy host waits about 1 ms for a processor.
/// A needless probe costs one packet.
const PROBE_FLOOR_NS: u32 = 1_000_000;

/// Maximum backoff. The probe timeout is then 2^16 times the estimate, which exceeds every
/// ACK timeout in use.
const MAX_BACKOFF: u8 = 16;

/// The shortest round trip grows towards each longer sample by this part of the difference.
/// If a peer becomes slow for good, its round trips count as normal after about 20 samples.
const AGEING: u32 = 64;

/// A measured round trip.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Sample {
    /// Duration in nanoseconds.
    pub(crate) ns: u32,
    /// Shortest round trip of late, including this one, in nanoseconds.
    pub(crate) shortest_ns: u32,
}

/// Round-trip timing of one queue pair, in nanoseconds.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// PSN of the packet that is being timed.
    timed: PsnMark,
    /// Time at which that packet was sent: the low 32 bits of its nanoseconds.
    timed_since_ns: u32,
    /// Smoothed round trip; 0 before the first sample.
    smoothed: u32,
    /// Mean deviation from the smoothed round trip.
    deviation: u32,
    /// Shortest round trip. It ages, and each shorter sample replaces it.
    shortest: u32,
    /// Number of probes since the last sample. Each doubles the timeout.
    backoff: u8,
}

impl Default for RoundTrip {
    fn default() -> RoundTrip {
        RoundTrip {
            timed: PsnMark::NONE,
            timed_since_ns: 0,
            smoothed: 0,
            deviation: 0,
            shortest: u32::MAX,
            backoff: 0,
        }
    }
}

impl RoundTrip {
    /// Notes that a packet which causes a response is sent for the first time.
    #[inline]
    pub(crate) fn sent(&mut self, psn: Psn, now: Time) {
        if self.timed == PsnMark::NONE {
            self.timed = PsnMark::at(psn);
            self.timed_since_ns = now.as_nanos() as u32;
        }
    }

    /// Stops the measurement, because all packets in flight will be retransmitted.
    pub(crate) fn stop(&mut self) {
        self.timed = PsnMark::NONE;
    }

    /// Stops the measurement if it is that of packet `psn`, which is retransmitted.
    pub(crate) fn sent_again(&mut self, psn: Psn) {
        if self.timed == PsnMark::at(psn) {
            self.stop();
        }
    }

    /// Notes that all packets before `una` are acknowledged. Returns the round trip of the
    /// timed packet if it is one of them.
    ///
    /// A thread may bring a time from before the packet was sent: it read the clock before it
    /// waited for the lock. The age is negative then, and also 2.1 to 4.3 s after the packet:
    /// neither is a sample.
    pub(crate) fn acknowledged(&mut self, una: Psn, now: Time) -> Option<Sample> {
        if !self.timed.is_before(una) {
            return None;
        }
        self.stop();
        let age = (now.as_nanos() as u32).wrapping_sub(self.timed_since_ns);
        let ns = u32::try_from(age.cast_signed()).ok()?;
        self.add(ns);
        Some(Sample {
            ns,
            shortest_ns: self.shortest,
        })
    }

    /// Adds a measured round trip.
    fn add(&mut self, ns: u32) {
        // A quarter of the range is 1.07 s, and no sum below overflows.
        let ns = ns.clamp(1, u32::MAX / 4);
        if self.smoothed == 0 {
            self.smoothed = ns;
            self.deviation = ns / 2;
        } else {
            let error = self.smoothed.abs_diff(ns);
            self.deviation = self.deviation - self.deviation / 4 + error / 4;
            self.smoothed = self.smoothed - self.smoothed / 8 + ns / 8;
        }
        self.backoff = 0;
        self.shortest = match ns.checked_sub(self.shortest) {
            Some(longer) => self.shortest + longer / AGEING,
            None => ns,
        };
    }

    /// Returns the shortest time in which the peer can respond to the last probe: the
    /// shortest round trip, or 0 before the first sample. Each probe after the first halves
    /// it. Otherwise no response could count if the shortest round trip aged, the peer
    /// became fast again, and retransmissions allow no sample.
    pub(crate) fn shortest_probe_response_ns(&self) -> u32 {
        match self.smoothed {
            0 => 0,
            _ => self.shortest >> self.backoff.saturating_sub(1),
        }
    }

    /// Returns the smoothed round trip, or 0 before the first sample.
    pub(crate) fn smoothed_ns(&self) -> u32 {
        self.smoothed
    }

    /// Doubles the timeout because a probe is sent.
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Returns the time without a response before a probe is sent. Before the first sample,
    /// and for slow peers, the time before backoff is `limit`.
    pub(crate) fn probe_timeout_ns(&self, limit: u64) -> u64 {
        let estimate = match self.smoothed {
            0 => limit,
            smoothed => {
                let ns = u64::from(smoothed) + 4 * u64::from(self.deviation);
                ns.max(PROBE_FLOOR_NS.into()).min(limit)
            }
        };
        estimate << self.backoff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 67_108_864;

    #[test]
    fn probe_timeout_before_the_first_sample_is_the_ack_timeout() {
        assert_eq!(RoundTrip::default().probe_timeout_ns(LIMIT), LIMIT);
    }

    #[test]
    fn probe_timeout_follows_the_round_trip_within_bounds() {
        let mut rtt = RoundTrip::default();
        for _ in 0..100 {
            rtt.add(20_000);
        }
        assert_eq!(rtt.probe_timeout_ns(LIMIT), PROBE_FLOOR_NS.into());
        for _ in 0..100 {
            rtt.add(5_000_000);
        }
        let timeout = rtt.probe_timeout_ns(LIMIT);
        assert!((4_900_000..6_000_000).contains(&timeout), "{timeout}");
        rtt.add(u32::MAX);
        assert_eq!(rtt.probe_timeout_ns(LIMIT), LIMIT);
    }

    #[test]
    fn shortest_round_trip_ages_if_all_round_trips_become_longer() {
        let mut rtt = RoundTrip::default();
        rtt.add(20_000);
        for _ in 0..100 {
            rtt.add(5_000_000);
        }
        assert!((3_000_000..5_000_000).contains(&rtt.shortest), "{rtt:?}");
        rtt.add(20_000);
        assert_eq!(rtt.shortest, 20_000);
    }

    #[test]
    fn one_packet_at_a_time_is_timed() {
        let at = Time::from_nanos;
        let psn = Psn::new;
        let mut rtt = RoundTrip::default();
        rtt.sent(psn(5), at(u64::from(u32::MAX)));
        rtt.sent(psn(6), at(5_000_000_000));
        assert!(rtt.acknowledged(psn(5), at(5_000_000_000)).is_none());
        let sample = rtt.acknowledged(psn(7), at(u64::from(u32::MAX) + 900));
        assert_eq!(
            sample.map(|sample| sample.ns),
            Some(900),
            "the low bits wrapped"
        );
        rtt.sent(psn(7), at(0));
        assert!(
            rtt.acknowledged(psn(8), at(u64::MAX)).is_none(),
            "before it was sent"
        );
        rtt.sent(psn(8), at(0));
        rtt.sent_again(psn(7));
        assert!(rtt.acknowledged(psn(9), at(1)).is_some());
        rtt.sent(psn(9), at(0));
        rtt.sent_again(psn(9));
        assert!(rtt.acknowledged(psn(10), at(1)).is_none(), "Karn's rule");
    }

    #[test]
    fn each_further_probe_halves_the_shortest_response_time() {
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.shortest_probe_response_ns(), 0, "no sample");
        rtt.add(4_000_000);
        let times = [4_000_000, 2_000_000, 1_000_000];
        for shortest in times {
            rtt.back_off();
            assert_eq!(rtt.shortest_probe_response_ns(), shortest);
        }
    }

    #[test]
    fn each_probe_doubles_the_timeout_until_the_next_sample() {
        let mut rtt = RoundTrip::default();
        rtt.add(20_000);
        let first = rtt.probe_timeout_ns(LIMIT);
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.probe_timeout_ns(LIMIT), 4 * first);
        rtt.add(20_000);
        assert_eq!(rtt.probe_timeout_ns(LIMIT), first);
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.probe_timeout_ns(LIMIT), first << MAX_BACKOFF);
    }
}
