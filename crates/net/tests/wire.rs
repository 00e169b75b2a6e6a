//! Packets on the wire, captured at the other end of a veth pair, and packets of other
//! stacks.

mod common;

use std::net::IpAddr;
use std::sync::mpsc;
use std::time::Duration;

use common::packet::{packet, path, run};
use common::veth::{connect, ip};
use common::{Kept, receive};
use ferroce_net::{Features, Receiver, SendError, Sender, create_slot, probe};
use ferroce_roce::Path;
use ferroce_testnet::{isolated, netdev};
use ferroce_wire::ip::{Frame, ipv4_header, ipv6_header, udp_header};
use ferroce_wire::{Flow, icrc};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// A copy of a captured frame.
struct Seen {
    flow: Flow,
    id: u16,
    tos: u8,
    ttl: u8,
    payload: Vec<u8>,
}

/// A packet socket that sees every frame of the current namespace.
struct Capture(Socket);

impl Capture {
    fn start() -> Capture {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let socket = Socket::new(
            Domain::PACKET,
            Type::DGRAM,
            Some(Protocol::from(i32::from(all))),
        )
        .expect("a packet socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(500)))
            .expect("set");
        Capture(socket)
    }

    /// Returns the RoCEv2 frames, after none has arrived for 500 ms.
    fn finish(self) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut bytes = vec![0; 1 << 17];
        while let Ok(len) = std::io::Read::read(&mut &self.0, &mut bytes) {
            if let Ok(frame) = Frame::parse(&bytes[..len]) {
                seen.push(Seen {
                    flow: frame.flow,
                    id: frame.ip_id,
                    tos: frame.tos,
                    ttl: frame.ttl,
                    payload: frame.udp_payload.to_vec(),
                });
            }
        }
        seen
    }
}

/// Sends a run over a veth pair that carries single packets only. Returns the frames and
/// the datagrams at the other end.
fn over_veth(path: Path, features: Features, packets: Vec<Vec<u8>>) -> (Vec<Seen>, Vec<Kept>) {
    let (tell_ready, ready) = mpsc::channel();
    let count = packets.len();
    let (go, far) = connect(4200, move || {
        let mut receiver = Receiver::new(0, create_slot(0).expect("slot 0"));
        let capture = Capture::start();
        tell_ready.send(()).expect("awaited");
        let kept = receive(&mut receiver, count);
        (capture.finish(), kept)
    });
    // The device segments nothing, so the kernel must.
    ip("link set near gso_max_segs 1");
    drop(go);
    ready.recv().expect("the thread lives");
    let mut sender = Sender::with_features(&features, 1);
    let v6 = !path.flow.is_ipv4();
    assert_eq!(
        sender.bind(path.flow.source_port, v6).unwrap(),
        path.flow.source_port
    );
    let segment = packets[0].len();
    sender
        .send_run(&path, segment, &packets.concat(), None)
        .expect("sent");
    far.join().expect("no panic")
}

#[test]
fn segments_have_identifications_from_zero() {
    isolated("segments_have_identifications_from_zero", || {
        let flow = path("10.9.0.1", "10.9.0.2", 0xd00d).flow;
        let path = Path::new(flow, 0x6a, 33);
        let packets = run(&flow, true, &[0x11; 64], 1000, 500);
        let (seen, kept) = over_veth(path, probe(), packets.clone());
        assert_eq!(seen.len(), 64, "single packets on the wire");
        for (index, (seen, packet)) in (0..).zip(seen.iter().zip(&packets)) {
            assert_eq!(seen.id, index, "counting up from 0");
            assert_eq!((seen.flow, seen.tos, seen.ttl), (flow, 0x6a, 33));
            assert_eq!(&seen.payload, packet);
            assert!(icrc::verify(&flow, seen.id, &seen.payload));
        }
        let got: Vec<_> = kept.iter().map(|k| k.payload.clone()).collect();
        assert_eq!(got, packets);
        assert!(
            kept.iter()
                .all(|k| (k.traffic_class, k.hop_limit) == (0x6a, 33))
        );
    });
}

#[test]
fn single_packets_have_identification_zero() {
    isolated("single_packets_have_identification_zero", || {
        let path = path("10.9.0.1", "10.9.0.2", 0xd00d);
        let features = Features {
            gso: false,
            ..probe()
        };
        let packets = run(&path.flow, false, &[0x11; 20], 4120, 4120);
        let (seen, kept) = over_veth(path, features, packets);
        assert_eq!((seen.len(), kept.len()), (20, 20));
        for seen in &seen {
            assert_eq!(seen.id, 0);
            assert!(icrc::verify(&path.flow, 0, &seen.payload));
        }
    });
}

#[test]
fn ipv6_segments_arrive_over_a_veth_pair() {
    isolated("ipv6_segments_arrive_over_a_veth_pair", || {
        let flow = path("fd09::1", "fd09::2", 0xd00d).flow;
        let path = Path::new(flow, 0x6a, 33);
        let packets = run(&flow, true, &[0x11; 15], 4120, 4120);
        let (seen, kept) = over_veth(path, probe(), packets.clone());
        let seen: Vec<_> = seen
            .into_iter()
            .map(|s| (s.flow, s.tos, s.ttl, s.payload))
            .collect();
        let expected: Vec<_> = packets
            .iter()
            .map(|p| (flow, 0x6a, 33, p.clone()))
            .collect();
        assert_eq!(seen, expected);
        let got: Vec<_> = kept.iter().map(|k| k.payload.clone()).collect();
        assert_eq!(got, packets);
    });
}

#[test]
fn packets_longer_than_the_mtu_are_refused() {
    isolated("packets_longer_than_the_mtu_are_refused", || {
        let (_go, _far) = connect(1500, || ());
        let mut sender = Sender::new();
        for (source, destination, longest) in [
            ("10.9.0.1", "10.9.0.2", 1500 - 28),
            ("fd09::1", "fd09::2", 1500 - 48),
        ] {
            let port = sender.bind(0xc000, source.contains(':')).expect("a port");
            let path = path(source, destination, port);
            let bytes = vec![0; 6000];
            let send = |segment: usize, count: usize| {
                sender.send_run(&path, segment, &bytes[..segment * count], None)
            };
            send(longest, 1).expect("fits");
            send(longest, 4).expect("fits");
            for count in [1, 4] {
                let error = send(longest + 1, count).expect_err("too long");
                assert!(matches!(error, SendError::TooBig(_)), "{error}");
            }
        }
    });
}

#[test]
fn link_local_addresses_need_their_interface() {
    isolated("link_local_addresses_need_their_interface", || {
        let (tell_ready, ready) = mpsc::channel();
        let (go, far) = connect(1500, move || {
            ip("addr add fe80::2/64 dev far nodad");
            let mut receiver = Receiver::new(0, create_slot(0).expect("slot 0"));
            tell_ready.send(()).expect("awaited");
            (netdev::index("far"), receive(&mut receiver, 5))
        });
        ip("addr add fe80::1/64 dev near nodad");
        drop(go);
        ready.recv().expect("the thread lives");
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, true).expect("a port");
        let path = path("fe80::1", "fe80::2", port);
        let packets = run(&path.flow, true, &[0x11; 5], 100, 100).concat();
        sender
            .send_run(&path, 100, &packets, None)
            .expect_err("which link?");
        let near = Some(netdev::index("near"));
        // Packets are lost until neighbour discovery has finished.
        while !far.is_finished() {
            sender.send_run(&path, 100, &packets, near).expect("sent");
            #[allow(clippy::disallowed_methods, reason = "there is nothing to wait on")]
            std::thread::sleep(Duration::from_millis(20));
        }
        let (far_index, kept) = far.join().expect("no panic");
        assert!(kept.len() >= 5);
        for kept in kept {
            assert_eq!(
                (kept.source, kept.destination),
                (path.flow.source, path.flow.destination)
            );
            assert_eq!(kept.ifindex, far_index);
        }
    });
}

/// rxe and NICs use any identification, and send no UDP checksum.
#[test]
fn packets_of_other_stacks_are_received() {
    isolated("packets_of_other_stacks_are_received", || {
        let mut receiver = Receiver::new(0, create_slot(0).expect("slot 0"));
        for address in ["127.0.0.1", "::1"] {
            let flow = path(address, address, 0xc5c5).flow;
            let payload = packet(&flow, 0x1234, 0x11, 300, 9);
            inject(&flow, 0x1234, &payload);
            let kept = receive(&mut receiver, 1);
            assert_eq!(kept.len(), 1, "{address}");
            assert_eq!(kept[0].payload, payload);
            assert_eq!(kept[0].source_port, 0xc5c5);
            assert!(icrc::recover_id(&flow, 0, &kept[0].payload).is_some());
        }
    });
}

/// Sends a packet with its own IP header over the loopback interface.
fn inject(flow: &Flow, id: u16, payload: &[u8]) {
    let udp = udp_header(flow.source_port, payload.len() as u16);
    let udp_len = (udp.len() + payload.len()) as u16;
    let (domain, header) = match (flow.source, flow.destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            let header = ipv4_header(s, d, 0, 64, id, 20 + udp_len);
            (Domain::IPV4, header.to_vec())
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            (Domain::IPV6, ipv6_header(s, d, 0, 0, 64, udp_len).to_vec())
        }
        _ => unreachable!("one family"),
    };
    let raw = Protocol::from(libc::IPPROTO_RAW);
    let socket = Socket::new(domain, Type::RAW, Some(raw)).expect("a raw socket");
    let to: SockAddr = std::net::SocketAddr::new(flow.destination, 0).into();
    socket
        .send_to(&[&header, &udp[..], payload].concat(), &to)
        .expect("sent");
}
