//! Source ports, several runs at once, and errors.

mod common;

use common::packet::{packet, path, run};
use common::receive;
use ferroce_net::{PartialSend, Receiver, SendError, Sender, TxRun, create_slot, probe};
use ferroce_roce::Path;
use ferroce_testnet::isolated;

const QPN: u32 = 0x00_0123;

fn receiver() -> Receiver {
    Receiver::new(0, create_slot(0).expect("slot 0"))
}

#[test]
fn several_runs_are_sent_together() {
    isolated("several_runs_are_sent_together", || {
        let mut receiver = receiver();
        let mut sender = Sender::new();
        let port = sender.bind(0xc001, false).expect("a port");
        let other = sender.bind(0xc002, false).expect("another port");
        let v6 = sender.bind(0xc001, true).expect("an IPv6 port");
        // More runs than one call takes, three sources, single packets among them.
        let paths = [
            path("127.0.0.1", "127.0.0.1", port),
            path("127.0.0.2", "127.0.0.2", port),
            path("127.0.0.1", "127.0.0.3", other),
            path("::1", "::1", v6),
        ];
        let runs: Vec<_> = (0..60)
            .map(|i| {
                let path = &paths[[0, 0, 0, 1, 1, 2, 3][i % 7]];
                let count = [1, 5, 1, 20][i % 4];
                (path, run(&path.flow, true, &vec![QPN; count], 48, 48))
            })
            .collect();
        let bytes: Vec<Vec<u8>> = runs.iter().map(|(_, packets)| packets.concat()).collect();
        let borrowed: Vec<_> = runs
            .iter()
            .zip(&bytes)
            .map(|((path, _), bytes)| TxRun {
                path,
                segment: 48,
                bytes,
                ifindex: None,
            })
            .collect();
        sender.send_runs(&borrowed).expect("sent");
        let expected = runs.iter().map(|(_, packets)| packets.len()).sum();
        let got = receive(&mut receiver, expected);
        assert_eq!(got.len(), expected);
        for (path, _) in &runs {
            // In order within a flow.
            let of_flow = |flow: &ferroce_wire::Flow| {
                got.iter()
                    .filter(|k| {
                        (k.source_port, k.destination) == (flow.source_port, flow.destination)
                    })
                    .map(|k| k.payload.clone())
                    .collect::<Vec<_>>()
            };
            let sent: Vec<_> = runs
                .iter()
                .filter(|(p, _)| p.flow == path.flow)
                .flat_map(|(_, packets)| packets.clone())
                .collect();
            assert_eq!(of_flow(&path.flow), sent);
        }
        sender.send_runs(&[]).expect("nothing is fine");

        let mut broken = borrowed.clone();
        let nowhere = path("127.0.0.1", "192.0.2.1", port);
        broken[7].path = &nowhere;
        let PartialSend { sent, error } = sender.send_runs(&broken).expect_err("no route");
        assert_eq!(sent, 7, "{error}");
        assert!(matches!(error, SendError::Unreachable { .. }), "{error}");
    });
}

#[test]
fn packet_sizes_do_not_depend_on_earlier_messages() {
    isolated("packet_sizes_do_not_depend_on_earlier_messages", || {
        let mut receiver = receiver();
        let mut sender = Sender::new();
        let from = "127.0.0.1".parse().expect("an address");
        let port = sender.bind_from(0xc000, from).expect("a port");
        let usual = path("127.0.0.1", "127.0.0.1", port);
        let marked = Path::new(usual.flow, 0x02, 64);
        // One shape often enough for the socket option to be set, and then another:
        // packets, bytes of each, bytes of the last.
        let others = [
            (1, 20),
            (1, 40),
            (1, 41),
            (1, 1000),
            (2, 40),
            (3, 1000),
            (40, 40),
        ];
        for (count, len) in others {
            let often = [(2, 40, 20); 12].into_iter();
            for (count, len, last) in often.chain([(count, len, len), (2, 40, 20)]) {
                for path in [&marked, &usual] {
                    let packets = run(&path.flow, true, &vec![QPN; count], len, last);
                    sender
                        .send_run(path, len, &packets.concat(), None)
                        .expect("sent");
                    let got = receive(&mut receiver, count);
                    let payloads: Vec<_> = got.iter().map(|k| k.payload.clone()).collect();
                    assert_eq!(payloads, packets, "{count} of {len}, the last {last}");
                    let classes = got.iter().map(|k| k.traffic_class);
                    assert!(classes.eq([path.traffic_class].repeat(count)));
                }
            }
        }
    });
}

#[test]
fn send_errors_name_their_cause() {
    isolated("send_errors_name_their_cause", || {
        let mut sender = Sender::new();
        for address in ["127.0.0.1", "::1"] {
            let v6 = address == "::1";
            let port = sender.bind(0xc000, v6).expect("a port");
            let foreign = if v6 { "2001:db8::1" } else { "192.0.2.1" };
            let bytes = [0; 256];
            let send = |path: &Path| {
                let single = sender.send_run(path, 256, &bytes, None).expect_err("fails");
                let run = sender.send_run(path, 64, &bytes, None).expect_err("fails");
                assert_eq!(single.to_string(), run.to_string());
                single
            };
            let error = send(&path(address, foreign, port));
            assert!(matches!(error, SendError::Unreachable { .. }), "{error}");
            assert!(error.to_string().contains(foreign), "{error}");
            let error = send(&path(foreign, address, port));
            assert!(matches!(error, SendError::NotOurAddress(_)), "{error}");
            let error = send(&path(address, address, port + 1));
            assert!(matches!(error, SendError::NotBound(_)), "{error}");
        }
    });
}

#[test]
fn unusable_interface_falls_back_to_routing() {
    isolated("unusable_interface_falls_back_to_routing", || {
        common::veth::ip("link add near type veth peer name far");
        common::veth::ip("addr add 10.9.0.1/24 dev near");
        common::veth::ip("link set near up");
        let near = ferroce_testnet::netdev::index("near");
        let mut receiver = receiver();
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let packets = |path: &Path| run(&path.flow, true, &[QPN; 3], 64, 64).concat();
        // The own address on `near` is reached over `lo`, whatever interface is given.
        let to_self = path("10.9.0.1", "10.9.0.1", port);
        // An address that is not on `near`.
        let to_lo = path("127.0.0.1", "127.0.0.1", port);
        for path in [to_self, to_lo] {
            for ifindex in [None, Some(near), Some(1), Some(999)] {
                sender
                    .send_run(&path, 64, &packets(&path), ifindex)
                    .unwrap_or_else(|e| panic!("{:?} by {ifindex:?}: {e}", path.flow));
                assert_eq!(receive(&mut receiver, 3).len(), 3);
            }
        }
    });
}

#[test]
fn source_ports_are_limited_and_shared() {
    isolated("source_ports_are_limited_and_shared", || {
        let mut receiver = receiver();
        let mut sender = Sender::with_features(&probe(), 4);
        let first = sender.bind(0xc100, false).expect("a port");
        assert_eq!(first, 0xc100);
        // A port that another sender has is not available.
        let mut other = Sender::new();
        let evasive = other.bind(0xc100, false).expect("another port");
        assert_eq!(evasive, 0xc101);
        assert_eq!(
            other.bind(0xc100, false).unwrap(),
            0xc101,
            "the same answer"
        );
        assert_eq!(other.bind(0xc101, false).unwrap(), 0xc101);
        assert_eq!(other.bind(0xffff, false).unwrap(), 0xffff);
        assert_eq!(
            sender.bind(0xffff, false).unwrap(),
            0xc000,
            "around the end"
        );
        // Families are apart.
        assert_eq!(other.bind(0xc100, true).unwrap(), 0xc100);
        let ports: Vec<_> = (0xd000..0xd100)
            .map(|want| sender.bind(want, false).expect("a port"))
            .collect();
        let mut distinct = ports.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 4, "no more than allowed");
        for (want, port) in (0xd000..0xd100).zip(ports) {
            assert_eq!(sender.bind(want, false).unwrap(), port, "the same answer");
            let path = path("127.0.0.1", "127.0.0.1", port);
            let bytes = packet(&path.flow, 0, QPN, 64, 1);
            sender.send_run(&path, 64, &bytes, None).expect("sent");
        }
        let got = receive(&mut receiver, 256);
        assert_eq!(got.len(), 256);
    });
}

/// A control message can name the source address: a user who has the port on one address
/// could send from all others.
#[test]
fn source_port_is_bound_on_all_addresses() {
    isolated("source_port_is_bound_on_all_addresses", || {
        let mut sender = Sender::new();
        let here = "127.0.0.1".parse().expect("an address");
        let port = sender.bind_from(0xc005, here).expect("a port");
        for address in ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::"] {
            let address = std::net::SocketAddr::new(address.parse().expect("an address"), port);
            let domain = socket2::Domain::for_address(address);
            let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None);
            let socket = socket.expect("a socket");
            socket.set_reuse_address(true).expect("set");
            socket.set_reuse_port(true).expect("set");
            let refused = socket.bind(&address.into()).expect_err("taken");
            assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse, "{address}");
        }
    });
}
