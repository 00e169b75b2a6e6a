//! Memory faults and wrong local keys: registered memory that is unmapped when it is used.

use ferroce_roce::{QpEvent, QpState, SendOp, Sge, WcStatus};

use crate::access::operations;
use crate::pair::{BASE, Pair, SIZE, wr};
use crate::shorthand::{INBOX, REMOTE};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;

#[test]
fn send_from_unmapped_memory_is_a_local_protection_error() {
    let mut pair = Pair::rc();
    pair.recv(7, 5000);
    pair.hosts[0]
        .ram
        .holes
        .borrow_mut()
        .push(BASE + 0x1800..BASE + 0x1801);
    pair.write(1, 100);
    pair.post_op(2, SendOp::Send { imm: None }, 0x1000, 5000);
    pair.write(3, 100);
    pair.run();
    let protection = WcStatus::LocalProtection;
    assert_eq!(pair.done(0), [(1, OK), (2, protection), (3, FLUSHED)]);
    assert_eq!(
        pair.hosts[0].failure_reason(),
        "memory at 0x101800 is not accessible"
    );
    assert_eq!(pair.hosts[0].state(), QpState::Err);
    assert_eq!(pair.done(1), [], "a partial message completes no receive");
}

#[test]
fn wrong_local_key_is_a_local_protection_error() {
    let host = Pair::rc().hosts[0].sge(0, 100);
    for (what, sge) in [
        ("is unknown", Sge { lkey: 1, ..host }),
        (
            "does not cover",
            Sge {
                addr: BASE + SIZE as u64 - 99,
                ..host
            },
        ),
    ] {
        for read in [false, true] {
            let mut pair = Pair::rc();
            let op = if read {
                pair.read_op()
            } else {
                pair.write_op(None)
            };
            pair.post(0, wr(1, op, &[sge]));
            pair.run();
            assert_eq!(pair.done(0), [(1, WcStatus::LocalProtection)]);
            assert!(pair.hosts[0].failure_reason().contains(what));
        }
    }
}

/// Unmaps 8 bytes of a host's memory.
fn hole(pair: &Pair, side: usize, address: u64) {
    let holes = &pair.hosts[side].ram.holes;
    holes.borrow_mut().push(address..address + 8);
}

#[test]
fn unmapped_memory_on_the_responder_is_a_remote_operational_error() {
    for n in 0..5 {
        let mut pair = Pair::rc();
        let (op, _, length) = operations(REMOTE, pair.rkey())[n].clone();
        hole(&pair, 1, REMOTE);
        pair.post_op(1, op, INBOX, length);
        pair.run();
        assert_eq!(pair.trace().last().unwrap(), "NAK 63 1000");
        assert_eq!(pair.done(0), [(1, WcStatus::RemoteOperation)]);
        assert_eq!(pair.states(), [QpState::Err; 2]);
        assert_eq!(pair.hosts[1].qp_events(), [QpEvent::Fatal]);
        assert_eq!(
            pair.hosts[1].failure_reason(),
            "memory at 0x140000 is not accessible"
        );
    }
}

#[test]
fn nak_of_a_read_names_the_packet_that_could_not_be_read() {
    let mut pair = Pair::rc();
    hole(&pair, 1, REMOTE + 2048);
    pair.read(1, 5000);
    pair.run();
    assert_eq!(pair.done(0), [(1, WcStatus::RemoteOperation)]);
    assert!(pair.trace().contains(&"NAK 63 1002".to_string()));
}

#[test]
fn receive_into_unmapped_memory_fails_both_queue_pairs() {
    let mut pair = Pair::rc();
    hole(&pair, 1, BASE + INBOX + 1500);
    pair.recv(7, 5000);
    pair.recv(8, 5000);
    pair.send(1, 3000);
    pair.run();
    assert_eq!(pair.done(0), [(1, WcStatus::RemoteOperation)]);
    assert_eq!(pair.done(1), [(7, WcStatus::LocalProtection), (8, FLUSHED)]);
    assert!(pair.hosts[1].failure_reason().contains("not accessible"));
}

#[test]
fn response_into_unmapped_memory_is_a_local_protection_error() {
    for n in 1..4 {
        let mut pair = Pair::rc();
        let (op, _, length) = operations(REMOTE, pair.rkey())[n].clone();
        hole(&pair, 0, BASE + INBOX);
        pair.post_op(1, op, INBOX, length);
        pair.write(2, 100);
        pair.run();
        let protection = WcStatus::LocalProtection;
        assert_eq!(pair.done(0), [(1, protection), (2, FLUSHED)]);
        assert_eq!(pair.hosts[0].state(), QpState::Err);
        assert_eq!(
            pair.hosts[0].failure_reason(),
            "memory at 0x180000 is not accessible"
        );
    }
}

#[test]
fn failed_read_response_does_not_fail_the_receive_of_a_later_send() {
    let mut pair = Pair::rc();
    pair.recv(7, 3000);
    pair.read(1, 3000);
    pair.send(2, 3000);
    let packets = pair.take(0);
    let hole = REMOTE..REMOTE + 10;
    pair.hosts[1].ram.holes.borrow_mut().push(hole);
    // The READ, and the first packet of the SEND, arrive before a response is sent.
    pair.deliver(&packets[0]);
    pair.deliver(&packets[1]);
    pair.flush(1);
    assert_eq!(pair.done(1), [(7, WcStatus::WrFlush)]);
    assert_eq!(pair.hosts[1].qp_events(), [QpEvent::Fatal]);
}
