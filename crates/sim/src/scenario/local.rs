//! Scenarios of hosts that share memory: programs of one machine, and sometimes one of another.

use ferroce_net::RUN_LIMITS;
use ferroce_roce::{QpType, RunLimits, Time};
use ferroce_shard::CREDIT_PATIENCE_NS;

use super::draw::{draw_disruptions, draw_queue_pairs};
use super::{Disruption, Features, Scenario};
use crate::rng::{Rng, Stream};

/// Share of the seeds that have such a scenario.
const SHARE: f64 = 0.05;

/// The parameters of the local wire.
#[derive(Copy, Clone, Debug)]
pub(crate) struct LocalPlan {
    /// Probability that a queue pair uses memory if it can.
    pub(crate) in_memory: f64,
    /// Bytes of the longest run.
    pub(crate) longest_run: usize,
    /// Window of a queue pair through memory, in bytes.
    pub(crate) window: u32,
    /// A hostile process has channels to the hosts.
    pub(crate) has_intruder: bool,
    /// No queue pair is reliable, so that receivers may have few credits.
    pub(crate) is_unreliable: bool,
}

impl LocalPlan {
    pub(crate) fn run_limits(&self) -> RunLimits {
        RunLimits {
            bytes: self.longest_run,
            ..RUN_LIMITS
        }
    }
}

/// Returns true if a seed has such a scenario.
pub(super) fn is_drawn(seed: u64) -> bool {
    Rng::new(seed, Stream::Local).chance(SHARE)
}

/// Draws the machines of the hosts: one machine, or the last host on another one.
pub(super) fn draw_machines(rng: &mut Rng, hosts: usize) -> Vec<usize> {
    let elsewhere = hosts > 2 && rng.chance(0.3);
    (0..hosts)
        .map(|host| usize::from(elsewhere && host + 1 == hosts))
        .collect()
}

pub(super) fn features(rng: &mut Rng) -> Features {
    let mut f = Features::default();
    for (feature, probability) in [
        (&mut f.pauses, 0.15),
        (&mut f.wrap, 0.3),
        (&mut f.late_receives, 0.2),
        (&mut f.shared_receives, 0.15),
        (&mut f.notifications, 0.2),
        (&mut f.fences, 0.2),
        (&mut f.small_windows, 0.1),
        (&mut f.big, 0.2),
        (&mut f.drain, 0.05),
        (&mut f.bad_requests, 0.05),
        (&mut f.teardown, 0.15),
        (&mut f.deregister, 0.05),
    ] {
        *feature = rng.chance(probability);
    }
    if f.big {
        // Without credits, more packets could wait for receives than a shard stores.
        f.late_receives = false;
    }
    if rng.chance(0.15) {
        f.teardown = true;
        f.reconnect = true;
        // A shared receive of deregistered memory would outlast its connection.
        f.deregister = false;
    }
    f
}

pub(super) fn draw_kind(rng: &mut Rng, s: &Scenario) -> QpType {
    match s.local.is_some_and(|local| local.is_unreliable) {
        true => QpType::Uc,
        false => rng.pick(&[QpType::Rc, QpType::Rc, QpType::XrcInitiator, QpType::Uc]),
    }
}

/// Draws the queue pairs and the disruptions.
pub(super) fn draw_rest(rng: &mut Rng, mut s: Scenario) -> Scenario {
    let local = LocalPlan {
        in_memory: rng.pick(&[0.6, 0.95, 1.0]),
        longest_run: rng.pick(&[4_300, 6_000, 9_000]),
        window: rng.pick(&[4_096, 8_192, 64 << 10]),
        has_intruder: rng.chance(0.3),
        is_unreliable: rng.chance(0.2),
    };
    s.local = Some(local);
    if local.is_unreliable && rng.chance(0.5) {
        s.receive_buffer = rng.pick(&[8_000, 40_000, 400_000]);
    }
    draw_queue_pairs(rng, &mut s);
    let timeouts = s.longest_timeout_ns() * rng.range(2..=8);
    s.heal = s.heal.max(Time::from_nanos(timeouts));
    draw_disruptions(rng, &mut s);
    draw_end(rng, &mut s);
    s
}

/// Draws the death of a host, the end of a channel, or a long stop.
fn draw_end(rng: &mut Rng, s: &mut Scenario) {
    let heal = s.heal.as_nanos();
    let at = Time::from_nanos(rng.range(0..=heal * 3 / 4));
    // These are on one machine.
    let host = rng.below(2) as usize;
    match rng.below(10) {
        0..=3 => {
            let accesses = match rng.chance(0.7) {
                true => rng.below(40),
                false => rng.below(400),
            };
            s.disruptions.push((at, Disruption::Die { host, accesses }));
        }
        4 | 5 => {
            let sabotages = rng.chance(0.5);
            let what = Disruption::EndChannel { host, sabotages };
            s.disruptions.push((at, what));
        }
        6 => {
            let ns = match rng.chance(0.5) {
                true => CREDIT_PATIENCE_NS + rng.range(1..=CREDIT_PATIENCE_NS / 4),
                false => rng.range(15_000_000..=40_000_000),
            };
            let at = Time::from_nanos(at.as_nanos() / 3);
            s.disruptions.push((at, Disruption::Pause { host, ns }));
            s.heal = s.heal.max(at.after_nanos(ns + ns / 10));
        }
        _ => {}
    }
}
