//! Multicast groups.

mod common;

use std::net::IpAddr;
use std::sync::mpsc;

use common::packet::{packet, path, run};
use common::{receive, receive_rest};
use ferroce_net::{Receiver, Sender, create_slot};
use ferroce_testnet::{isolated, netdev};

/// Source ports to send from, so that no result depends on a flow's hash.
const ROUNDS: usize = 16;
const MULTICAST_QPN: u32 = 0xff_ffff;

fn receivers(count: u8) -> Vec<Receiver> {
    (0..count)
        .map(|slot| Receiver::new(slot, create_slot(slot).expect("a slot")))
        .collect()
}

#[test]
fn each_member_receives_a_copy() {
    isolated("each_member_receives_a_copy", || {
        // IPv4 groups work on `lo`; for IPv6 groups it has no route.
        let (_go, _far) = common::veth::connect(1500, || ());
        let mut receivers = receivers(4);
        let mut sender = Sender::new();
        for (interface, source, group) in [
            ("lo", "127.0.0.1", "239.1.2.3"),
            ("near", "10.9.0.1", "239.1.2.4"),
            ("near", "fd09::1", "ff02::1:2345"),
        ] {
            let by = netdev::index(interface);
            let port = sender.bind(0xc000, source.contains(':')).expect("a port");
            let path = path(source, group, port);
            let group: IpAddr = group.parse().unwrap();
            let packets = run(&path.flow, true, &[MULTICAST_QPN; 3], 100, 100);
            let expect = |receivers: &mut [Receiver], counts: [usize; 4]| {
                sender
                    .send_run(&path, 100, &packets.concat(), Some(by))
                    .expect("sent");
                for (slot, (receiver, count)) in receivers.iter_mut().zip(counts).enumerate() {
                    let got = match count {
                        0 => receive_rest(receiver),
                        _ => receive(receiver, count),
                    };
                    assert_eq!(got.len(), count, "slot {slot}, group {group}");
                    assert!(got.iter().all(|kept| kept.destination == group));
                    let payloads = got.into_iter().map(|kept| kept.payload);
                    assert!(payloads.eq(packets.iter().take(count).cloned()));
                }
            };
            expect(&mut receivers, [0, 0, 0, 0]);
            receivers[1].join_multicast(group, by).expect("joined");
            receivers[1]
                .join_multicast(group, by)
                .expect("twice is once");
            receivers[3].join_multicast(group, by).expect("joined");
            expect(&mut receivers, [0, 3, 0, 3]);
            receivers[1].leave_multicast(group, by).expect("left");
            receivers[1]
                .leave_multicast(group, by)
                .expect("twice is once");
            expect(&mut receivers, [0, 0, 0, 3]);
            receivers[3].sockets().park().expect("parked");
            receivers[3].sockets().unpark().expect("in use again");
            expect(&mut receivers, [0, 0, 0, 0]);
        }
        assert!(receivers.iter().all(|r| r.stats().forwarded == 0));
    });
}

/// Early demux of a group's single member must not end in another slot.
#[test]
fn single_member_receives_over_a_veth_pair() {
    isolated("single_member_receives_over_a_veth_pair", || {
        let (tell_ready, ready) = mpsc::channel();
        let (go, far) = common::veth::connect(1500, move || {
            let mut receivers = receivers(4);
            let far = netdev::index("far");
            for group in ["239.1.2.3", "ff0e::1:2345"] {
                let group = group.parse().unwrap();
                receivers[2].join_multicast(group, far).expect("joined");
            }
            tell_ready.send(()).expect("awaited");
            let got = receive(&mut receivers[2], 2 * ROUNDS);
            let others: Vec<_> = receivers.iter_mut().flat_map(receive_rest).collect();
            (got, others)
        });
        drop(go);
        ready.recv().expect("the thread lives");
        let mut sender = Sender::new();
        let near = Some(netdev::index("near"));
        for (source, group) in [("10.9.0.1", "239.1.2.3"), ("fd09::1", "ff0e::1:2345")] {
            for round in 0..ROUNDS as u16 {
                let want = 0xc000 + round;
                let port = sender.bind(want, source.contains(':')).expect("a port");
                let path = path(source, group, port);
                let bytes = packet(&path.flow, 0, MULTICAST_QPN, 64, 1);
                sender.send_run(&path, 64, &bytes, near).expect("sent");
            }
        }
        let (got, others) = far.join().expect("no panic");
        assert_eq!(got.len(), 2 * ROUNDS);
        assert_eq!(others, []);
    });
}

#[test]
fn refused_join_names_the_reason() {
    isolated("refused_join_names_the_reason", || {
        let receiver = receivers(2).pop().unwrap();
        let join = |group: &str, ifindex| receiver.join_multicast(group.parse().unwrap(), ifindex);
        let error = join("239.1.2.3", 999).expect_err("no such interface");
        assert!(error.to_string().contains("interface 999"), "{error}");
        join("192.0.2.1", 1).expect_err("not a group");
        join("2001:db8::1", 1).expect_err("not a group");
        let error = (0..=255).find_map(|n| join(&format!("239.0.0.{n}"), 1).err());
        let error = error.expect("there is a limit");
        assert!(
            error.to_string().contains("igmp_max_memberships"),
            "{error}"
        );
    });
}
