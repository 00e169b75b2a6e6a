//! Several shards, shared queues, and timers of a sleeping progress thread.

use std::sync::Arc;

use ferroce_device::transport::{
    Arm, AttrMask, Pd, QpAttr, QpState, QpType, RecvWr, SendOp, SrqInit, WcStatus,
};
use ferroce_device::{AhAttr, Device};
use ferroce_endpoint::{Endpoint, Options, pattern};
use ferroce_testnet::{deadline, netfilter};

use crate::support::{LINK, V4, V6, on_loopback, pair};

const SIZE: u32 = 300_000;

/// Opens a device with this number of shards.
fn open(shards: u8) -> (Arc<Device>, Arc<Pd>) {
    // SAFETY: no other thread reads the environment.
    unsafe { std::env::set_var("FERROCE_SHARDS", shards.to_string()) };
    let device = Device::open(LINK).expect("a device");
    let pd = device.alloc_pd();
    (device, pd)
}

/// Returns two connected ends.
fn connected(device: &Arc<Device>, pd: &Arc<Pd>, options: [Options; 2]) -> [Endpoint; 2] {
    let ends = options.map(|options| Endpoint::on(device, pd, options).expect("an end"));
    let [mut one, mut other] = ends;
    let introduction = one.introduction().expect("a GID");
    other.connect(&introduction).expect("connected");
    let introduction = other.introduction().expect("a GID");
    one.connect(&introduction).expect("connected");
    [one, other]
}

#[test]
fn queue_pairs_are_spread_over_shards() {
    on_loopback("shards::queue_pairs_are_spread_over_shards", |_ferroced| {
        let (device, pd) = open(3);
        let pairs: Vec<[Endpoint; 2]> = (0..6)
            .map(|number| {
                let options = Options::new(QpType::Rc, if number % 2 == 0 { V4 } else { V6 });
                connected(&device, &pd, [options.clone(), options])
            })
            .collect();
        let slots: std::collections::BTreeSet<u32> = pairs
            .iter()
            .flatten()
            .map(|end| end.qp.qpn() >> 16)
            .collect();
        assert_eq!(slots.len(), 3, "the queue pairs are spread");
        for round in 0..5 {
            for (seed, [one, _]) in (round..).zip(&pairs) {
                one.pages.put(0, &pattern(seed, SIZE)).expect("writable");
                one.write(1, 0, SIZE).expect("room");
            }
            for (seed, [one, other]) in (round..).zip(&pairs) {
                one.succeed(1).expect("written");
                assert!(other.pages.get(0, SIZE).expect("readable") == pattern(seed, SIZE));
            }
        }
    });
}

#[test]
fn shared_receive_queue_serves_all_shards() {
    on_loopback(
        "shards::shared_receive_queue_serves_all_shards",
        |_ferroced| {
            let (device, pd) = open(1);
            let init = SrqInit {
                max_wr: 16,
                max_sge: 1,
                xrc: None,
            };
            let srq = device
                .create_srq(&pd, init)
                .expect("a shared receive queue");
            let plain = Options::new(QpType::Rc, V4);
            let shared = Options {
                srq: Some(Arc::clone(&srq)),
                ..plain.clone()
            };
            let pairs = [(); 2].map(|()| connected(&device, &pd, [plain.clone(), shared.clone()]));
            let inbox = &pairs[0][1];
            for (seed, [one, other]) in (1..).zip(&pairs) {
                let sges = [inbox.sge(0, SIZE)];
                srq.post(&RecvWr {
                    wr_id: 7,
                    sges: &sges,
                })
                .expect("room");
                one.pages.put(0, &pattern(seed, SIZE)).expect("writable");
                one.post(1, SendOp::Send { imm: None }, 0, SIZE)
                    .expect("room");
                let received = other.succeed(1).expect("received")[0];
                assert_eq!((received.wr_id, received.byte_len), (7, SIZE));
                one.succeed(1).expect("sent");
                assert!(inbox.pages.get(0, SIZE).expect("readable") == pattern(seed, SIZE));
            }
        },
    );
}

/// Packets are lost, so that timers matter, and no thread polls. A timer that a post sets
/// while the progress thread is about to sleep must fire.
#[test]
fn timer_set_before_the_progress_thread_sleeps_fires() {
    on_loopback(
        "shards::timer_set_before_the_progress_thread_sleeps_fires",
        |_ferroced| {
            let (device, pd) = open(1);
            let options = Options::new(QpType::Rc, V4);
            let [one, _other] = connected(&device, &pd, [options.clone(), options]);
            netfilter::lose(3);
            for round in 0..300 {
                one.cq.arm(Arm::Any);
                one.write(round, 0, 8).expect("room");
                deadline::readable(one.channel.fd(), "a completion, sooner or later");
                one.channel.take().expect("a record");
                let wc = one.cq.queue().pop().expect("announced");
                assert_eq!(wc.status, WcStatus::Success);
            }
        },
    );
}

#[test]
fn drained_queue_pair_can_change_to_the_other_ip_family() {
    let name = "shards::drained_queue_pair_can_change_to_the_other_ip_family";
    on_loopback(name, |_ferroced| {
        let (device, pd) = open(1);
        let options = Options::new(QpType::Rc, V4);
        let ends = connected(&device, &pd, [options.clone(), options]);
        let write = |round: u64| {
            ends[0].write(round, 0, SIZE).expect("room");
            ends[0].succeed(1).expect("written");
        };
        write(1);
        let v6 = AhAttr {
            sgid_index: V6,
            dgid: std::net::Ipv6Addr::LOCALHOST.octets(),
            port: 1,
            ..AhAttr::default()
        };
        for (state, mask) in [
            (QpState::Sqd, AttrMask::empty()),
            (QpState::Sqd, AttrMask::AV),
            (QpState::Rts, AttrMask::empty()),
        ] {
            for end in &ends {
                let attr = QpAttr {
                    state,
                    ..QpAttr::default()
                };
                let ah = mask.contains(AttrMask::AV).then_some(&v6);
                let modified = end.qp.modify(&attr, AttrMask::STATE | mask, ah);
                modified.expect("modified");
            }
        }
        write(2);
    });
}

/// Returns true if a thread of a process assembles packets for a progress thread.
fn has_assistant(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    tasks.flatten().any(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with("ferroce-") && name.trim_end().ends_with('+'))
    })
}

/// Progress threads that assume free processors do all turns of a busy shard, and one that no
/// program polls has an assistant.
#[test]
fn data_is_right_when_several_threads_send() {
    let name = "shards::data_is_right_when_several_threads_send";
    on_loopback(name, |_ferroced| {
        // SAFETY: no other thread reads the environment.
        unsafe {
            std::env::set_var("FERROCE_PROCESSORS", "64");
            std::env::set_var("FERROCE_WIRE", "udp");
        }
        const LENGTH: u32 = 1 << 18;
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let offsets = (0..8).map(|number| u64::from(number * LENGTH));
        let mut assisted = false;
        for round in 0..40 {
            for (seed, at) in (round * 16..).zip(offsets.clone()) {
                theirs.expect(&format!("put {seed} {at} {LENGTH}"), "done");
                ours.put(at, &[0; 8]);
            }
            for at in offsets.clone() {
                ours.read(1, at, LENGTH);
            }
            ours.succeed(8);
            for (seed, at) in (round * 16..).zip(offsets.clone()) {
                assert!(ours.get(at, LENGTH) == pattern(seed, LENGTH), "READ {seed}");
                ours.put(at, &pattern(seed + 8, LENGTH));
            }
            for at in offsets.clone() {
                ours.write(1, at, LENGTH);
            }
            ours.succeed(8);
            for (seed, at) in (round * 16..).zip(offsets.clone()) {
                theirs.expect(&format!("check {} {at} {LENGTH}", seed + 8), "right");
            }
            assisted |= has_assistant(theirs.actor.pid());
        }
        if !assisted {
            eprintln!("SKIPPED: READs with an assistant, because this machine was too slow");
        }
    });
}
