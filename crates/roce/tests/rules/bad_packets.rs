//! Packets that are dropped before a queue pair sees them: counted, with no other effect.

use std::net::{IpAddr, Ipv4Addr};

use ferroce_roce::{Counter, Drop, QpState, QpType, Received, WcStatus};
use ferroce_wire::Syndrome;

use crate::pair::{BASE, Knobs, Pair, SIZE, Sent};

const OK: WcStatus = WcStatus::Success;

/// Delivers a packet that must be dropped for reason `why`. Checks that only the counter of
/// that reason changes, and that no response is sent.
fn assert_dropped(pair: &mut Pair, packet: &Sent, why: Drop, what: &str) {
    let side = 1 - packet.from;
    let snapshot = |pair: &Pair| {
        let host = &pair.hosts[side];
        let query = host.query();
        (
            query.attr,
            query.receives,
            query.sends,
            query.window,
            host.ram.get(BASE, SIZE),
        )
    };
    let counts = |pair: &Pair| -> Vec<u64> {
        let count = |c: &Counter| pair.hosts[side].count(*c);
        Counter::ALL.iter().map(count).collect()
    };
    let (before, mut counted) = (snapshot(pair), counts(pair));
    assert_eq!(pair.deliver(packet), Received::Dropped(why), "{what}");
    counted[why.counter() as usize] += 1;
    assert_eq!(counts(pair), counted, "{what}");
    assert!(snapshot(pair) == before, "{what}");
    pair.flush(side);
    assert_eq!(pair.wire.len(), 0, "{what}: no response");
    assert_eq!(pair.hosts[side].events, [], "{what}");
}

/// Posts a WRITE on host 0 and returns its packet, not yet delivered.
fn pending_write(pair: &mut Pair) -> Sent {
    pair.write(1, 100);
    pair.take(0).remove(0)
}

#[test]
fn malformed_and_misaddressed_packets_are_dropped() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Drop, Change); 13] = [
        ("nothing", Drop::Malformed, |b| b.clear()),
        ("half a BTH", Drop::Malformed, |b| b.truncate(2)),
        ("no RETH", Drop::Malformed, |b| b.truncate(12)),
        ("half a RETH", Drop::Malformed, |b| b.truncate(20)),
        ("more pad than bytes", Drop::Malformed, |b| {
            b.truncate(28);
            b[1] |= 0x30;
        }),
        ("unknown opcode", Drop::Malformed, |b| b[0] = 0x1f),
        ("vendor opcode", Drop::Malformed, |b| b[0] = 0xe0),
        ("version 1", Drop::Malformed, |b| b[1] |= 1),
        ("partition", Drop::BadPkey, |b| {
            b[2..4].copy_from_slice(&[0x12, 0x34])
        }),
        ("queue pair 0", Drop::UnknownQp, |b| b[5..8].fill(0)),
        ("another queue pair", Drop::UnknownQp, |b| b[6] = 0x77),
        ("multicast", Drop::WrongState, |b| b[5..8].fill(0xff)),
        ("queue pair 1", Drop::UnknownQp, |b| {
            b[5..8].copy_from_slice(&[0, 0, 1])
        }),
    ];
    let mut pair = Pair::rc();
    let good = pending_write(&mut pair);
    for (what, why, change) in cases {
        let bad = good.edited(change);
        assert_dropped(&mut pair, &bad, why, what);
    }
    pair.deliver(&good);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn packet_of_another_transport_is_dropped() {
    let mut pair = Pair::rc();
    let good = pending_write(&mut pair);
    for (what, transport) in [("UC", 0x20), ("RD", 0x40), ("XRC", 0xa0)] {
        let bad = good.edited(|bytes| {
            bytes[0] |= transport;
            bytes.resize(60, 0);
        });
        assert_dropped(&mut pair, &bad, Drop::WrongState, what);
    }
    let datagram = good.edited(|bytes| bytes[0] = 0x64);
    assert_dropped(&mut pair, &datagram, Drop::WrongState, "UD");
    let mut pair = Pair::with(|knobs| knobs.qp_type = QpType::Uc);
    let good = pending_write(&mut pair);
    let reliable = good.edited(|bytes| bytes[0] &= 0x1f);
    assert_dropped(&mut pair, &reliable, Drop::WrongState, "RC to UC");
}

#[test]
fn packet_of_a_limited_partition_member_is_accepted() {
    let mut pair = Pair::rc();
    let good = pending_write(&mut pair);
    let limited = good.edited(|bytes| bytes[2] = 0x7f);
    assert_eq!(pair.deliver(&limited), Received::Accepted);
}

#[test]
fn every_flipped_bit_fails_the_icrc_or_an_earlier_check() {
    let mut pair = Pair::rc();
    let good = pending_write(&mut pair);
    let bits = good.bytes.len() * 8;
    let checked = |bit: &usize| !(32..40).contains(bit); // routers may change byte 4, so the ICRC does not cover it
    for bit in (0..bits).filter(checked) {
        let mut bad = good.clone();
        bad.bytes[bit / 8] ^= 0x80 >> (bit % 8);
        let received = pair.deliver(&bad);
        assert!(matches!(received, Received::Dropped(_)), "bit {bit}");
    }
    assert!(pair.hosts[1].count(Counter::RxIcrcErr) > 900);
    let mut bad = good.clone();
    bad.bytes[50] ^= 1;
    assert_dropped(&mut pair, &bad, Drop::BadIcrc, "payload");
    let mut congested = good.clone();
    congested.bytes[4] ^= 0x80;
    assert_eq!(pair.deliver(&congested), Received::Accepted);
}

#[test]
fn packet_from_or_to_another_address_is_dropped() {
    let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 99));
    let mut pair = Pair::rc();
    let good = pending_write(&mut pair);
    let mut bad = good.clone();
    bad.path.flow.source = other;
    assert_dropped(&mut pair, &bad.edited(|_| {}), Drop::WrongPeer, "source");
    let mut bad = good.clone();
    bad.path.flow.destination = other;
    assert_dropped(
        &mut pair,
        &bad.edited(|_| {}),
        Drop::WrongPeer,
        "destination",
    );
    let mut roaming = good.clone();
    roaming.path.flow.source_port = 0;
    assert_eq!(
        pair.deliver(&roaming.edited(|_| {})),
        Received::Accepted,
        "any port"
    );
}

#[test]
fn datagram_with_wrong_q_key_p_key_or_transport_is_dropped() {
    let mut pair = Pair::with(|knobs| knobs.qp_type = QpType::Ud);
    pair.recv(7, 2000);
    pair.datagram(1, 100);
    let good = pair.take(0).remove(0);
    let qkey = good.edited(|bytes| bytes[15] ^= 1);
    assert_dropped(&mut pair, &qkey, Drop::BadQkey, "Q_Key");
    let pkey = good.edited(|bytes| bytes[3] = 0);
    assert_dropped(&mut pair, &pkey, Drop::BadPkey, "P_Key");
    let reliable = good.edited(|bytes| bytes[0] = 4);
    assert_dropped(&mut pair, &reliable, Drop::WrongState, "RC");
    assert_eq!(pair.deliver(&good), Received::Accepted);
}

#[test]
fn requests_are_dropped_before_rtr_and_responses_before_rts() {
    let knobs = Knobs::default();
    let mut pair = Pair::unconnected(&knobs);
    pair.bring_to_rtr(0, &knobs);
    pair.bring_to_rts(0, &knobs);
    let good = pending_write(&mut pair);
    assert_dropped(&mut pair, &good, Drop::WrongState, "RESET");
    pair.bring_to_rtr(1, &knobs);
    let ack = pair.ack(1000, Syndrome::ACK_UNLIMITED);
    let back = Sent {
        from: 0,
        ..ack.clone()
    };
    let (source, destination) = (pair.hosts[0].address, pair.hosts[1].address);
    let mut back = back.edited(|bytes| bytes[5..8].copy_from_slice(&[0, 0, 16]));
    back.path.flow.source = source;
    back.path.flow.destination = destination;
    assert_dropped(
        &mut pair,
        &back.edited(|_| {}),
        Drop::WrongState,
        "response in RTR",
    );
    assert_eq!(pair.deliver(&good), Received::Accepted);
    assert_eq!(pair.hosts[1].state(), QpState::Rtr);
}

#[test]
fn response_with_reserved_syndrome_or_unexpected_psn_is_dropped() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    pair.take(0);
    let reserved = pair.ack(1000, Syndrome::Reserved(0x40));
    assert_dropped(&mut pair, &reserved, Drop::Malformed, "reserved syndrome");
    let stale = pair.ack(999, Syndrome::ACK_UNLIMITED);
    assert_dropped(&mut pair, &stale, Drop::Stale, "stale");
    let early = pair.ack(1001, Syndrome::ACK_UNLIMITED);
    assert_dropped(&mut pair, &early, Drop::Stale, "a PSN that was never sent");
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK)]);
}

/// Returns the packet with another UDP source port.
fn from_port(packet: &Sent, port: u16) -> Sent {
    let mut moved = packet.clone();
    moved.path.flow.source_port = port;
    moved.edited(|_| {})
}

/// On one host every process can send from the peer's address, but not from its UDP port.
#[test]
fn first_packet_pins_the_peers_udp_port() {
    let mut pair = Pair::rc();
    for host in &mut pair.hosts {
        host.engine.pin_peer_port(host.qpn).unwrap();
    }
    let first = pending_write(&mut pair);
    assert_eq!(pair.deliver(&first), Received::Accepted);
    pair.run();
    let second = pending_write(&mut pair);
    let port = first.path.flow.source_port;
    let forged = from_port(&second, port ^ 1);
    assert_dropped(&mut pair, &forged, Drop::WrongPeer, "a request");
    assert_eq!(pair.deliver(&second), Received::Accepted);
    let response = pair.take(1).remove(0);
    let forged = from_port(&response, response.path.flow.source_port ^ 1);
    assert_dropped(&mut pair, &forged, Drop::WrongPeer, "a response");
    assert_eq!(pair.deliver(&response), Received::Accepted);
}

#[test]
fn packet_with_an_unexpected_psn_pins_no_port() {
    let uc = Pair::new(&Knobs {
        qp_type: QpType::Uc,
        ..Knobs::default()
    });
    for (mut pair, pinned) in [(Pair::rc(), true), (uc, false)] {
        let host = &mut pair.hosts[1];
        host.engine.pin_peer_port(host.qpn).unwrap();
        let first = pending_write(&mut pair);
        let port = first.path.flow.source_port;
        // Bytes 9 to 11 are the PSN.
        let guessed = from_port(&first, port ^ 1).edited(|bytes| bytes[10] ^= 1);
        pair.deliver(&guessed);
        pair.take(1);
        assert_eq!(pair.deliver(&first), Received::Accepted);
        pair.run();
        let second = from_port(&pending_write(&mut pair), port ^ 1);
        match pinned {
            true => assert_dropped(&mut pair, &second, Drop::WrongPeer, "RC"),
            // UC resynchronises to the forged message, so no port is pinned.
            false => assert_eq!(pair.deliver(&second), Received::Accepted),
        }
    }
}

/// Returns the packet as if it came from this slot, through shared memory.
fn through_memory(packet: &Sent, slot: u8) -> Sent {
    let mut moved = packet.clone();
    moved.path.flow.source_port = slot.into();
    moved.path.in_memory = true;
    // No ICRC is computed in memory.
    let end = moved.bytes.len() - 4;
    moved.bytes[end..].fill(0);
    moved
}

/// ferroced vouches for the slot at the other end of shared memory, and for nothing else.
#[test]
fn packets_in_memory_are_accepted_from_the_peers_slot_only() {
    let mut pair = Pair::rc();
    let first = pending_write(&mut pair);
    let of_peer = through_memory(&first, 7);
    assert_dropped(
        &mut pair,
        &of_peer,
        Drop::WrongPeer,
        "the peer is on another host",
    );
    for host in &mut pair.hosts {
        host.engine.pin_peer_port(host.qpn).unwrap();
        host.engine.set_local_peer(host.qpn, 7, false).unwrap();
    }
    let of_other = through_memory(&first, 8);
    assert_dropped(&mut pair, &of_other, Drop::WrongPeer, "another slot");
    assert_eq!(
        pair.deliver(&of_peer),
        Received::Accepted,
        "without an ICRC"
    );
    pair.run();
    // The slot is pinned as a port would be.
    let second = pending_write(&mut pair);
    assert_dropped(&mut pair, &second, Drop::WrongPeer, "UDP");
    let port_7 = from_port(&second, 7);
    assert_dropped(
        &mut pair,
        &port_7,
        Drop::WrongPeer,
        "a UDP port with the same number",
    );
    assert_eq!(
        pair.deliver(&through_memory(&second, 7)),
        Received::Accepted
    );
}

#[test]
fn pinned_udp_port_excludes_packets_in_memory() {
    let mut pair = Pair::rc();
    for host in &mut pair.hosts {
        host.engine.pin_peer_port(host.qpn).unwrap();
        host.engine.set_local_peer(host.qpn, 7, false).unwrap();
    }
    let first = pending_write(&mut pair);
    assert_eq!(pair.deliver(&first), Received::Accepted);
    pair.run();
    let second = through_memory(&pending_write(&mut pair), 7);
    assert_dropped(&mut pair, &second, Drop::WrongPeer, "another sender");
}

#[test]
fn packets_to_a_peer_in_memory_have_no_icrc() {
    let mut pair = Pair::rc();
    let host = &mut pair.hosts[0];
    host.engine.set_local_peer(host.qpn, 7, true).unwrap();
    assert!(host.engine.sends_in_memory(host.qpn));
    let sent = pending_write(&mut pair);
    assert!(sent.path.in_memory);
    let host = &mut pair.hosts[0];
    // A new source port keeps the route.
    host.engine.set_source_port(host.qpn, 50_000).unwrap();
    assert!(pending_write(&mut pair).path.in_memory);
}

/// The wire has checked the addresses. All other checks are those of packets over UDP.
#[test]
fn datagrams_in_memory_need_the_q_key_and_no_icrc() {
    let mut pair = Pair::new(&Knobs {
        qp_type: QpType::Ud,
        ..Knobs::default()
    });
    pair.recv(7, 2000);
    let mut target = pair.target(pair.hosts[1].address, pair.hosts[1].qpn);
    target.remote_qkey = 0x2222;
    pair.datagram_to(1, 100, target);
    pair.datagram(2, 100);
    let [wrong, right] = pair.take(0).try_into().unwrap();
    assert_dropped(&mut pair, &through_memory(&wrong, 7), Drop::BadQkey, "UD");
    let right = through_memory(&right, 7);
    assert_eq!(pair.deliver(&right), Received::Accepted);
    assert_eq!(pair.done(1), [(7, WcStatus::Success)]);
}
