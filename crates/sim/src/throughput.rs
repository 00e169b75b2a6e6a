//! The check of throughput on busy hosts, in virtual time.

use crate::scenario::Disruption;
use crate::world::{Check, World};

/// Bytes that each end of a connection must move in the longest round trip without a stop.
/// The window has 64 KiB or more unless packets were lost, and an average round trip takes
/// half of the longest: the slowest of 1028 transfers in 12,000 seeds moves 87 KiB.
const BYTES_PER_ROUND_TRIP: u64 = 64 << 10;

impl World {
    /// Checks the throughput of a program with long messages once its work has completed.
    pub(crate) fn check_completed_transfer(&mut self, qp: usize) -> Check {
        let model = &self.qps[qp];
        match model.todo == 0 && model.pending() == 0 && !self.healed {
            true => self.check_throughput(qp),
            false => Ok(()),
        }
    }

    /// Checks that a program with long messages has moved enough bytes until now. There is
    /// one check for each program.
    pub(crate) fn check_throughput(&mut self, qp: usize) -> Check {
        let Some(only) = self.qps[qp].only.take() else {
            return Ok(());
        };
        let sends = self.qps[qp].sends.iter().map(|&send| &self.sends[send]);
        let done = sends.filter(|record| record.succeeded());
        let bytes: u64 = done.map(|record| record.payload.len() as u64).sum();
        let elapsed = self.now.as_nanos().saturating_sub(self.stopped_ns());
        let trips = elapsed / (2 * self.scenario.longest_trip_ns());
        // One message may be in progress.
        let least = (trips * BYTES_PER_ROUND_TRIP).saturating_sub(self.scenario.longest);
        if bytes < least {
            let name = self.qp_name(qp);
            return Err(format!(
                "{name} moved {bytes} bytes by {only:?} in {trips} of the longest round trips, \
                 less than {least}"
            ));
        }
        self.coverage.mark("throughput checked");
        Ok(())
    }

    /// Returns the time until now in which hosts were stopped, not only busy. Simultaneous
    /// stops of both hosts count twice, which only lowers the bound.
    fn stopped_ns(&self) -> u64 {
        let busy = self.scenario.busy_wait_ns;
        let stops = self.scenario.disruptions.iter();
        let stops = stops.filter_map(|&(at, what)| match what {
            Disruption::Pause { ns, .. } if at < self.now && ns > busy => {
                Some(ns.min(self.now.nanos_since(at)))
            }
            _ => None,
        });
        stops.sum()
    }
}
