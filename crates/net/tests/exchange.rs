//! Datagrams arrive whole, with the fields of their IP headers.

mod common;

use std::net::IpAddr;

use common::namespace::isolated_as_nobody;
use common::packet::{packet, path, run};
use common::veth::ip;
use common::{receive, receive_rest};
use ferroce_net::{Features, IncomingRun, Receiver, SendError, Sender, create_slot_with, probe};
use ferroce_roce::Path;
use ferroce_testnet::isolated;
use ferroce_wire::icrc;

const QPN: u32 = 0x00_0123;

fn receiver(features: &Features) -> Receiver {
    let sockets = create_slot_with(0, features).expect("slot 0");
    Receiver::with_features(0, sockets, features)
}

/// Sends runs of many shapes over both families. Checks that every packet arrives whole,
/// in order, and with a correct ICRC.
fn round_trip(features: &Features) {
    let mut receiver = receiver(features);
    let mut sender = Sender::with_features(features, 8);
    assert_eq!(sender.ids_in_run(), features.gso);
    for address in ["127.0.0.1", "127.0.0.7", "::1"] {
        let v6 = address == "::1";
        let port = sender.bind(0xc777, v6).expect("a port");
        let path = path(address, address, port);
        for (count, len, last) in [
            (1, 16, 16),
            (1, 4120, 4120),
            (2, 1040, 16),
            (15, 4120, 4120),
            (15, 4120, 20),
            (61, 1040, 1040),
            (64, 16, 16),
            (64, 100, 96),
        ] {
            let qpns = vec![QPN; count];
            let packets = run(&path.flow, sender.ids_in_run(), &qpns, len, last);
            let bytes = packets.concat();
            sender.send_run(&path, len, &bytes, None).expect("sent");
            let got = receive(&mut receiver, count);
            let payloads: Vec<_> = got.iter().map(|k| k.payload.clone()).collect();
            assert_eq!(payloads.len(), count, "{count} x {len} over {address}");
            assert_eq!(payloads, packets, "{count} x {len} over {address}");
            for kept in &got {
                assert_eq!(kept.source, path.flow.source);
                assert_eq!(kept.destination, path.flow.destination);
                assert_eq!(kept.source_port, port);
                assert_eq!(kept.ifindex, 1, "lo");
                assert!(icrc::recover_id(&path.flow, 0, &kept.payload).is_some());
            }
        }
    }
    assert_eq!(receive_rest(&mut receiver), []);
    assert_eq!(receiver.stats(), Default::default());
}

#[test]
fn runs_arrive() {
    isolated("runs_arrive", || {
        let features = probe();
        assert!(
            features.gso && features.gro && features.mmsg,
            "{features:?}"
        );
        round_trip(&features);
    });
}

#[test]
fn runs_arrive_without_privilege() {
    isolated_as_nobody("runs_arrive_without_privilege", || round_trip(&probe()));
}

#[test]
fn runs_arrive_without_segmentation() {
    isolated("runs_arrive_without_segmentation", || {
        round_trip(&Features {
            gso: false,
            ..probe()
        });
    });
}

#[test]
fn runs_arrive_without_merging() {
    isolated("runs_arrive_without_merging", || {
        round_trip(&Features {
            gro: false,
            ..probe()
        });
    });
}

#[test]
fn runs_arrive_on_an_old_kernel() {
    isolated("runs_arrive_on_an_old_kernel", || {
        round_trip(&Features {
            gso: false,
            gro: false,
            mmsg: false,
            ..probe()
        });
    });
}

#[test]
fn receiver_works_without_ipv6() {
    isolated("receiver_works_without_ipv6", || {
        let mut receiver = receiver(&Features {
            ipv6: false,
            ..probe()
        });
        assert_eq!(receiver.fds().1, None);
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        let bytes = packet(&path.flow, 0, QPN, 64, 1);
        sender.send_run(&path, 64, &bytes, None).expect("sent");
        assert_eq!(receive(&mut receiver, 1).len(), 1);
        let group = "ff02::1234".parse().unwrap();
        receiver.join_multicast(group, 1).expect_err("no IPv6");
    });
}

#[test]
fn traffic_class_and_hop_limit_arrive() {
    isolated("traffic_class_and_hop_limit_arrive", || {
        let mut receiver = receiver(&probe());
        let mut sender = Sender::new();
        for address in ["127.0.0.1", "::1"] {
            let port = sender.bind(0xc000, address == "::1").expect("a port");
            let flow = path(address, address, port).flow;
            // DSCP with each ECN codepoint; and hop limit 0, which means the default.
            for (class, hops, arrives) in [
                (0x69, 1, 1),
                (0xc2, 255, 255),
                (0x03, 64, 64),
                (0, 63, 63),
                (0xff, 0, 64),
            ] {
                let path = Path::new(flow, class, hops);
                let packets = run(&flow, true, &[QPN; 3], 200, 100);
                sender
                    .send_run(&path, 200, &packets.concat(), None)
                    .expect("sent");
                let got = receive(&mut receiver, 3);
                assert_eq!(got.len(), 3);
                for kept in got {
                    assert_eq!((kept.traffic_class, kept.hop_limit), (class, arrives));
                }
            }
        }
    });
}

#[test]
fn hop_limits_are_reported_only_if_switched_on() {
    isolated("hop_limits_are_reported_only_if_switched_on", || {
        let mut receiver = receiver(&probe());
        let mut sender = Sender::new();
        for address in ["127.0.0.1", "::1"] {
            let port = sender.bind(0xc000, address == "::1").expect("a port");
            let path = Path::new(path(address, address, port).flow, 0x69, 9);
            let bytes = packet(&path.flow, 0, QPN, 64, 1);
            for show in [false, true] {
                receiver.show_hop_limits(show).expect("the kernel agrees");
                sender.send_run(&path, 64, &bytes, None).expect("sent");
                let got = receive(&mut receiver, 1);
                let seen = (got[0].traffic_class, got[0].hop_limit);
                assert_eq!(seen, (0x69, if show { 9 } else { 0 }));
            }
        }
    });
}

#[test]
fn socket_bound_to_one_source_serves_other_sources() {
    isolated("socket_bound_to_one_source_serves_other_sources", || {
        let mut receiver = receiver(&probe());
        let mut sender = Sender::new();
        let bind = |sender: &mut Sender, source: &str| {
            let source: IpAddr = source.parse().expect("an address");
            sender.bind_from(0xc000, source).expect("a port")
        };
        // The second and third share the socket of the first. A foreign address gets a
        // socket too, and sending from it fails.
        for source in ["127.0.0.7", "127.0.0.1", "127.0.0.9", "::1"] {
            let port = bind(&mut sender, source);
            let path = path(source, source, port);
            let packets = run(&path.flow, true, &[QPN; 3], 100, 60);
            sender
                .send_run(&path, 100, &packets.concat(), None)
                .expect("sent");
            let got = receive(&mut receiver, 3);
            let sources: Vec<_> = got.iter().map(|k| (k.source, k.source_port)).collect();
            assert_eq!(sources, [(path.flow.source, port); 3]);
        }
        let foreign = path("192.0.2.1", "127.0.0.1", bind(&mut sender, "192.0.2.1"));
        let bytes = packet(&foreign.flow, 0, QPN, 64, 1);
        let error = sender.send_run(&foreign, 64, &bytes, None).expect_err("no");
        assert!(matches!(error, SendError::NotOurAddress(_)), "{error}");
    });
}

#[test]
fn source_address_added_later_is_used() {
    isolated("source_address_added_later_is_used", || {
        let mut receiver = receiver(&probe());
        let mut sender = Sender::new();
        let address = "192.0.2.1";
        let source: IpAddr = address.parse().expect("an address");
        let port = sender.bind_from(0xc000, source).expect("a port");
        ip("addr add 192.0.2.1/32 dev lo");
        let path = path(address, address, port);
        let bytes = packet(&path.flow, 0, QPN, 64, 1);
        sender.send_run(&path, 64, &bytes, None).expect("sent");
        assert_eq!(receive(&mut receiver, 1)[0].source, source);
    });
}

#[test]
fn receive_stops_at_the_maximum() {
    isolated("receive_stops_at_the_maximum", || {
        let mut receiver = receiver(&probe());
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        for mark in 0..40 {
            let bytes = packet(&path.flow, 0, QPN, 64, mark);
            sender.send_run(&path, 64, &bytes, None).expect("sent");
        }
        let mut marks = Vec::new();
        for expected in [7, 1, 20, 12, 0] {
            let max = expected.max(1).max(if expected == 12 { 30 } else { 0 });
            let got = receiver
                .receive(max, |run| {
                    marks.extend(run.datagrams().map(|i| i.payload[11]))
                })
                .unwrap();
            assert_eq!(got, expected);
        }
        assert_eq!(marks, (0..40).collect::<Vec<u8>>());
        assert_eq!(
            receiver.receive(0, |_| panic!("the maximum is 0")).unwrap(),
            0
        );
    });
}

#[test]
fn busy_receiver_reads_the_family_of_the_last_datagram() {
    isolated(
        "busy_receiver_reads_the_family_of_the_last_datagram",
        || {
            let mut receiver = receiver(&probe());
            let mut sender = Sender::new();
            for address in ["::1", "127.0.0.1", "::1"] {
                let port = sender.bind(0xc000, address == "::1").expect("a port");
                let path = path(address, address, port);
                let bytes = packet(&path.flow, 0, QPN, 64, 1);
                sender.send_run(&path, 64, &bytes, None).expect("sent");
                let mut sources: Vec<IpAddr> = Vec::new();
                let count = receiver.receive_busy(64, |_| {}).unwrap();
                assert_eq!(count, 0, "the other family is not read");
                receiver
                    .receive(64, |run| sources.push(run.merged.source))
                    .unwrap();
                assert_eq!(sources, [path.flow.source]);
                sender.send_run(&path, 64, &bytes, None).expect("sent");
                assert_eq!(receiver.receive_busy(64, |_| {}).unwrap(), 1);
            }
        },
    );
}

#[test]
fn busy_receiver_reads_one_message_until_traffic_is_heavy() {
    isolated(
        "busy_receiver_reads_one_message_until_traffic_is_heavy",
        || {
            let mut receiver = receiver(&probe());
            let mut sender = Sender::new();
            let port = sender.bind(0xc000, false).expect("a port");
            let path = path("127.0.0.1", "127.0.0.1", port);
            let bytes = packet(&path.flow, 0, QPN, 64, 1);
            for _ in 0..2 {
                for _ in 0..8 {
                    sender.send_run(&path, 64, &bytes, None).expect("sent");
                }
                let taken = [0; 5].map(|_| receiver.receive_busy(64, |_| {}).unwrap());
                assert_eq!(taken, [1, 1, 1, 5, 0]);
            }
        },
    );
}

#[test]
fn message_that_a_look_finds_is_received_once() {
    isolated("message_that_a_look_finds_is_received_once", || {
        let mut receiver = receiver(&probe());
        let mut sender = Sender::new();
        for address in ["127.0.0.1", "::1"] {
            let port = sender.bind(0xc000, address == "::1").expect("a port");
            let path = path(address, address, port);
            let send = |mark| {
                let bytes = packet(&path.flow, 0, QPN, 64, mark);
                sender.send_run(&path, 64, &bytes, None).expect("sent");
            };
            // The family of the last message is the one that a look reads.
            send(1);
            assert_eq!(receiver.receive(64, |_| {}).unwrap(), 1);
            assert!(!receiver.look().unwrap(), "nothing waits");
            let mut marks = Vec::new();
            let mut note = |run: &IncomingRun<'_>| marks.push(run.merged.payload[11]);
            send(2);
            send(3);
            assert!(receiver.look().unwrap());
            assert!(receiver.look().unwrap(), "it still waits");
            assert_eq!(receiver.receive_busy(64, &mut note).unwrap(), 1);
            assert!(receiver.look().unwrap());
            // Another call receives it, too.
            assert_eq!(receiver.receive(64, &mut note).unwrap(), 1);
            assert!(!receiver.look().unwrap());
            assert_eq!(marks, [2, 3]);
        }
    });
}

#[test]
fn socket_overflow_is_counted() {
    isolated("socket_overflow_is_counted", || {
        let mut receiver = receiver(&probe());
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        let packets = run(&path.flow, true, &[QPN; 15], 4120, 4120).concat();
        let mut sent = 0;
        let mut got = 0;
        for _ in 0..1000 {
            sender.send_run(&path, 4120, &packets, None).expect("sent");
            sent += 15;
        }
        got += receiver.receive(usize::MAX, |_| {}).unwrap();
        sender.send_run(&path, 4120, &packets, None).expect("sent");
        got += receive(&mut receiver, 15).len();
        let lost = receiver.stats().overflowed as usize * 15;
        assert!(lost > 0);
        assert_eq!(got + lost, sent + 15);
    });
}

#[test]
fn descriptors_close_on_exec_and_do_not_block() {
    isolated("descriptors_close_on_exec_and_do_not_block", || {
        let receiver = receiver(&probe());
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        let (v4, v6) = receiver.fds();
        for fd in [v4, v6.expect("IPv6"), sender.fd(&path).expect("bound")] {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap();
            let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
            assert_ne!(flags & libc::O_CLOEXEC, 0);
            assert_ne!(flags & libc::O_NONBLOCK, 0);
        }
    });
}
