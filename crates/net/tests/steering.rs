//! Steering of packets to the sockets of their slots.

mod common;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use common::namespace::isolated_as_nobody;
use common::packet::{packet, path};
use common::{receive, receive_rest};
use ferroce_net::{BindError, Receiver, Sender, SlotSockets, create_slot};
use ferroce_testnet::isolated;

fn create(slots: usize) -> Vec<SlotSockets> {
    (0..=u8::MAX)
        .take(slots)
        .map(|slot| create_slot(slot).unwrap_or_else(|e| panic!("slot {slot}: {e}")))
        .collect()
}

fn receivers(sockets: Vec<SlotSockets>) -> Vec<Receiver> {
    (0..=u8::MAX)
        .zip(sockets)
        .map(|(k, s)| Receiver::new(k, s))
        .collect()
}

/// Sends a packet to every slot over both families. Checks that each receives its own.
fn assert_steering(receivers: &mut [Receiver], mark: u8) {
    let mut sender = Sender::new();
    for address in ["127.0.0.1", "::1"] {
        let port = sender.bind(0xc123, address == "::1").expect("a port");
        let path = path(address, address, port);
        for slot in (0..receivers.len() as u32).rev() {
            let bytes = packet(&path.flow, 0, slot << 16 | 0x77, 64, mark);
            sender.send_run(&path, 64, &bytes, None).expect("sent");
        }
        for (slot, receiver) in receivers.iter_mut().enumerate() {
            let got = receive(receiver, 1);
            assert_eq!(got.len(), 1, "slot {slot} over {address}");
            assert_eq!(usize::from(got[0].payload[5]), slot);
            assert_eq!(got[0].payload[11], mark, "slot {slot}: not an old one");
        }
    }
}

#[test]
fn each_slot_receives_its_packets() {
    isolated("each_slot_receives_its_packets", || {
        let mut receivers = receivers(create(5));
        assert_steering(&mut receivers, 1);
        for receiver in &mut receivers {
            assert_eq!(receive_rest(receiver), []);
            assert_eq!(receiver.stats(), Default::default());
        }
    });
}

#[test]
fn steering_needs_no_privilege() {
    isolated_as_nobody("steering_needs_no_privilege", || {
        assert!(!rustix::process::geteuid().is_root());
        assert_steering(&mut receivers(create(4)), 1);
    });
}

#[test]
fn all_256_slots_work() {
    isolated("all_256_slots_work", || {
        raise_file_limit();
        assert_steering(&mut receivers(create(256)), 1);
    });
}

#[test]
fn packet_of_a_missing_slot_is_not_forwarded() {
    isolated("packet_of_a_missing_slot_is_not_forwarded", || {
        let mut receivers = receivers(create(2));
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        let bytes = packet(&path.flow, 0, 9 << 16, 64, 0);
        sender.send_run(&path, 64, &bytes, None).expect("sent");
        // The kernel picks one of the two sockets; its engine counts the packet.
        let got: Vec<_> = receivers.iter_mut().flat_map(receive_rest).collect();
        assert_eq!(got.len(), 1);
        assert!(receivers.iter().all(|r| r.stats().forwarded == 0));
    });
}

#[test]
fn slot_out_of_order_is_refused() {
    isolated("slot_out_of_order_is_refused", || {
        let sockets = create(2);
        for (slot, text) in [(0, "slot 0"), (1, "slot 1"), (3, "slot 3")] {
            let error = create_slot(slot).expect_err("not the next one");
            assert!(
                matches!(error, BindError::WrongPlace { found: 2, .. }),
                "{error}"
            );
            let said = error.to_string();
            assert!(said.contains(text) && said.contains("ferroced"), "{said}");
        }
        // The attempts have moved no socket.
        let mut sockets = sockets;
        sockets.push(create_slot(2).expect("the next one"));
        assert_steering(&mut receivers(sockets), 1);
    });
}

/// The kernel's table of sockets is read in pieces and changes in between.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the test opens sockets in threads"
)]
fn slots_are_created_while_other_sockets_open_and_close() {
    isolated(
        "slots_are_created_while_other_sockets_open_and_close",
        || {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            let any = || UdpSocket::bind("127.0.0.1:0").expect("a socket");
                            let _crowd: Vec<_> = (0..50).map(|_| any()).collect();
                        }
                    });
                }
                let rounds = std::panic::catch_unwind(|| (0..20).for_each(|_| drop(create(40))));
                done.store(true, Ordering::Relaxed);
                rounds.expect("every slot of every round");
            });
        },
    );
}

/// The kernel's behaviour for which slots are parked and never closed.
#[test]
fn closing_a_socket_moves_the_last_one_into_its_place() {
    isolated("closing_a_socket_moves_the_last_one_into_its_place", || {
        let mut receivers = receivers(create(4));
        drop(receivers.remove(1));
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        let bytes = packet(&path.flow, 0, 1 << 16, 64, 1);
        sender.send_run(&path, 64, &bytes, None).expect("sent");
        let counts: Vec<_> = receivers
            .iter_mut()
            .map(|r| receive_rest(r).len())
            .collect();
        assert_eq!(counts, [0, 0, 1], "slots 0, 2 and 3");
    });
}

#[test]
fn parked_slot_keeps_its_place_and_drops_packets() {
    isolated("parked_slot_keeps_its_place_and_drops_packets", || {
        let mut receivers = receivers(create(3));
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        let send = |mark| {
            let bytes = packet(&path.flow, 0, 1 << 16, 64, mark);
            sender.send_run(&path, 64, &bytes, None).expect("sent");
        };
        send(1);
        let group = "239.1.2.3".parse().unwrap();
        receivers[1].join_multicast(group, 1).expect("joined");
        receivers[1].sockets().park().expect("parked");
        send(2);
        assert_eq!(receive_rest(&mut receivers[1]), []);
        let joined = std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap();
        assert!(!joined.contains("030201EF"), "{joined}");
        receivers[1].sockets().unpark().expect("in use again");
        receivers[1].sockets().unpark().expect("twice is no harm");
        assert_eq!(receive_rest(&mut receivers[1]), []);
        assert_steering(&mut receivers, 3);
    });
}

fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("raised");
}
