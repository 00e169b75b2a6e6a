//! Devices of one process on one link, which share its slots.

use std::sync::Arc;

use ferroce_control::{Request, Resources, find_daemon};
use ferroce_device::transport::{
    Access, QpCap, QpEvent, QpInit, QpType, SendOp, SrqInit, VerbsError, WcStatus,
};
use ferroce_device::{AsyncEvent, Buffer, Device};
use ferroce_testnet::{deadline, netdev};
use rustix::fs::OFlags;

use crate::client::slots;
use crate::support::{Endpoint, LINK, V4, V6, on_loopback, pattern};

const DEVICES: u32 = 300;
const LENGTH: u32 = 10_000;

/// Connects two ends.
fn connect(one: &mut Endpoint, other: &mut Endpoint) {
    one.connect(&other.introduction());
    other.connect(&one.introduction());
}

/// Writes from one end to the other, and checks the data.
fn works(one: &Endpoint, other: &Endpoint, seed: u32) {
    one.put(0, &pattern(seed, LENGTH));
    one.write(1, 0, LENGTH);
    one.succeed(1);
    assert!(other.get(0, LENGTH) == pattern(seed, LENGTH), "{seed}");
}

/// Returns the objects of this process, by device.
fn objects() -> Vec<Resources> {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let (programs, _) = connection.resources(None).expect("listed");
    let ours = programs.into_iter().filter(|program| {
        let process = &program.process;
        process.pid == std::process::id()
    });
    let all = ours.map(|program| program.read().expect("reported"));
    all.flatten().collect()
}

/// UCX's tests open a device 300 times, and a network namespace has 255 slots.
#[test]
fn three_hundred_devices_share_the_slots_of_one() {
    let name = "sharing::three_hundred_devices_share_the_slots_of_one";
    on_loopback(name, |_ferroced| {
        let mut ends: Vec<(u32, Endpoint)> = Vec::new();
        for number in 0..DEVICES {
            let gid_index = if number % 4 < 2 { V4 } else { V6 };
            ends.push((number, Endpoint::open(QpType::Rc, gid_index)));
        }
        let taken = slots();
        assert!(taken.len() <= 4, "{taken:?}");
        let mut numbers: Vec<u32> = ends.iter().map(|(_, end)| end.qp.qpn()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), DEVICES as usize, "numbers are unique");
        let mut pairs: Vec<[Endpoint; 2]> = Vec::new();
        while let (Some((_, mut one)), Some((_, mut other))) = (ends.pop(), ends.pop()) {
            connect(&mut one, &mut other);
            works(&one, &other, one.qp.qpn());
            pairs.push([one, other]);
        }
        let objects = objects();
        assert_eq!(
            objects.len(),
            DEVICES as usize,
            "one report for each device"
        );
        assert!(objects.iter().all(|device| device.qps.len() == 1));
        let contexts: std::collections::BTreeSet<u32> = objects.iter().map(|o| o.ctxn).collect();
        assert_eq!(contexts.len(), DEVICES as usize, "numbers are unique");
        // A shuffled order: 151 is a prime.
        let order: Vec<usize> = (1..=pairs.len()).map(|n| n * 79 % 151 - 1).collect();
        let mut pairs: Vec<Option<[Endpoint; 2]>> = pairs.into_iter().map(Some).collect();
        for (closed, &place) in order.iter().enumerate() {
            let [one, other] = pairs[place].take().expect("closed once");
            works(&other, &one, closed as u32);
            drop(one);
            if let Some(&next) = order.get(closed + 1) {
                let [one, other] = pairs[next].as_ref().expect("open");
                works(one, other, closed as u32);
                assert_eq!(slots(), taken);
            }
            drop(other);
        }
        deadline::until("all slots are free", || slots().is_empty());
    });
}

#[test]
fn objects_of_another_device_are_refused() {
    let name = "sharing::objects_of_another_device_are_refused";
    on_loopback(name, |_ferroced| {
        let open = || Device::open(LINK).expect("the link is there");
        let (one, other) = (open(), open());
        let (pd, foreign_pd) = (one.alloc_pd(), other.alloc_pd());
        let cq = one.create_cq(16, None).expect("a completion queue");
        let foreign_cq = other.create_cq(16, None).expect("a completion queue");
        let srq = |device: &Device, pd| {
            let init = SrqInit {
                max_wr: 1,
                max_sge: 1,
                xrc: None,
            };
            device.create_srq(pd, init)
        };
        let foreign_srq = srq(&other, &foreign_pd).expect("a shared receive queue");
        let is_refused = |error: VerbsError| {
            let words = error.to_string();
            assert!(words.contains("of another device"), "{words}");
        };
        is_refused(srq(&one, &foreign_pd).unwrap_err());
        is_refused(Buffer::new(&one, &foreign_pd, 64, Access::LOCAL_WRITE).unwrap_err());
        let create = |pd: &Arc<_>, cq: &Arc<ferroce_device::Cq>, srq| {
            let init = QpInit {
                qp_type: QpType::Rc,
                pd: Some(Arc::clone(pd)),
                send_cq: Some(Arc::clone(cq.queue())),
                recv_cq: Some(Arc::clone(cq.queue())),
                srq,
                xrcd: None,
                cap: QpCap {
                    max_send_wr: 1,
                    max_recv_wr: 1,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                sq_sig_all: true,
            };
            one.create_qp(&init, &[cq])
        };
        is_refused(create(&foreign_pd, &cq, None).unwrap_err());
        is_refused(create(&pd, &foreign_cq, None).unwrap_err());
        is_refused(create(&pd, &cq, Some(foreign_srq)).unwrap_err());
        create(&pd, &cq, None).expect("all objects are of one device");
    });
}

fn next_event(device: &Device) -> Option<AsyncEvent> {
    let flags = rustix::fs::fcntl_getfl(device.event_fd()).expect("flags");
    rustix::fs::fcntl_setfl(device.event_fd(), flags | OFlags::NONBLOCK).expect("set");
    device.take_event().ok()
}

#[test]
fn event_of_a_queue_pair_reaches_its_device_and_no_other() {
    let name = "sharing::event_of_a_queue_pair_reaches_its_device_and_no_other";
    on_loopback(name, |_ferroced| {
        let open = || Endpoint::open(QpType::Rc, V4);
        let (mut one, mut other, third) = (open(), open(), open());
        connect(&mut one, &mut other);
        let (remote_addr, rkey) = one.remote(0);
        let rkey = rkey ^ 1;
        one.post(1, SendOp::Read { remote_addr, rkey }, 0, 8);
        assert_eq!(one.status(), WcStatus::RemoteAccess);
        deadline::readable(other.device.event_fd(), "an event");
        let (qpn, kind) = (other.qp.qpn(), QpEvent::AccessError);
        assert_eq!(
            next_event(&other.device),
            Some(AsyncEvent::Qp { qpn, kind })
        );
        for end in [&one, &other, &third] {
            assert_eq!(next_event(&end.device), None);
        }
        netdev::set_down("lo");
        for end in [&one, &other, &third] {
            deadline::until("an event of the port", || {
                next_event(&end.device) == Some(AsyncEvent::PortError)
            });
        }
    });
}

/// Objects of a closed device may be left. They must not reach the objects of other devices.
#[test]
fn closed_device_leaves_the_others_working() {
    let name = "sharing::closed_device_leaves_the_others_working";
    on_loopback(name, |_ferroced| {
        let open = || Endpoint::open(QpType::Rc, V4);
        let (mut one, mut other) = (open(), open());
        let (mut third, mut fourth) = (open(), open());
        connect(&mut one, &mut other);
        connect(&mut third, &mut fourth);
        works(&one, &other, 1);
        other.device.close();
        other.device.close();
        let left = objects();
        assert_eq!(left.len(), 3, "three devices are open");
        let qps: usize = left.iter().map(|device| device.qps.len()).sum();
        let mrs: usize = left.iter().map(|device| device.mrs.len()).sum();
        assert_eq!((qps, mrs), (3, 3));
        let query = other.qp.query();
        let words = query.unwrap_err().to_string();
        assert!(words.contains("the device is closed"), "{words}");
        works(&third, &fourth, 2);
        // The peer of a destroyed queue pair gets no answer, until its retries are used up.
        let (address, _) = other.remote(0);
        assert_ne!(address, 0);
        one.write(2, 0, 8);
        assert_eq!(one.status(), WcStatus::RetryExceeded);
        drop(other);
        works(&fourth, &third, 3);
        assert!(!slots().is_empty());
        drop((one, third, fourth));
        deadline::until("all slots are free", || slots().is_empty());
    });
}

/// `crc` and `patience` are for devices that are opened afterwards. Engines keep theirs.
#[test]
fn link_whose_options_have_changed_is_opened_again() {
    let name = "sharing::link_whose_options_have_changed_is_opened_again";
    on_loopback(name, |_ferroced| {
        let open = || Endpoint::open(QpType::Rc, V4);
        let (mut one, two) = (open(), open());
        let before = slots();
        let mut connection = find_daemon().expect("reachable").expect("running");
        let set = Request::LinkSet {
            name: LINK.into(),
            rename: None,
            mtu: None,
            crc: None,
            lids: None,
            patience: Some(600),
            speed: None,
            local: None,
            strict: None,
            profile: None,
        };
        connection.perform(&set).expect("set");
        deadline::until("the change", || one.device.link().patience == 600);
        let (mut three, four) = (open(), open());
        assert_eq!(slots().len(), 2 * before.len());
        connect(&mut one, &mut three);
        works(&one, &three, 1);
        drop((one, two));
        deadline::until("slots are free", || slots().len() == before.len());
        drop((three, four));
        deadline::until("all slots are free", || slots().is_empty());
    });
}

/// Before the first queue pair no thread receives events: the program does so itself.
#[test]
fn device_without_slots_follows_its_link() {
    let name = "sharing::device_without_slots_follows_its_link";
    on_loopback(name, |_ferroced| {
        let open = || Device::open(LINK).expect("the link is there");
        let (one, other) = (open(), open());
        let has = |device: &Device, address: &str| {
            let address: std::net::IpAddr = address.parse().expect("an address");
            device.link().gids.iter().any(|gid| gid.address == address)
        };
        netdev::add_address("lo", "192.0.2.7/32");
        // A query receives the event for all devices.
        deadline::until("the GID", || has(&one, "192.0.2.7"));
        deadline::readable(other.event_fd(), "an event");
        assert_eq!(next_event(&other), Some(AsyncEvent::GidChange));
        assert_eq!(next_event(&one), Some(AsyncEvent::GidChange));
        assert_eq!(next_event(&one), None);
        // A thread that waits receives it as well.
        #[allow(clippy::disallowed_methods, reason = "a thread of the program")]
        std::thread::scope(|scope| {
            let three = open();
            let waits = scope.spawn(move || three.take_event());
            netdev::set_down("lo");
            let event = waits.join().unwrap().expect("an event");
            assert!(matches!(
                event,
                AsyncEvent::PortError | AsyncEvent::GidChange
            ));
        });
        let mut connection = find_daemon().expect("reachable").expect("running");
        let delete = |force| Request::LinkDelete {
            name: LINK.into(),
            force,
        };
        let refused = connection.perform(&delete(false)).unwrap_err();
        let words = refused.to_string();
        let us = std::process::id().to_string();
        assert!(words.contains("in use") && words.contains(&us), "{words}");
        connection.perform(&delete(true)).expect("deleted");
        for device in [&one, &other] {
            deadline::until("the removal", || {
                next_event(device) == Some(AsyncEvent::DeviceFatal)
            });
            let error = device.attach().unwrap_err().to_string();
            assert!(error.contains(LINK), "{error}");
        }
    });
}
