//! PSN sequence: packets in order, ahead, behind and across the wrap; ACK coalescing and MSN.

use ferroce_roce::{Counter, Received, WcStatus};
use ferroce_wire::{Mtu, NakCode, Operation, Psn, Syndrome};

use crate::pair::Pair;
use crate::shorthand::first_match;

const OK: WcStatus = WcStatus::Success;

#[test]
fn packets_ahead_cause_one_nak_with_the_expected_psn() {
    let mut pair = Pair::rc();
    pair.write(1, 6 * 1024);
    let packets = pair.take(0);
    pair.trace();
    pair.deliver(&packets[0]);
    for ahead in &packets[3..] {
        pair.deliver(ahead);
    }
    pair.deliver(&packets[2]);
    pair.flush(1);
    assert_eq!(pair.trace(), ["NAK 60 1001"]);
    assert_eq!(pair.hosts[1].count(Counter::OutOfSeqRequest), 1);
}

#[test]
fn new_gap_causes_a_new_nak() {
    let mut pair = Pair::rc();
    pair.write(1, 6 * 1024);
    let packets = pair.take(0);
    pair.trace();
    pair.deliver(&packets[1]);
    pair.deliver(&packets[0]);
    pair.deliver(&packets[2]);
    pair.flush(1);
    assert_eq!(pair.trace(), ["NAK 60 1000", "NAK 60 1001"]);
}

#[test]
fn packets_ahead_are_dropped_not_buffered() {
    let mut pair = Pair::rc();
    pair.recv(7, 5000);
    pair.send(1, 3000);
    let packets = pair.take(0);
    pair.deliver(&packets[1]);
    pair.deliver(&packets[2]);
    pair.deliver(&packets[0]);
    pair.take(1);
    assert_eq!(pair.hosts[1].query().attr.rq_psn, Psn::new(1001));
    assert_eq!(pair.done(1), []);
    pair.deliver(&packets[1]);
    pair.deliver(&packets[2]);
    assert_eq!(pair.done(1), [(7, OK)]);
    assert!(pair.was_received(3000));
}

#[test]
fn a_lost_packet_is_repaired_by_the_nak_without_a_timer() {
    let mut pair = Pair::rc();
    pair.write(1, 5000);
    let before = pair.now;
    pair.run_losing(first_match(|sent| sent.psn() == 1002));
    assert_eq!(pair.now, before);
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_written(5000));
    assert_eq!(pair.hosts[0].count(Counter::RcvdSeqErr), 1);
}

#[test]
fn packets_behind_an_rnr_nak_cause_no_sequence_nak() {
    let mut pair = Pair::rc();
    pair.send(1, 100);
    pair.write(2, 100);
    pair.write(3, 100);
    pair.run();
    assert_eq!(
        pair.trace(),
        [
            "SEND_ONLY 1000",
            "WRITE_ONLY 1001",
            "WRITE_ONLY 1002",
            "NAK 2c 1000"
        ]
    );
    assert_eq!(pair.hosts[1].count(Counter::OutOfSeqRequest), 0);
    pair.recv(7, 100);
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn gap_after_an_rnr_wait_causes_a_sequence_nak() {
    let mut pair = Pair::rc();
    for wr_id in 1..=3 {
        pair.send(wr_id, 100);
    }
    pair.run();
    pair.recv(7, 100);
    pair.fire_next_timer();
    pair.trace();
    let packets = pair.take(0);
    pair.deliver(&packets[0]);
    pair.deliver(&packets[2]);
    pair.flush(1);
    assert_eq!(pair.trace()[3..], ["NAK 60 1001"]);
}

#[test]
fn psns_wrap_in_send_write_and_read() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.sq_psn = Psn::new(0xff_fffe);
        knobs.attr.rq_psn = Psn::new(0xff_fffe);
    });
    pair.recv(7, 5000);
    pair.send(1, 4096);
    pair.run();
    assert!(pair.was_received(4096));
    let psn = |n| Psn::new(n);
    assert_eq!(pair.hosts[0].query().attr.sq_psn, psn(2));
    assert_eq!(pair.hosts[1].query().attr.rq_psn, psn(2));
    assert_eq!(pair.done(0), [(1, OK)]);
    for (op, wr_id) in [("write", 2), ("read", 3)] {
        let mut pair = Pair::with(|knobs| {
            knobs.attr.sq_psn = Psn::new(0xff_fffe);
            knobs.attr.rq_psn = Psn::new(0xff_fffe);
        });
        match op {
            "write" => pair.write(wr_id, 4096),
            _ => pair.read(wr_id, 4096),
        }
        pair.run();
        let last = pair.log.last().map(|sent| sent.psn());
        assert_eq!((op, last), (op, Some(1)));
        assert_eq!(pair.done(0), [(wr_id, OK)]);
        assert!(if op == "write" {
            pair.was_written(4096)
        } else {
            pair.was_read(4096)
        });
    }
}

#[test]
fn gap_and_duplicate_are_recognised_across_the_psn_wrap() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.sq_psn = Psn::new(0xff_ffff);
        knobs.attr.rq_psn = Psn::new(0xff_ffff);
    });
    pair.write(1, 3 * 1024);
    let packets = pair.take(0);
    pair.trace();
    pair.deliver(&packets[1]);
    pair.flush(1);
    assert_eq!(pair.trace(), ["NAK 60 16777215"]);
    pair.deliver(&packets[0]);
    pair.deliver(&packets[1]);
    pair.deliver(&packets[0]);
    pair.flush(1);
    assert_eq!(
        pair.trace(),
        ["ACK 0"],
        "the duplicate is acknowledged with what was executed"
    );
    pair.wire.clear();
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_written(3 * 1024));
}

#[test]
fn psn_is_ahead_within_half_the_psn_space_and_behind_otherwise() {
    for (distance, ahead) in [(1, true), ((1 << 23) - 1, true), (1 << 23, false)] {
        let mut pair = Pair::rc();
        let psn = Psn::new(1000).add(distance).value();
        let stray = pair.craft(0, Operation::SendOnly, psn, |h| h, b"stray");
        pair.deliver(&stray);
        pair.flush(1);
        let want = if ahead { "NAK 60 1000" } else { "ACK 999" };
        assert_eq!(pair.trace(), [want], "{distance}");
    }
}

#[test]
fn acks_and_naks_outside_the_packets_in_flight_are_dropped() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    pair.run();
    pair.write(2, 3000);
    let packets = pair.take(0);
    pair.trace();
    let before = pair.hosts[0].query().attr;
    for psn in [999, 1000, 1004, 5000, 0x80_0000] {
        for syndrome in [
            Syndrome::ACK_UNLIMITED,
            Syndrome::RnrNak { timer: 1 },
            Syndrome::Nak(NakCode::PsnSequence),
            Syndrome::Nak(NakCode::RemoteAccess),
        ] {
            let ghost = pair.ack(psn, syndrome);
            assert!(matches!(pair.deliver(&ghost), Received::Dropped(_)));
        }
    }
    pair.flush(0);
    assert_eq!(pair.trace(), [""; 0]);
    assert_eq!(pair.done(0), [(1, OK)]);
    assert_eq!(pair.hosts[0].query().attr, before);
    for packet in &packets {
        pair.deliver(packet);
    }
    pair.run();
    assert_eq!(pair.done(0), [(2, OK)]);
}

#[test]
fn one_ack_completes_all_work_requests_before_it() {
    let mut pair = Pair::rc();
    for wr_id in 1..=5 {
        pair.write(wr_id, 100);
        for packet in pair.take(0) {
            pair.deliver(&packet);
        }
    }
    let responses = pair.take(1);
    let summaries: Vec<String> = responses.iter().map(|sent| sent.summary()).collect();
    assert_eq!(summaries, ["ACK 1004"]);
    assert_eq!(responses[0].packet().aeth().unwrap().msn, 5);
    assert_eq!(pair.hosts[1].count(Counter::AckDeferred), 4);
    pair.deliver(&responses[0]);
    assert_eq!(pair.done(0), [(1, OK), (2, OK), (3, OK), (4, OK), (5, OK)]);
}

#[test]
fn lost_ack_is_covered_by_the_next() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    pair.run_losing(|sent| sent.from == 1);
    assert_eq!(pair.done(0), []);
    pair.write(2, 100);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
}

#[test]
fn ack_completes_only_fully_covered_work_requests() {
    let mut pair = Pair::rc();
    pair.write(1, 3 * 1024);
    pair.write(2, 1024);
    pair.take(0);
    for (psn, done) in [(1000, 0), (1001, 0), (1002, 1), (1003, 1)] {
        let ack = pair.ack(psn, Syndrome::ACK_UNLIMITED);
        pair.deliver(&ack);
        assert_eq!(pair.done(0).len(), done, "{psn}");
    }
}

#[test]
fn last_packet_of_a_message_sets_ack_req_and_is_acknowledged_at_once() {
    for length in [0, 1, 1024, 1025, 10_000] {
        let mut pair = Pair::rc();
        pair.write(1, length);
        let packets = pair.take(0);
        let (last, others) = packets.split_last().unwrap();
        assert!(last.packet().ack_req());
        for packet in others {
            pair.deliver(packet);
        }
        pair.take(1);
        pair.trace();
        pair.deliver(last);
        pair.flush(1);
        assert_eq!(pair.trace(), [format!("ACK {}", last.psn())]);
    }
}

#[test]
fn packet_without_ack_req_is_not_acknowledged() {
    let mut pair = Pair::rc();
    let packet = pair.craft(0, Operation::SendFirst, 1000, |h| h, &[1; 1024]);
    let quiet = packet.edited(|bytes| bytes[8] &= 0x7f);
    pair.recv(7, 5000);
    pair.deliver(&quiet);
    pair.flush(1);
    assert_eq!(pair.trace(), [""; 0]);
    assert_eq!(pair.hosts[1].query().attr.rq_psn, Psn::new(1001));
}

#[test]
fn msn_counts_messages_not_packets() {
    let mut pair = Pair::with(|knobs| knobs.attr.path_mtu = Mtu::Mtu256);
    pair.write(1, 1000);
    pair.read(2, 1000);
    pair.fetch_add(3, 1);
    pair.write(4, 10);
    pair.run();
    let responses = pair.log.iter().filter(|sent| sent.from == 1);
    let msns: Vec<_> = responses
        .filter_map(|sent| Some((sent.summary(), sent.packet().aeth()?.msn)))
        .collect();
    let last = |what: &str| {
        msns.iter()
            .rev()
            .find(|(summary, _)| summary.contains(what))
    };
    assert_eq!(last("ATOMIC").unwrap().1, 3);
    assert_eq!(last("ACK 1009").unwrap().1, 4);
    assert_eq!(pair.done(0).len(), 4);
}
