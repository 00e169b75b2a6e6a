//! How long a peer takes to answer, and so when its silence means a loss.
//!
//! The estimator is the one of TCP (RFC 6298): a smoothed round trip and its mean
//! deviation. A round trip of a packet that was sent twice is no sample (Karn's rule), so
//! the caller drops such measurements, and the backoff lasts until the next true sample.

/// Shortest silence before a loss probe. A peer on a busy host waits for a processor that
/// long; a probe for a peer that is merely late costs one packet.
const PROBE_FLOOR_NS: u32 = 1_000_000;

/// Largest backoff: the probe timeout is then 2^16 times the estimate, which is beyond
/// every ACK timeout in use.
const MAX_BACKOFF: u8 = 16;

/// Delay beyond the shortest round trip that is not yet a sign of a queue.
const TOLERATED_DELAY_NS: u32 = 1_000_000;

/// Round trips of one queue pair, in nanoseconds.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// Smoothed round trip; 0 before the first sample.
    smoothed: u32,
    /// Mean deviation from the smoothed round trip.
    deviation: u32,
    /// Shortest round trip of all.
    shortest: u32,
    /// Probes sent since the last sample: each doubles the timeout.
    backoff: u8,
    /// Samples in a row that were much longer than the shortest, at most 2.
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
        // A quarter of the range is a second: no sum below overflows.
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
        self.shortest = self.shortest.min(ns);
        let tolerated = (4 * u64::from(self.shortest))
            .max(u64::from(self.shortest) + u64::from(TOLERATED_DELAY_NS));
        self.slow_in_a_row = match u64::from(ns) > tolerated {
            true => (self.slow_in_a_row + 1).min(2),
            false => 0,
        };
    }

    /// True if the last two samples were much longer than the shortest: a queue builds up
    /// somewhere. A single long sample may be a peer that waited for a processor.
    pub(crate) fn is_queue_building(&self) -> bool {
        self.slow_in_a_row >= 2
    }

    /// Returns the shortest round trip, or 0 before the first sample.
    pub(crate) fn shortest_ns(&self) -> u32 {
        match self.smoothed {
            0 => 0,
            _ => self.shortest,
        }
    }

    /// Doubles the timeout: a probe leaves.
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Returns how long to wait for an answer before a probe is sent. Before the first
    /// sample, and for slow peers, that is `limit`.
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
    fn unmeasured_round_trips_wait_for_the_ack_timeout() {
        assert_eq!(RoundTrip::default().probe_timeout_ns(LIMIT), LIMIT);
    }

    #[test]
    fn timeout_follows_the_round_trip_between_floor_and_limit() {
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
