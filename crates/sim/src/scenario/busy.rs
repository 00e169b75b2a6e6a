//! Scenarios of busy hosts: a host runs for a short time and then waits for a processor,
//! again and again. Now and then it is stopped. No packet is lost, unless a receive buffer
//! overflows meanwhile.
//!
//! Each connection moves long messages by one operation only, so that its throughput can be
//! checked until the faults end.

use ferroce_roce::{QpType, Time};
use ferroce_wire::Mtu;

use super::draw::draw_end;
use super::{Disruption, EndPlan, PairPlan, Scenario};
use crate::program::Choice;
use crate::rng::Rng;

/// Bounds of the longest message, in bytes.
const LONGEST: core::ops::RangeInclusive<u64> = 64 << 10..=256 << 10;

/// Draws the connections and the times in which hosts wait.
pub(super) fn draw_rest(rng: &mut Rng, mut s: Scenario) -> Scenario {
    s.longest = rng.range(LONGEST);
    s.busy_wait_ns = rng.range(2_000_000..=6_000_000);
    for _ in 0..rng.range(1..=2) {
        let pair = draw_pair(rng, &s);
        s.pairs.push(pair);
    }
    let end = Time::from_nanos(s.busy_wait_ns * rng.range(60..=120));
    let stops = [0, 1].map(|host| draw_waits(rng, &mut s, host, end));
    s.heal = end.after_nanos(stops.iter().sum());
    s
}

fn draw_pair(rng: &mut Rng, s: &Scenario) -> PairPlan {
    let first = rng.below(2) as usize;
    let one = draw_busy_end(rng, s, first);
    let mut other = draw_busy_end(rng, s, 1 - first);
    other.setup.mtu = one.setup.mtu;
    other.setup.depth = one.setup.depth;
    other.setup.flow_label = one.setup.flow_label;
    if rng.chance(0.5) {
        (other.todo, other.only) = (0, None); // one side only responds
    }
    PairPlan {
        kind: QpType::Rc,
        ends: [one, other],
    }
}

fn draw_busy_end(rng: &mut Rng, s: &Scenario, host: usize) -> EndPlan {
    let mut end = draw_end(rng, s, QpType::Rc, host);
    end.setup.mtu = rng.pick(&[Mtu::Mtu1024, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096]);
    end.setup.depth = rng.pick(&[1, 1, 1, 4]);
    end.todo = rng.range(20..=40) as u32;
    end.only = Some(rng.pick(&[Choice::Read, Choice::Read, Choice::Write]));
    end.shared_receives = false;
    end.signals_all = true;
    end.late_ns = 0;
    end
}

/// Draws the times in which a host waits for a processor, until `end`, and at most one stop.
/// Returns the duration of the stop.
fn draw_waits(rng: &mut Rng, s: &mut Scenario, host: usize, end: Time) -> u64 {
    let longest_run_ns = rng.range(50_000..=200_000);
    // Early, because transfers without a stop take about a third of the time.
    let stop_at = match rng.chance(0.6) {
        true => Time::from_nanos(rng.below(end.as_nanos() / 4)),
        false => end,
    };
    let mut now = Time::ZERO;
    let mut stopped_ns = 0;
    while now < end.after_nanos(stopped_ns) {
        now = now.after_nanos(rng.range(20_000..=longest_run_ns));
        let ns = match stopped_ns == 0 && now >= stop_at {
            true => {
                // Some stops outlast the ACK timeout, which is four times its attribute.
                stopped_ns = rng.range(s.busy_wait_ns..=8 * s.longest_timeout_ns());
                stopped_ns
            }
            false => rng.range(0..=s.busy_wait_ns),
        };
        s.disruptions.push((now, Disruption::Pause { host, ns }));
        now = now.after_nanos(ns);
    }
    stopped_ns
}
