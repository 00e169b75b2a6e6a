//! Duplicate requests: they are not executed again, only answered again.

use ferroce_roce::{Counter, QpState, SendOp, WcStatus};
use ferroce_wire::{AtomicEth, Operation, Psn};

use crate::pair::{BASE, Pair, Sent};
use crate::shorthand::{INBOX, REMOTE};

const OK: WcStatus = WcStatus::Success;

/// Delivers the requests that host 0 has posted, drops the responses, and returns the
/// requests.
fn execute_and_drop_responses(pair: &mut Pair) -> Vec<Sent> {
    let packets = pair.take(0);
    for packet in &packets {
        pair.deliver(packet);
    }
    pair.take(1);
    pair.trace();
    packets
}

/// Returns the responses of host 1 to a packet.
fn responses_to(pair: &mut Pair, packet: &Sent) -> Vec<String> {
    pair.deliver(packet);
    pair.flush(1);
    pair.trace()
}

#[test]
fn duplicate_send_is_acknowledged_and_takes_no_receive() {
    let mut pair = Pair::rc();
    pair.recv(7, 100);
    pair.recv(8, 100);
    pair.send(1, 100);
    let packets = execute_and_drop_responses(&mut pair);
    pair.hosts[1].ram.put(BASE + INBOX, &[9; 100]);
    assert_eq!(responses_to(&mut pair, &packets[0]), ["ACK 1000"]);
    assert_eq!(pair.done(1), [(7, OK)]);
    assert_eq!(pair.hosts[1].ram.get(BASE + INBOX, 100), [9; 100]);
    assert_eq!(pair.hosts[1].count(Counter::DuplicateRequest), 1);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn duplicate_write_is_acknowledged_and_writes_nothing() {
    let mut pair = Pair::rc();
    pair.write(1, 3000);
    let packets = execute_and_drop_responses(&mut pair);
    pair.hosts[1].ram.put(REMOTE, &[9; 3000]);
    for packet in &packets {
        assert_eq!(
            responses_to(&mut pair, packet),
            ["ACK 1002"],
            "the last executed PSN"
        );
    }
    assert_eq!(pair.hosts[1].ram.get(REMOTE, 3000), [9; 3000]);
}

/// Found by the simulator: the pending ACK covered an earlier message only.
#[test]
fn ack_of_a_duplicate_covers_all_executed_packets_despite_a_pending_ack() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    let with_ack_req = pair.take(0).remove(0);
    pair.write(2, 100);
    pair.write(3, 100);
    let without_ack_req = pair.take(0).remove(0);
    assert!(!without_ack_req.packet().ack_req());
    pair.trace();
    pair.deliver(&with_ack_req);
    pair.deliver(&without_ack_req);
    assert_eq!(responses_to(&mut pair, &without_ack_req), ["ACK 1001"]);
}

#[test]
fn duplicate_does_not_increment_the_msn() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    let packets = execute_and_drop_responses(&mut pair);
    pair.deliver(&packets[0]);
    let again = pair.take(1);
    assert_eq!(again[0].packet().aeth().unwrap().msn, 1);
    assert_eq!(pair.hosts[1].query().attr.rq_psn, Psn::new(1001));
}

#[test]
fn duplicate_packet_does_not_disturb_the_message_in_progress() {
    let mut pair = Pair::rc();
    pair.recv(7, 5000);
    pair.send(1, 3000);
    let packets = pair.take(0);
    for n in [0, 0, 1, 0, 1, 2, 1] {
        pair.deliver(&packets[n]);
    }
    assert_eq!(pair.done(1), [(7, OK)]);
    assert!(pair.was_received(3000));
}

#[test]
fn ack_of_a_duplicate_never_acknowledges_a_later_read() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    pair.read(2, 3000);
    let packets = execute_and_drop_responses(&mut pair);
    assert_eq!(responses_to(&mut pair, &packets[0]), ["ACK 1000"]);
}

#[test]
fn duplicate_read_is_read_from_memory_again() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    let packets = execute_and_drop_responses(&mut pair);
    pair.hosts[1].ram.put(REMOTE, &[9; 3000]);
    pair.deliver(&packets[0]);
    pair.run();
    assert_eq!(
        pair.trace(),
        [
            "READ_RESPONSE_FIRST 1000",
            "READ_RESPONSE_MIDDLE 1001",
            "READ_RESPONSE_LAST 1002"
        ]
    );
    assert_eq!(pair.done(0), [(1, OK)]);
    assert_eq!(pair.hosts[0].ram.get(BASE + INBOX, 3000), [9; 3000]);
}

#[test]
fn duplicate_of_a_part_of_a_read_starts_with_first_or_only() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    execute_and_drop_responses(&mut pair);
    let part = pair.read_request(1001, REMOTE + 1024, 3000 - 1024);
    assert_eq!(
        responses_to(&mut pair, &part),
        ["READ_RESPONSE_FIRST 1001", "READ_RESPONSE_LAST 1002"]
    );
    let tail = pair.read_request(1002, REMOTE + 2048, 3000 - 2048);
    assert_eq!(responses_to(&mut pair, &tail), ["READ_RESPONSE_ONLY 1002"]);
    let middle = pair.read_request(1001, REMOTE + 1024, 1024);
    assert_eq!(
        responses_to(&mut pair, &middle),
        ["READ_RESPONSE_ONLY 1001"]
    );
}

#[test]
fn duplicate_atomic_is_answered_from_history() {
    let mut pair = Pair::rc();
    pair.hosts[1].ram.put_word(REMOTE, 40);
    pair.fetch_add(1, 2);
    let packets = execute_and_drop_responses(&mut pair);
    pair.hosts[1].ram.put_word(REMOTE, 1000);
    assert_eq!(
        responses_to(&mut pair, &packets[0]),
        ["ATOMIC_ACKNOWLEDGE 1000"]
    );
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    assert_eq!(pair.hosts[0].ram.word(BASE + INBOX), 40);
    assert_eq!(pair.hosts[1].ram.word(REMOTE), 1000);
}

#[test]
fn duplicate_compare_swap_is_answered_from_history() {
    let mut pair = Pair::rc();
    pair.hosts[1].ram.put_word(REMOTE, 40);
    let op = SendOp::CompareSwap {
        remote_addr: REMOTE,
        rkey: pair.rkey(),
        compare: 40,
        swap: 50,
    };
    pair.post_op(1, op, INBOX, 8);
    let packets = execute_and_drop_responses(&mut pair);
    assert_eq!(pair.hosts[1].ram.word(REMOTE), 50);
    pair.hosts[1].ram.put_word(REMOTE, 40);
    pair.deliver(&packets[0]);
    pair.run();
    assert_eq!(pair.hosts[0].ram.word(BASE + INBOX), 40);
    assert_eq!(pair.hosts[1].ram.word(REMOTE), 40, "not swapped again");
}

#[test]
fn duplicate_atomic_write_is_answered_and_writes_nothing() {
    let mut pair = Pair::rc();
    let op = SendOp::AtomicWrite {
        remote_addr: REMOTE,
        rkey: pair.rkey(),
    };
    pair.post_op(1, op, 0, 8);
    let packets = execute_and_drop_responses(&mut pair);
    pair.hosts[1].ram.put_word(REMOTE, 1000);
    assert_eq!(
        responses_to(&mut pair, &packets[0]),
        ["READ_RESPONSE_ONLY 1000"]
    );
    assert_eq!(pair.hosts[1].ram.word(REMOTE), 1000);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn duplicate_flush_is_answered_and_flushes_nothing() {
    let mut pair = Pair::rc();
    let op = SendOp::Flush {
        remote_addr: REMOTE,
        rkey: pair.rkey(),
        length: 64,
        placement: 1,
        selectivity: 0,
    };
    pair.post_op(1, op, 0, 0);
    let packets = execute_and_drop_responses(&mut pair);
    assert_eq!(
        responses_to(&mut pair, &packets[0]),
        ["READ_RESPONSE_ONLY 1000"]
    );
    assert_eq!(*pair.hosts[1].ram.flushes.borrow(), [(REMOTE, 64, false)]);
}

#[test]
fn duplicates_are_answered_across_the_psn_wrap() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.sq_psn = Psn::new(0xff_ffff);
        knobs.attr.rq_psn = Psn::new(0xff_ffff);
    });
    pair.read(1, 3000);
    execute_and_drop_responses(&mut pair);
    let part = pair.read_request(0, REMOTE + 1024, 1024);
    assert_eq!(responses_to(&mut pair, &part), ["READ_RESPONSE_ONLY 0"]);
}

#[test]
fn duplicate_read_outside_the_saved_read_is_dropped() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    execute_and_drop_responses(&mut pair);
    for (psn, va, length, what) in [
        (1000, REMOTE, 3001, "longer"),
        (1001, REMOTE + 1024, 3000, "beyond the end"),
        (1000, REMOTE - 1, 100, "before the start"),
        (1001, REMOTE, 100, "not where the PSN points"),
        (999, REMOTE, 100, "another PSN"),
    ] {
        let other = pair.read_request(psn, va, length);
        assert_eq!(responses_to(&mut pair, &other), [""; 0], "{what}");
    }
    let request = pair.read_request(1000, REMOTE, 3000);
    let foreign = request.edited(|bytes| bytes[20] ^= 1);
    assert_ne!(foreign.packet().reth().unwrap().rkey, pair.rkey());
    assert_eq!(responses_to(&mut pair, &foreign), [""; 0], "another key");
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK)], "the connection still works");
}

#[test]
fn duplicate_with_another_opcode_than_the_saved_request_is_dropped() {
    let mut pair = Pair::rc();
    pair.read(1, 100);
    execute_and_drop_responses(&mut pair);
    let eth = AtomicEth {
        va: REMOTE,
        rkey: pair.rkey(),
        swap_or_add: 1,
        compare: 0,
    };
    let atomic = pair.craft(
        0,
        Operation::FetchAdd,
        1000,
        |mut h| *h.atomic_eth(&eth),
        &[],
    );
    let before = pair.hosts[1].ram.word(REMOTE);
    assert_eq!(responses_to(&mut pair, &atomic), [""; 0]);
    assert_eq!(pair.hosts[1].ram.word(REMOTE), before);
}

#[test]
fn duplicate_atomic_that_is_no_longer_saved_is_dropped() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.max_rd_atomic = 1;
        knobs.attr.max_dest_rd_atomic = 1;
    });
    pair.hosts[1].ram.put_word(REMOTE, 0);
    pair.fetch_add(1, 1);
    pair.flush(0);
    let old = pair.wire[0].clone();
    pair.fetch_add(2, 1);
    pair.run();
    pair.trace();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert_eq!(responses_to(&mut pair, &old), [""; 0]);
    assert_eq!(pair.hosts[1].ram.word(REMOTE), 2);
    pair.assert_connected();
}

#[test]
fn max_dest_rd_atomic_responses_are_saved() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.max_rd_atomic = 4;
        knobs.attr.max_dest_rd_atomic = 4;
    });
    for wr_id in 0..4 {
        pair.fetch_add(wr_id, 1);
    }
    let packets = execute_and_drop_responses(&mut pair);
    for packet in &packets {
        let want = format!("ATOMIC_ACKNOWLEDGE {}", packet.psn());
        assert_eq!(responses_to(&mut pair, packet), [want]);
    }
}

#[test]
fn duplicate_read_does_not_count_against_max_dest_rd_atomic() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.max_rd_atomic = 1;
        knobs.attr.max_dest_rd_atomic = 1;
    });
    pair.read(1, 3000);
    let first = pair.take(0);
    pair.deliver(&first[0]);
    let responses = pair.take(1);
    pair.deliver(&first[0]); // its second response is queued in the responder
    for packet in &responses {
        pair.deliver(packet);
    }
    pair.read(2, 3000);
    for packet in pair.take(0) {
        pair.deliver(&packet);
    }
    pair.run();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    pair.assert_connected();
}

#[test]
fn duplicate_read_before_its_response_is_sent_is_answered_once() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    let packets = pair.take(0);
    pair.trace();
    pair.deliver(&packets[0]);
    pair.deliver(&packets[0]);
    pair.flush(1);
    assert_eq!(pair.trace().len(), 3);
}

#[test]
fn duplicate_read_with_an_invalidated_key_is_dropped_without_nak() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    let packets = pair.take(0);
    pair.deliver(&packets[0]);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    pair.trace();
    let mr = pair.hosts[1].mr.clone();
    pair.hosts[1].regions.deregister(&mr).unwrap();
    assert!(responses_to(&mut pair, &packets[0]).is_empty());
    assert_eq!(pair.hosts[1].state(), QpState::Rts);
}

#[test]
fn duplicate_read_of_unmapped_memory_is_dropped_without_nak() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    let packets = pair.take(0);
    pair.deliver(&packets[0]);
    pair.run();
    pair.trace();
    pair.hosts[1]
        .ram
        .holes
        .borrow_mut()
        .push(REMOTE..REMOTE + 10);
    pair.deliver(&packets[0]);
    pair.flush(1);
    assert_eq!(pair.hosts[1].state(), QpState::Rts);
}
