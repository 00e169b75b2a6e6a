//! Draws a scenario from a seed.

use ferroce_roce::{QpType, Time};
use ferroce_shard::{CREDIT_PATIENCE_NS, UNMATCHED_PATIENCE_NS};
use ferroce_wire::{Mtu, Psn};

use super::{DatagramPlan, Disruption, EndPlan, Family, Features, PairPlan, Scenario, busy, local};
use crate::model::Setup;
use crate::network::Link;
use crate::rng::{Rng, Stream};

/// The Q_Key of queue pairs that accept multicast datagrams.
const GROUP_QKEY: u32 = 0x1234;

pub(super) fn draw(seed: u64, chosen: Option<Family>) -> Scenario {
    let mut rng = Rng::new(seed, Stream::Scenario);
    let drawn = rng.pick(&Family::DRAWN);
    let family = match chosen {
        Some(family) => family,
        // Another stream: all other seeds have the scenarios that they would have without.
        None if local::is_drawn(seed) => Family::LocalWire,
        None => drawn,
    };
    let features = family.features(&mut rng);
    let hosts = match family {
        Family::BusyHosts => 2,
        _ => rng.pick(&[2, 2, 2, 3, 3, 4]),
    };
    let step_ns = rng.range(5_000..=40_000);
    let mut scenario = Scenario {
        family,
        hosts,
        machines: match family {
            Family::SameMachine => (0..hosts).map(|host| host.saturating_sub(1)).collect(),
            Family::LocalWire => local::draw_machines(&mut rng, hosts),
            _ => (0..hosts).collect(),
        },
        receive_buffer: match family {
            Family::SameMachine => rng.pick(&[8_000, 40_000, 400_000]),
            _ => 0,
        },
        local: None,
        ipv6: rng.chance(0.4),
        links: draw_links(&mut rng, &features, hosts),
        most_losses: if features.pauses { 2 } else { 3 },
        rx_capacity: match features.tiny_buffers {
            true => rng.range(2..=12) as usize,
            false => 512,
        },
        service_ns: rng.range(20..=100),
        busy_wait_ns: 0,
        port_mtu: rng.pick(&Mtu::ALL),
        check_icrc: true,
        initial_window: 64 << 10,
        max_window: 256 << 10,
        longest: 0,
        pairs: Vec::new(),
        datagrams: Vec::new(),
        disruptions: Vec::new(),
        step_ns,
        bad: 0.0,
        receive_pace: 1.0,
        heal: Time::ZERO.after_nanos(step_ns * rng.range(30..=80)),
        features,
    };
    draw_sizes(&mut rng, &mut scenario);
    if family == Family::LocalWire {
        return local::draw_rest(&mut rng, scenario);
    }
    if scenario.features.busy {
        return busy::draw_rest(&mut rng, scenario);
    }
    draw_queue_pairs(&mut rng, &mut scenario);
    // ACK timers must have time to expire before the faults end.
    let timeouts = scenario.longest_timeout_ns() * rng.range(2..=8);
    scenario.heal = scenario.heal.max(Time::from_nanos(timeouts));
    draw_disruptions(&mut rng, &mut scenario);
    draw_icrc(&mut rng, &mut scenario);
    draw_long_stop(&mut rng, &mut scenario);
    scenario
}

fn draw_links(rng: &mut Rng, f: &Features, hosts: usize) -> Vec<Vec<Link>> {
    let latency_ns = rng.range(500..=20_000);
    let jitter_ns = match f.reordering {
        true => rng.range(1_000..=60_000),
        false => rng.range(0..=5_000),
    };
    let straggle_ns = match f.stragglers {
        true => rng.range(50_000..=800_000),
        false => 0,
    };
    let mut chance = |on: bool, most: f64| match on {
        true => most * (0.1 + 0.9 * f64::from(rng.u32()) / f64::from(u32::MAX)),
        false => 0.0,
    };
    let link = Link {
        latency_ns,
        jitter_ns,
        loss: chance(f.loss, 0.2),
        duplicate: chance(f.duplicates, 0.2),
        straggle_ns,
        corrupt: chance(f.corruption, 0.1),
        reorder: chance(f.reordering, 0.4),
        mark: chance(f.congestion_marks, 0.2),
    };
    let mut one = || {
        let mut link = link;
        if rng.chance(0.2) {
            link.loss = 0.0; // lossy in one direction only
        }
        link
    };
    (0..hosts)
        .map(|_| (0..hosts).map(|_| one()).collect())
        .collect()
}

fn draw_sizes(rng: &mut Rng, s: &mut Scenario) {
    if s.features.small_windows {
        s.initial_window = 1 << rng.range(9..=13);
        s.max_window = 1 << rng.range(11..=15);
    }
    s.longest = match s.features.big {
        true => rng.range(40_000..=200_000),
        false => rng.pick(&[64, 1_000, 4_000, 10_000, 20_000]),
    };
    if s.features.bad_requests {
        s.bad = rng.pick(&[0.02, 0.05, 0.15]);
    }
    if s.features.bad_locals {
        s.bad = rng.pick(&[0.02, 0.05]);
    }
    if s.features.late_receives {
        s.receive_pace = rng.pick(&[0.1, 0.2, 0.4]);
    }
}

pub(super) fn draw_queue_pairs(rng: &mut Rng, s: &mut Scenario) {
    let pairs = match s.family {
        Family::ManyQps => rng.range(6..=10),
        Family::Datagrams | Family::Multicast => rng.range(0..=1),
        Family::Big => rng.range(1..=2),
        _ => rng.range(1..=3),
    };
    for _ in 0..pairs {
        let kind = match s.family {
            Family::Unreliable if rng.chance(0.8) => QpType::Uc,
            // A full receiver blocks all packets of a host, and reliable ones would time out.
            Family::SameMachine => QpType::Uc,
            Family::LocalWire => local::draw_kind(rng, s),
            Family::Xrc if rng.chance(0.8) => QpType::XrcInitiator,
            _ => rng.pick(&[
                QpType::Rc,
                QpType::Rc,
                QpType::Rc,
                QpType::Rc,
                QpType::Rc,
                QpType::Rc,
                QpType::XrcInitiator,
                QpType::Uc,
            ]),
        };
        let pair = draw_pair(rng, s, kind);
        s.pairs.push(pair);
    }
    let datagrams = match s.family {
        Family::Datagrams | Family::Multicast | Family::SameMachine => rng.range(2..=6),
        Family::LocalWire => rng.pick(&[0, 2, 3, 4]),
        _ if rng.chance(0.1) => 2,
        _ => 0,
    };
    for index in 0..datagrams {
        let host = rng.below(s.hosts as u64) as usize;
        let mut end = draw_end(rng, s, QpType::Ud, host);
        end.recv_size = s.port_mtu.bytes() as u64;
        if s.features.multicast && rng.chance(0.8) {
            end.setup.qkey = GROUP_QKEY;
        }
        let groups = match s.features.multicast {
            true => (0..3).filter(|_| rng.chance(0.5)).collect(),
            false => Vec::new(),
        };
        s.datagrams.push(DatagramPlan {
            general_services: index == 0
                && rng.chance(0.3)
                && s.local.is_none()
                && s.family != Family::SameMachine,
            end,
            groups,
        });
    }
}

fn draw_pair(rng: &mut Rng, s: &Scenario, kind: QpType) -> PairPlan {
    let a = rng.below(s.hosts as u64) as usize;
    let b = match rng.chance(0.05) {
        true => a, // a connection within one host
        false => (a + 1 + rng.below(s.hosts as u64 - 1) as usize) % s.hosts,
    };
    let mut one = draw_end(rng, s, kind, a);
    let mut other = draw_end(rng, s, kind, b);
    // Both ends must agree on these attributes.
    other.setup.mtu = one.setup.mtu;
    other.setup.depth = one.setup.depth;
    other.setup.flow_label = one.setup.flow_label;
    if rng.chance(0.3) {
        other.todo = 0; // one side only receives
    }
    if kind == QpType::XrcInitiator {
        other.todo = 0;
        other.shared_receives = true;
        other.late_ns = 0;
    }
    if rng.chance(0.5) {
        one.late_ns = 0;
        other.late_ns = 0;
    } else if rng.chance(0.5) {
        one.late_ns = 0;
    } else {
        other.late_ns = 0;
    }
    PairPlan {
        kind,
        ends: [one, other],
    }
}

pub(super) fn draw_end(rng: &mut Rng, s: &Scenario, kind: QpType, host: usize) -> EndPlan {
    let todo = match s.family {
        Family::Big => rng.range(3..=8),
        Family::ManyQps => rng.range(2..=8),
        _ => rng.range(4..=40),
    };
    EndPlan {
        host,
        setup: draw_setup(rng, s),
        todo: todo as u32,
        only: None,
        recv_size: match kind {
            _ if rng.chance(0.05) => 0,
            _ if rng.chance(0.2) => rng.range(1..=s.longest),
            _ => s.longest,
        },
        queue_depth: rng.range(1..=24) as u32,
        max_sge: rng.range(1..=5) as u32,
        shared_receives: s.features.shared_receives && rng.chance(0.7),
        signals_all: rng.chance(0.3),
        late_ns: rng.range(0..=100_000),
    }
}

fn draw_setup(rng: &mut Rng, s: &Scenario) -> Setup {
    // The timeout exceeds twice the longest round trip, so that a response which is
    // not lost arrives in time.
    let round_trip = 2 * s.longest_trip_ns() + 200 * s.service_ns;
    let shortest = (1..31)
        .find(|&t| 4096u64 << t > 2 * round_trip)
        .unwrap_or(20);
    let lossless = s.family == Family::Clean && s.is_lossless();
    let psn = match s.features.wrap {
        true => 0xff_ffff - rng.range(0..=60) as u32,
        false => rng.u32(),
    };
    Setup {
        mtu: rng.pick(&Mtu::ALL),
        timeout: match lossless && rng.chance(0.3) {
            true => 0,
            false => shortest + rng.range(0..=1) as u8,
        },
        retry_cnt: match s.features.few_retries || s.is_lossless() {
            true => rng.range(0..=7) as u8,
            false => 7,
        },
        rnr_retry: match s.features.rnr_limits {
            true => rng.range(0..=6) as u8,
            false => 7,
        },
        min_rnr_timer: rng.range(1..=12) as u8,
        depth: rng.pick(&[1, 1, 2, 4, 8, 16]),
        sq_psn: Psn::new(psn),
        qkey: rng.u32() & 0x7fff_ffff,
        flow_label: match rng.chance(0.5) {
            true => 0,
            false => rng.u32() & 0xf_ffff,
        },
    }
}

/// Stops a host or its program so long that senders on its machine give up waiting for
/// credits, and that packets without a receive expire.
fn draw_long_stop(rng: &mut Rng, s: &mut Scenario) {
    if s.family != Family::SameMachine || rng.chance(0.7) {
        return;
    }
    let host = rng.below(2) as usize; // these two are on one machine
    let (what, ns) = match rng.chance(0.5) {
        true => {
            let ns = CREDIT_PATIENCE_NS + rng.range(1..=CREDIT_PATIENCE_NS / 4);
            (Disruption::Pause { host, ns }, ns)
        }
        false => {
            let ns = UNMATCHED_PATIENCE_NS + rng.range(1..=UNMATCHED_PATIENCE_NS / 4);
            (Disruption::StopProgram { host, ns }, ns)
        }
    };
    let at = Time::from_nanos(rng.range(0..=s.heal.as_nanos() / 4));
    s.disruptions.push((at, what));
    s.heal = s.heal.max(at.after_nanos(ns + ns / 10));
}

/// Turns the check of the ICRC off in some scenarios without corruption. Half of them have
/// forged packets, which only the checks of the headers can reject.
fn draw_icrc(rng: &mut Rng, s: &mut Scenario) {
    if s.features.corruption || rng.chance(0.7) {
        return;
    }
    s.check_icrc = false;
    if s.family != Family::Clean && rng.chance(0.5) {
        s.features.strays = true;
    }
}

pub(super) fn draw_disruptions(rng: &mut Rng, s: &mut Scenario) {
    let f = s.features.clone();
    let heal = s.heal.as_nanos();
    let qps = 2 * s.pairs.len() as u64;
    let timeout = s
        .pairs
        .iter()
        .map(|p| 4096u64 << p.ends[0].setup.timeout)
        .min();
    let mut plan = |rng: &mut Rng, what: Disruption| {
        let at = Time::from_nanos(rng.range(heal / 10..=heal * 9 / 10));
        s.disruptions.push((at, what));
    };
    if f.pauses {
        let host = rng.below(s.hosts as u64) as usize;
        let ns = rng.range(10_000..=timeout.unwrap_or(1_000_000));
        plan(rng, Disruption::Pause { host, ns });
    }
    if s.pairs.is_empty() {
        return;
    }
    let some_qp = |rng: &mut Rng| rng.below(qps) as usize;
    if f.teardown {
        for _ in 0..rng.range(1..=2) {
            let all = if f.reconnect {
                qps
            } else {
                qps + s.datagrams.len() as u64
            };
            let qp = rng.below(all) as usize;
            let what = match rng.below(if f.reconnect { 2 } else { 3 }) {
                0 => Disruption::Kill { qp },
                1 => Disruption::Reset { qp },
                _ => Disruption::Destroy { qp },
            };
            plan(rng, what);
        }
    }
    if f.deregister {
        for _ in 0..rng.range(1..=2) {
            let host = rng.below(s.hosts as u64) as usize;
            let remote = rng.chance(0.6);
            plan(rng, Disruption::Deregister { host, remote });
        }
    }
    if f.drain {
        for _ in 0..rng.range(1..=3) {
            let (qp, ns) = (some_qp(rng), rng.range(1_000..=300_000));
            plan(rng, Disruption::Drain { qp, ns });
        }
    }
    if f.outage {
        let pair = rng.below(s.pairs.len() as u64) as usize;
        let [a, b] = [0, 1].map(|end| s.pairs[pair].ends[end].host);
        let ns = timeout.unwrap_or(1_000_000) * rng.range(1..=30);
        plan(rng, Disruption::Outage { a, b, ns });
    }
}
