//! Packets that the kernel delivered to the wrong slot, in a merged buffer.

mod common;

use std::sync::Arc;

use common::namespace::isolated_as_nobody;
use common::packet::{packet, path, run};
use common::{receive, receive_rest};
use ferroce_net::{Features, ReceiveStats, Receiver, Sender, create_slot, probe};
use ferroce_roce::{Counter, Counters, Path};
use ferroce_testnet::isolated;
use ferroce_wire::icrc;

fn receivers(count: u8, features: &Features) -> Vec<Receiver> {
    (0..count)
        .map(|slot| {
            let sockets = create_slot(slot).expect("a slot");
            Receiver::with_features(slot, sockets, features)
        })
        .collect()
}

/// Sends one run with packets for three slots. Each slot receives its own in order, with
/// the addresses of the peer.
fn mixed_run(features: &Features) {
    let mut receivers = receivers(3, features);
    let counters: Vec<_> = (0..3).map(|_| Arc::new(Counters::default())).collect();
    for (receiver, counters) in receivers.iter_mut().zip(&counters) {
        receiver.report_to(Arc::clone(counters));
    }
    let mut sender = Sender::new();
    let slots = [1, 1, 0, 2, 2, 2, 1, 0, 0, 2];
    for (source, destination) in [("127.0.0.5", "127.0.0.6"), ("::1", "::1")] {
        let v6 = source == "::1";
        let port = sender.bind(0xc999, v6).expect("a port");
        let flow = path(source, destination, port).flow;
        let path = Path::new(flow, 0x6a, 17);
        let qpns = slots.map(|slot| slot << 16 | 5);
        let packets = run(&flow, true, &qpns, 1040, 100);
        sender
            .send_run(&path, 1040, &packets.concat(), None)
            .expect("sent");
        for slot in [1, 0, 2] {
            let own: Vec<_> = (0..)
                .zip(&packets)
                .filter(|(i, _)| slots[*i] == slot as u32)
                .collect();
            let got = receive(&mut receivers[slot], own.len());
            assert_eq!(got.len(), own.len(), "slot {slot}");
            for (kept, (index, packet)) in got.iter().zip(own) {
                assert_eq!(&kept.payload, packet, "slot {slot}");
                assert_eq!(kept.source, flow.source);
                assert_eq!(kept.destination, flow.destination);
                assert_eq!(kept.source_port, port);
                assert_eq!(kept.ifindex, 1, "lo");
                assert_eq!((kept.traffic_class, kept.hop_limit), (0x6a, 17));
                assert!(icrc::verify(&flow, index as u16, &kept.payload));
            }
        }
    }
    for (slot, receiver) in receivers.iter_mut().enumerate() {
        assert_eq!(receive_rest(receiver), [], "slot {slot}");
        let expected = ReceiveStats {
            forwarded: if slot == 1 { 14 } else { 0 },
            adopted: [6, 0, 8][slot],
            ..ReceiveStats::default()
        };
        assert_eq!(receiver.stats(), expected, "slot {slot}");
        let counted = |counter| counters[slot].get(counter);
        assert_eq!(counted(Counter::RxForwarded), expected.forwarded);
        assert_eq!(counted(Counter::RxAdopted), expected.adopted);
    }
}

#[test]
fn packets_of_other_slots_are_forwarded() {
    isolated("packets_of_other_slots_are_forwarded", || {
        mixed_run(&probe())
    });
}

#[test]
fn packets_of_other_slots_are_forwarded_without_privilege() {
    isolated_as_nobody(
        "packets_of_other_slots_are_forwarded_without_privilege",
        || {
            mixed_run(&probe());
        },
    );
}

#[test]
fn packets_of_other_slots_are_forwarded_one_by_one() {
    isolated("packets_of_other_slots_are_forwarded_one_by_one", || {
        mixed_run(&Features {
            gso: false,
            ..probe()
        });
    });
}

#[test]
fn packets_of_missing_slots_are_forwarded_once() {
    isolated("packets_of_missing_slots_are_forwarded_once", || {
        let mut receivers = receivers(2, &probe());
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        let packets = run(&path.flow, true, &[1 << 16, 7 << 16, 1 << 16], 64, 64);
        sender
            .send_run(&path, 64, &packets.concat(), None)
            .expect("sent");
        assert_eq!(receive_rest(&mut receivers[1]).len(), 2);
        let rest: usize = receivers.iter_mut().map(|r| receive_rest(r).len()).sum();
        assert_eq!(rest, 0);
        let sum = |count: fn(ReceiveStats) -> u64| -> u64 {
            receivers.iter().map(|r| count(r.stats())).sum()
        };
        assert_eq!(sum(|s| s.forwarded), 1);
        assert_eq!(sum(|s| s.discarded), 1);
        assert_eq!(sum(|s| s.adopted), 0);
    });
}

/// Any process can send these bytes, but not from port 4791.
#[test]
fn forged_forwarding_header_is_an_ordinary_packet() {
    isolated("forged_forwarding_header_is_an_ordinary_packet", || {
        let mut receivers = receivers(2, &probe());
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        let mut forged = vec![0; 48];
        forged[..6].copy_from_slice(b"\xffFWD\x01\x01");
        forged[10] = 4;
        forged[16..20].copy_from_slice(&[192, 0, 2, 1]);
        forged.extend(packet(&path.flow, 0, 1 << 16, 64, 1));
        sender
            .send_run(&path, forged.len(), &forged, None)
            .expect("sent");
        let got = receive(&mut receivers[1], 1);
        assert_eq!(got[0].payload, forged);
        assert_eq!(got[0].source, path.flow.source);
        assert_eq!(receivers[1].stats(), ReceiveStats::default());
    });
}

#[test]
fn failed_forwarding_is_counted() {
    isolated("failed_forwarding_is_counted", || {
        let (go, far) = common::veth::connect(1500, || {
            let mut sender = Sender::new();
            let port = sender.bind(0xc000, false).expect("a port");
            let path = path("10.9.0.2", "10.9.0.1", port);
            let packets = run(&path.flow, true, &[1 << 16, 0, 1 << 16], 64, 64);
            sender
                .send_run(&path, 64, &packets.concat(), None)
                .expect("sent");
        });
        let mut receivers = receivers(2, &probe());
        common::veth::ip("addr flush dev lo");
        go.send(()).expect("the thread lives");
        far.join().expect("no panic");
        assert_eq!(receive(&mut receivers[1], 2).len(), 2);
        assert_eq!(receivers[1].stats().forward_failed, 1);
    });
}
