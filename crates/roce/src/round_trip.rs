//! The round-trip estimator, which decides when a loss probe is sent.
//!
//! The estimator is that of TCP (RFC 6298): a smoothed round trip and its mean deviation.
//! The round trip of a retransmitted packet is no sample (Karn's rule). So the caller drops
//! such measurements, and the backoff lasts until the next valid sample.

/// Minimum time before a loss probe: a peer on a busy host waits about 1 ms for a processor.
/// A needless probe costs one packet.
const PROBE_FLOOR_NS: u32 = 1_000_000;

/// Maximum backoff. The probe timeout is then 2^16 times the estimate, which exceeds every
/// ACK timeout in use.
const MAX_BACKOFF: u8 = 16;

/// Tolerated delay beyond the shortest round trip. A longer delay indicates a queue.
const TOLERATED_DELAY_NS: u32 = 1_000_000;

/// The shortest round trip grows towards each longer sample by this part of the difference.
/// If a peer becomes slow for good, its round trips count as normal after about 20 samples.
const AGEING: u32 = 64;

/// Round-trip estimate of one queue pair, in nanoseconds.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// Smoothed round trip; 0 before the first sample.
    smoothed: u32,
    /// Mean deviation from the smoothed round trip.
    deviation: u32,
    /// Shortest round trip. It ages, and each shorter sample replaces it.
    shortest: u32,
    /// Number of probes since the last sample. Each doubles the timeout.
    backoff: u8,
    /// Number of successive samples that were much longer than the shortest, at most 2.
    slow_in_a_row: u8,
}

impl Default for RoundTrip {
    fn default() -> RoundTrip {
        RoundTrip {
            smoothed: 0,
            deviation: 0,
            shortest: u32::MAX,
            backoff: 0,
            slow_in_a_row: 0,
        }
    }
}

impl RoundTrip {
    /// Adds a measured round trip.
    pub(crate) fn sample(&mut self, ns: u64) {
        // A quarter of the range is 1.07 s, and no sum below overflows.
        let ns = ns.clamp(1, u64::from(u32::MAX / 4)) as u32;
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
        let tolerated = (4 * u64::from(self.shortest))
            .max(u64::from(self.shortest) + u64::from(TOLERATED_DELAY_NS));
        self.slow_in_a_row = match u64::from(ns) > tolerated {
            true => (self.slow_in_a_row + 1).min(2),
            false => 0,
        };
    }

    /// True if the last two samples were much longer than the shortest: a queue builds up.
    /// A single long sample may be a peer that waited for a processor.
    pub(crate) fn is_queue_building(&self) -> bool {
        self.slow_in_a_row >= 2
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
            rtt.sample(20_000);
        }
        assert_eq!(rtt.probe_timeout_ns(LIMIT), PROBE_FLOOR_NS.into());
        for _ in 0..100 {
            rtt.sample(5_000_000);
        }
        let timeout = rtt.probe_timeout_ns(LIMIT);
        assert!((4_900_000..6_000_000).contains(&timeout), "{timeout}");
        rtt.sample(u64::MAX);
        assert_eq!(rtt.probe_timeout_ns(LIMIT), LIMIT);
    }

    #[test]
    fn shortest_round_trip_ages_if_all_round_trips_become_longer() {
        let mut rtt = RoundTrip::default();
        rtt.sample(20_000);
        let slow = |rtt: &mut RoundTrip| {
            rtt.sample(5_000_000);
            rtt.is_queue_building()
        };
        let mut samples = 0..100;
        let _first = slow(&mut rtt);
        let tolerated = samples.find(|_| !slow(&mut rtt));
        assert!((10..30).contains(&tolerated.unwrap()), "{tolerated:?}");
        rtt.sample(20_000);
        assert_eq!(rtt.shortest_probe_response_ns(), 20_000);
    }

    #[test]
    fn each_further_probe_halves_the_shortest_response_time() {
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.shortest_probe_response_ns(), 0, "no sample");
        rtt.sample(4_000_000);
        let times = [4_000_000, 2_000_000, 1_000_000];
        for shortest in times {
            rtt.back_off();
            assert_eq!(rtt.shortest_probe_response_ns(), shortest);
        }
    }

    #[test]
    fn each_probe_doubles_the_timeout_until_the_next_sample() {
        let mut rtt = RoundTrip::default();
        rtt.sample(20_000);
        let first = rtt.probe_timeout_ns(LIMIT);
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.probe_timeout_ns(LIMIT), 4 * first);
        rtt.sample(20_000);
        assert_eq!(rtt.probe_timeout_ns(LIMIT), first);
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.probe_timeout_ns(LIMIT), first << MAX_BACKOFF);
    }
}
