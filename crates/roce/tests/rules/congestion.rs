//! The congestion window: how much is in flight, and what shrinks the window.

use std::collections::BTreeMap;

use ferroce_roce::{Counter, WcStatus};
use ferroce_wire::{NakCode, Operation, Syndrome, Transport};

use crate::pair::{Pair, Sent};
use crate::shorthand::REMOTE;

const OK: WcStatus = WcStatus::Success;

/// Window cost of a packet beyond its payload.
const OVERHEAD: u32 = 256;

/// Runs to the end; returns the maximum of bytes in flight.
fn most_in_flight(pair: &mut Pair) -> u32 {
    let (mut in_flight, mut most, mut seen) = (BTreeMap::new(), 0, 0);
    loop {
        pair.flush(0);
        pair.flush(1);
        for sent in pair.log[seen..].iter().filter(|sent| sent.from == 0) {
            let packet = sent.packet();
            let mut bytes = match packet.reth() {
                Some(reth) if sent.is(Operation::ReadRequest) => reth.length,
                _ => packet.payload().len() as u32,
            };
            for psn in sent.psn().. {
                let here = bytes.min(1024);
                in_flight.insert(psn, here + OVERHEAD);
                bytes -= here;
                if bytes == 0 {
                    break;
                }
            }
        }
        seen = pair.log.len();
        most = most.max(in_flight.values().sum());
        let Some(sent) = pair.wire.pop_front() else {
            return most;
        };
        pair.deliver(&sent);
        if sent.from == 1 {
            in_flight.retain(|&psn, _| psn > sent.psn());
        }
    }
}

#[test]
fn bytes_in_flight_stay_within_the_window() {
    for max_window in [8 << 10, 40 << 10, 1 << 20] {
        let mut pair = Pair::with(|knobs| {
            knobs.config.max_window = max_window;
            knobs.config.initial_window = max_window;
        });
        for wr_id in 0..20 {
            pair.write(wr_id, 200_000);
        }
        let most = most_in_flight(&mut pair);
        assert!(most <= max_window, "{most} > {max_window}");
        assert!(most > max_window.min(256 << 10) / 2, "the window is used");
        assert_eq!(pair.done(0).len(), 20);
    }
}

#[test]
fn bytes_requested_by_reads_stay_within_the_window() {
    for max_window in [8 << 10, 40 << 10, 1 << 20] {
        let mut pair = Pair::with(|knobs| {
            knobs.config.max_window = max_window;
            knobs.config.initial_window = max_window;
        });
        for wr_id in 0..10 {
            pair.read(wr_id, 300_000);
        }
        let most = most_in_flight(&mut pair);
        assert!(most <= max_window, "{most} > {max_window}");
        assert_eq!(pair.done(0).len(), 10);
        assert!(pair.was_read(300_000));
    }
}

#[test]
fn window_never_falls_below_four_packets() {
    let mut pair = Pair::with(|knobs| knobs.config.max_window = 1);
    pair.write(1, 100_000);
    assert_eq!(pair.take(0).len(), 4);
    assert_eq!(pair.hosts[0].query().window, 4 * (1024 + OVERHEAD));
}

#[test]
fn query_reports_packets_in_flight() {
    let mut pair = Pair::rc();
    let idle = pair.hosts[0].query();
    assert_eq!(
        (idle.in_flight, idle.unacked, idle.round_trip_ns),
        (0, 0, 0)
    );
    pair.write(1, 3000);
    let sent = pair.take(0);
    let query = pair.hosts[0].query();
    assert_eq!((query.una.value(), query.unacked), (1000, 3));
    assert_eq!(query.in_flight, 3000 + 3 * OVERHEAD);
    for packet in &sent {
        pair.deliver(packet);
    }
    pair.run_until_idle();
    let query = pair.hosts[0].query();
    assert_eq!((query.in_flight, query.unacked), (0, 0));
    assert_eq!(query.una.value(), 1003);
    assert_eq!(query.retry_counts.retries, 0);
}

#[test]
fn sequence_nak_halves_the_window_and_timeout_sets_it_to_the_minimum() {
    let mut pair = Pair::rc();
    pair.write(1, 40_000);
    pair.take(0);
    let before = pair.hosts[0].query().window;
    let nak = pair.ack(1000, Syndrome::Nak(NakCode::PsnSequence));
    pair.deliver(&nak);
    assert_eq!(pair.hosts[0].query().window, before / 2);
    assert_eq!(pair.hosts[0].query().retry_counts.retries, 1);
    pair.take(0);
    pair.expire_ack_timeout();
    assert_eq!(pair.hosts[0].query().window, 4 * (1024 + OVERHEAD));
}

#[test]
fn window_grows_again_while_acks_arrive() {
    let mut pair = Pair::rc();
    pair.write(1, 1000);
    pair.take(0);
    pair.expire_ack_timeout();
    let small = pair.hosts[0].query().window;
    for wr_id in 2..100 {
        pair.write(wr_id, 200_000);
    }
    pair.run();
    assert_eq!(pair.done(0).len(), 99);
    let window = pair.hosts[0].query().window;
    assert!(window > 20 * small, "{window}");
    assert!(window <= 1 << 20);
}

#[test]
fn window_does_not_grow_unless_it_limits_sending() {
    let mut pair = Pair::rc();
    let before = pair.hosts[0].query().window;
    for wr_id in 0..1000 {
        pair.write(wr_id, 100);
        pair.run();
    }
    assert_eq!(pair.hosts[0].query().window, before);
}

/// Returns hosts of which one READ request may be outstanding, after an ACK timeout.
fn pair_with_small_window_and_one_read() -> Pair {
    let mut pair = Pair::with(|knobs| knobs.attr.max_rd_atomic = 1);
    pair.write(1, 1000);
    pair.take(0);
    pair.expire_ack_timeout();
    pair.run();
    assert_eq!(pair.hosts[0].query().window, 4 * (1024 + OVERHEAD));
    pair
}

#[test]
fn window_that_splits_reads_grows_although_one_read_may_be_outstanding() {
    let mut pair = pair_with_small_window_and_one_read();
    let mut first = Vec::new();
    for wr_id in 2..12 {
        pair.trace();
        pair.read(wr_id, 200_000);
        pair.run();
        let request = pair.log.iter().find(|s| s.is(Operation::ReadRequest));
        first.push(request.unwrap().packet().reth().unwrap().length);
    }
    assert_eq!(first[0], 4 * 1024);
    assert!(first[9] >= 32 << 10, "{first:?}");
    assert!(pair.was_read(200_000));
}

#[test]
fn chunks_of_a_long_read_become_longer_as_the_window_grows() {
    let mut pair = pair_with_small_window_and_one_read();
    pair.trace();
    pair.read(2, 300_000);
    pair.run();
    assert_eq!(pair.done(0).last(), Some(&(2, OK)));
    assert!(pair.was_read(300_000));
    let requests = pair.log.iter().filter(|s| s.is(Operation::ReadRequest));
    let lengths: Vec<u32> = requests
        .map(|s| s.packet().reth().unwrap().length)
        .collect();
    assert_eq!(lengths[..4], [4096, 4096, 8192, 16384], "{lengths:?}");
    assert_eq!(
        lengths.iter().sum::<u32>(),
        300_000,
        "no byte is requested twice"
    );
}

#[test]
fn chunks_of_a_read_stay_the_same_while_one_is_outstanding() {
    let mut pair = pair_with_small_window_and_one_read();
    pair.read(2, 300_000);
    // Most chunks lose a response, so that their rest is requested again.
    let mut n = 0;
    while pair.hosts[0].query().sends > 0 {
        pair.run_losing(|sent| {
            n += 1;
            sent.from == 1 && n % 11 == 0
        });
        pair.fire_next_timer(); // a probe, if the last response of a chunk was lost
    }
    assert!(pair.was_read(300_000));
    let mut ends = BTreeMap::new();
    for sent in pair.log.iter().filter(|s| s.is(Operation::ReadRequest)) {
        let packets = sent.packet().reth().unwrap().length.div_ceil(1024);
        let end = sent.psn() + packets;
        if packets == 1 {
            continue; // a probe may request one packet of a chunk
        }
        for psn in sent.psn()..end {
            assert_eq!(*ends.entry(psn).or_insert(end), end, "PSN {psn}");
        }
    }
    assert!(pair.hosts[0].count(Counter::CompleterRetryErr) > 1);
}

#[test]
fn window_does_not_grow_if_only_the_read_depth_limits_sending() {
    let mut pair = pair_with_small_window_and_one_read();
    let before = pair.hosts[0].query().window;
    for wr_id in 2..100 {
        pair.read(wr_id, 4096);
    }
    pair.run();
    assert_eq!(pair.done(0).len(), 99);
    assert_eq!(pair.hosts[0].query().window, before);
}

#[test]
fn slow_peer_shrinks_the_window_to_64_kib_at_most() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.timeout = 0;
        knobs.config.initial_window = 1 << 20;
    });
    let mut windows = Vec::new();
    for wr_id in 0..200 {
        pair.write(wr_id, 1000);
        let request = pair.take(0);
        // A short round trip now and then keeps the shortest one from ageing.
        let ns = if wr_id % 8 == 0 { 20_000 } else { 5_000_000 };
        pair.now = pair.now.after_nanos(ns);
        pair.deliver(&request[0]);
        pair.run();
        windows.push(pair.hosts[0].query().window);
    }
    assert_eq!(windows.last(), Some(&(64 << 10)), "{windows:?}");
}

/// Returns the chunks of a READ: first PSN and number of packets of each request.
fn read_chunks(pair: &Pair) -> Vec<(u32, u32)> {
    let requests = pair.log.iter().filter(|s| s.is(Operation::ReadRequest));
    let part = |sent: &Sent| {
        let reth = sent.packet().reth().unwrap();
        let offset = u64::from(sent.psn() - 1000) * 1024;
        assert_eq!(reth.va, REMOTE + offset, "PSN and address go together");
        (sent.psn(), reth.length.div_ceil(1024))
    };
    requests.map(part).collect()
}

#[test]
fn long_read_is_split_into_chunks() {
    let mut pair = Pair::rc();
    pair.read(1, 300_000);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    let parts = read_chunks(&pair);
    assert!(parts.len() > 4, "{parts:?}");
    let mut next = 1000;
    for (psn, packets) in parts {
        assert_eq!(psn, next);
        assert!(packets * (1024 + OVERHEAD) <= 64 << 10);
        next += packets;
    }
    assert_eq!(next, 1000 + 300_000u32.div_ceil(1024));
}

#[test]
fn retransmitted_read_request_lies_within_one_chunk() {
    let mut pair = Pair::rc();
    pair.read(1, 300_000);
    pair.run();
    let first = read_chunks(&pair);
    let mut pair = Pair::rc();
    pair.read(1, 300_000);
    let mut n = 0;
    pair.run_losing(|sent| {
        n += 1;
        sent.from == 1 && n % 37 == 0
    });
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_read(300_000));
    let again = read_chunks(&pair);
    assert!(again.len() > first.len());
    for (psn, packets) in again {
        let within = |&&(from, n): &&(u32, u32)| from <= psn && psn + packets == from + n;
        assert!(first.iter().any(|part| within(&part)), "{psn} {packets}");
    }
}

#[test]
fn window_limited_sender_never_waits_for_a_timer() {
    for (max_window, mtu_packets) in [(1, 4), (10_000, 7), (100_000, 19), (1 << 20, 204)] {
        let mut pair = Pair::with(|knobs| {
            knobs.attr.timeout = 0;
            knobs.config.max_window = max_window;
            knobs.config.initial_window = max_window;
        });
        pair.write(1, 500_000);
        pair.run();
        assert_eq!(pair.done(0), [(1, OK)], "window {max_window}");
        let mut since_ack_req = 0;
        for sent in pair.log.iter().filter(|sent| sent.from == 0) {
            since_ack_req = if sent.packet().ack_req() {
                0
            } else {
                since_ack_req + 1
            };
            assert!(since_ack_req < mtu_packets);
        }
    }
}

#[test]
fn packets_of_a_message_wait_until_a_quarter_of_the_window_is_free() {
    let window = 110 * (1024 + OVERHEAD);
    let mut pair = Pair::with(|knobs| {
        knobs.attr.timeout = 0;
        knobs.config.initial_window = window;
        knobs.config.max_window = window;
    });
    pair.write(1, 415 * 1024);
    let mut groups = Vec::new();
    loop {
        let packets = pair.take(0);
        if packets.is_empty() && pair.wire.is_empty() {
            break;
        }
        if !packets.is_empty() {
            groups.push(packets.len());
        }
        for packet in packets {
            pair.deliver(&packet);
            pair.flush(1); // one ACK for each packet with AckReq
        }
        if let Some(response) = pair.wire.pop_front() {
            pair.deliver(&response);
        }
    }
    assert_eq!(pair.done(0), [(1, OK)]);
    let (last, others) = groups.split_last().unwrap();
    assert_eq!(last % 27, 10, "the rest of the message");
    assert!(others.iter().all(|packets| packets % 27 == 0), "{groups:?}");
}

#[test]
fn window_smaller_than_the_bytes_in_flight_does_not_stall() {
    for notifications in 1..6 {
        let mut pair = Pair::with(|knobs| {
            knobs.attr.timeout = 0;
            knobs.config.initial_window = 1 << 20;
        });
        pair.write(1, 500_000);
        // Two packets are sent, then the window shrinks.
        let mut batch = ferroce_roce::Batch::new(2, ferroce_roce::RunLimits::NONE);
        let host = &mut pair.hosts[0];
        host.engine.poll_transmit(pair.now, &mut batch);
        host.engine.finish_transmit(pair.now, &mut batch);
        for _ in 0..notifications {
            let cnp = cnp(&pair);
            pair.deliver(&cnp);
        }
        // Both are lost, and only a NAK can report that: there is no timer.
        pair.run();
        assert_eq!(pair.done(0), [(1, OK)]);
    }
}

/// Returns a CNP for host 0.
fn cnp(pair: &Pair) -> Sent {
    let ack = pair.ack(0, Syndrome::ACK_UNLIMITED);
    ack.edited(|bytes| {
        bytes[0] = 0x81;
        bytes[4] = 0x40;
        bytes.truncate(12);
        bytes.extend([0; 16]);
    })
}

#[test]
fn cnps_halve_the_window_once_per_window_of_packets() {
    let mut pair = Pair::rc();
    pair.write(1, 40_000);
    let packets = pair.take(0);
    let before = pair.hosts[0].query().window;
    for _ in 0..3 {
        let cnp = cnp(&pair);
        pair.deliver(&cnp);
    }
    assert_eq!(pair.hosts[0].query().window, before / 2);
    assert_eq!(pair.hosts[0].count(Counter::RcvdCnp), 3);
    for packet in &packets {
        pair.deliver(packet);
    }
    pair.run();
    let cnp = cnp(&pair);
    pair.deliver(&cnp);
    assert_eq!(
        pair.hosts[0].query().window,
        before / 4,
        "new packets were congested"
    );
    assert_eq!(pair.done(0), [(1, OK)]);
}

/// Returns the packet with ECN bits set by a router.
fn with_ecn(sent: &Sent, ecn: u8) -> Sent {
    let mut sent = sent.clone();
    sent.path.traffic_class |= ecn;
    sent
}

#[test]
fn congestion_marked_packet_causes_a_cnp() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    let packet = pair.take(0).remove(0);
    pair.deliver(&with_ecn(&packet, 3));
    let responses = pair.take(1);
    assert_eq!(responses.len(), 2, "a CNP and an ACK");
    let cnp = responses[0].packet();
    assert_eq!(cnp.opcode().transport(), Transport::Cnp);
    assert_eq!(cnp.opcode().byte(), 0x81);
    assert_eq!(responses[0].bytes[12..28], [0; 16]);
    assert_eq!(responses[0].bytes.len(), 12 + 16 + 4);
    let bth = cnp.bth();
    assert!(bth.becn && !bth.fecn && !bth.ack_req);
    assert_eq!((bth.psn.value(), bth.pkey), (0, 0xffff));
    assert_eq!(bth.dest_qpn, pair.hosts[0].qpn);
    let before = pair.hosts[0].query().window;
    pair.deliver(&responses[0]);
    assert_eq!(pair.hosts[0].query().window, before / 2);
}

#[test]
fn only_the_congestion_experienced_mark_causes_a_cnp() {
    for (ecn, responses) in [(0, 1), (1, 1), (2, 1), (3, 2)] {
        let mut pair = Pair::rc();
        pair.write(1, 100);
        let packet = pair.take(0).remove(0);
        pair.deliver(&with_ecn(&packet, ecn));
        assert_eq!(pair.take(1).len(), responses, "{ecn}");
    }
}

#[test]
fn cnps_are_at_least_50_microseconds_apart() {
    let mut pair = Pair::rc();
    for (wait, total) in [
        (0, 1),
        (10_000, 1),
        (39_999, 1),
        (1, 2),
        (49_999, 2),
        (1, 3),
    ] {
        pair.wait(wait);
        pair.write(1, 100);
        for packet in pair.take(0) {
            pair.deliver(&with_ecn(&packet, 3));
        }
        pair.run();
        assert_eq!(pair.hosts[1].count(Counter::SentCnp), total);
    }
}
