//! Packets that no queue pair may see: dropped, counted, and nothing else.

use std::net::{IpAddr, Ipv4Addr};

use ferroce_transport::{Counter, Drop, QpState, QpType, Received, WcStatus};
use ferroce_wire::Syndrome;

use crate::pair::{BASE, Knobs, Pair, SIZE, Sent};

const OK: WcStatus = WcStatus::Success;

/// Delivers a packet to host 1 that must be dropped for this reason.
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
    assert_eq!(pair.wire.len(), 0, "{what}: no answer");
    assert_eq!(pair.hosts[side].events, [], "{what}");
}

/// A WRITE of host 0 that has not been delivered yet.
fn pending_write(pair: &mut Pair) -> Sent {
    pair.write(1, 100);
    pair.take(0).remove(0)
}

#[test]
fn what_is_no_packet_of_ours_is_dropped() {
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
fn a_packet_is_for_a_queue_pair_of_its_transport() {
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
fn limited_members_of_the_partition_are_heard() {
    let mut pair = Pair::rc();
    let good = pending_write(&mut pair);
    let limited = good.edited(|bytes| bytes[2] = 0x7f);
    assert_eq!(pair.deliver(&limited), Received::Accepted);
}

#[test]
fn every_damaged_bit_is_noticed() {
    let mut pair = Pair::rc();
    let good = pending_write(&mut pair);
    let bits = good.bytes.len() * 8;
    let checked = |bit: &usize| !(32..40).contains(bit); // routers write to byte 4
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
fn a_packet_with_other_addresses_than_the_connection_is_dropped() {
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
fn a_damaged_or_foreign_datagram_is_dropped() {
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
fn before_rtr_nothing_and_before_rts_no_response_is_taken() {
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
fn an_answer_that_makes_no_sense_is_dropped() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    pair.take(0);
    let reserved = pair.ack(1000, Syndrome::Reserved(0x40));
    assert_dropped(&mut pair, &reserved, Drop::Malformed, "reserved syndrome");
    let stale = pair.ack(999, Syndrome::ACK_UNLIMITED);
    assert_dropped(&mut pair, &stale, Drop::Stale, "stale");
    let early = pair.ack(1001, Syndrome::ACK_UNLIMITED);
    assert_dropped(&mut pair, &early, Drop::Stale, "for what was never sent");
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK)]);
}

/// A packet from another UDP port than it left by.
fn from_port(packet: &Sent, port: u16) -> Sent {
    let mut moved = packet.clone();
    moved.path.flow.source_port = port;
    moved.edited(|_| {})
}

/// On one host every process can send from the peer's address, but not from its port.
#[test]
fn a_pinned_port_is_that_of_the_first_packet() {
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
    let answer = pair.take(1).remove(0);
    let forged = from_port(&answer, answer.path.flow.source_port ^ 1);
    assert_dropped(&mut pair, &forged, Drop::WrongPeer, "an answer");
    assert_eq!(pair.deliver(&answer), Received::Accepted);
}

#[test]
fn a_packet_with_a_guessed_psn_pins_nothing() {
    let uc = Pair::new(&Knobs {
        qp_type: QpType::Uc,
        ..Knobs::default()
    });
    for (mut pair, pinned) in [(Pair::rc(), true), (uc, false)] {
        let host = &mut pair.hosts[1];
        host.engine.pin_peer_port(host.qpn).unwrap();
        let first = pending_write(&mut pair);
        let port = first.path.flow.source_port;
        // The PSN is the last thing in the BTH.
        let guessed = from_port(&first, port ^ 1).edited(|bytes| bytes[10] ^= 1);
        pair.deliver(&guessed);
        pair.take(1);
        assert_eq!(pair.deliver(&first), Received::Accepted);
        pair.run();
        let second = from_port(&pending_write(&mut pair), port ^ 1);
        match pinned {
            true => assert_dropped(&mut pair, &second, Drop::WrongPeer, "RC"),
            // The forged message was taken first: no port can be relied on.
            false => assert_eq!(pair.deliver(&second), Received::Accepted),
        }
    }
}
