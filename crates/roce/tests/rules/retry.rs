//! Retransmission: where it resumes, what starts it, and how retries are counted.

use ferroce_roce::{Counter, QpState, Reason, WcStatus};
use ferroce_wire::{NakCode, Operation, Syndrome};

use crate::pair::{BASE, Pair, Sent};
use crate::shorthand::{INBOX, REMOTE, first_match};

const OK: WcStatus = WcStatus::Success;

/// Local ACK timeout of the attribute that pairs start with.
const TIMEOUT: u64 = 4096 << 14;

fn from_peer(sent: &Sent) -> bool {
    sent.from == 1
}

#[test]
fn write_resumes_in_the_middle_without_a_new_reth() {
    let mut pair = Pair::rc();
    pair.write(1, 5000);
    pair.take(0);
    let ack = pair.ack(1001, Syndrome::ACK_UNLIMITED);
    pair.deliver(&ack);
    pair.trace();
    pair.expire_ack_timeout();
    let again = pair.take(0);
    assert_eq!(
        pair.trace(),
        ["WRITE_MIDDLE 1002", "WRITE_MIDDLE 1003", "WRITE_LAST 1004"]
    );
    for (n, sent) in (2..).zip(&again) {
        let want = pair.hosts[0].ram.get(BASE, 5000)[n * 1024..5000.min((n + 1) * 1024)].to_vec();
        assert_eq!(sent.packet().payload(), want);
        assert_eq!(sent.packet().reth(), None);
    }
}

#[test]
fn send_resumes_in_the_middle_of_its_gather_list() {
    let mut pair = Pair::rc();
    let host = &pair.hosts[0];
    let sges = [
        host.sge(0, 1500),
        host.sge(0x1000, 0),
        host.sge(0x2000, 2000),
    ];
    let mut data = host.ram.get(BASE, 1500);
    data.extend(host.ram.get(BASE + 0x2000, 2000));
    pair.recv(7, 5000);
    let op = ferroce_roce::SendOp::Send { imm: None };
    pair.post(0, crate::pair::wr(1, op, &sges));
    pair.run_losing(first_match(|sent| sent.psn() == 1001));
    assert_eq!(pair.done(0), [(1, OK)]);
    assert_eq!(pair.hosts[1].ram.get(BASE + INBOX, 3500), data);
}

#[test]
fn read_is_requested_again_from_the_first_missing_packet() {
    let mut pair = Pair::rc();
    pair.read(1, 5000);
    let request = pair.take(0);
    pair.deliver(&request[0]);
    let responses = pair.take(1);
    pair.deliver(&responses[0]);
    pair.deliver(&responses[1]);
    pair.expire_ack_timeout();
    let again = pair.take(0);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].summary(), "READ_REQUEST 1002");
    let reth = again[0].packet().reth().unwrap();
    assert_eq!((reth.va, reth.length), (REMOTE + 2048, 5000 - 2048));
    pair.deliver(&again[0]);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_read(5000));
}

#[test]
fn atomic_is_retransmitted_unchanged() {
    let mut pair = Pair::rc();
    pair.fetch_add(1, 5);
    let first = pair.take(0);
    pair.fire_next_timer();
    let again = pair.take(0);
    assert_eq!(first[0].bytes, again[0].bytes);
}

#[test]
fn lost_read_response_is_requested_again_at_once() {
    for lost in [1000, 1001, 1003] {
        let mut pair = Pair::rc();
        pair.read(1, 5000);
        let before = pair.now;
        pair.run_losing(first_match(|sent| from_peer(sent) && sent.psn() == lost));
        assert_eq!(pair.now, before, "no timer was needed");
        assert_eq!(pair.done(0), [(1, OK)]);
        assert!(pair.was_read(5000));
        let again = pair.log.iter().filter(|s| s.is(Operation::ReadRequest));
        let psns: Vec<u32> = again.map(Sent::psn).collect();
        assert_eq!(psns, [1000, lost]);
    }
}

#[test]
fn ack_beyond_a_read_is_an_implied_nak() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    pair.write(2, 100);
    let before = pair.now;
    let mut left = 3;
    pair.run_losing(|sent| {
        let lose = from_peer(sent) && left > 0;
        left -= u32::from(lose);
        lose
    });
    assert_eq!(pair.now, before, "no timer was needed");
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert!(pair.was_read(3000));
}

#[test]
fn ack_beyond_an_atomic_does_not_complete_it() {
    let mut pair = Pair::rc();
    pair.hosts[1].ram.put_word(REMOTE, 40);
    pair.fetch_add(1, 2);
    pair.write(2, 100);
    pair.take(0);
    let ack = pair.ack(1001, Syndrome::ACK_UNLIMITED);
    pair.deliver(&ack);
    assert_eq!(pair.done(0), []);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert_eq!(pair.hosts[0].ram.word(BASE + INBOX), 40);
}

#[test]
fn ack_inside_a_read_is_ignored() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    pair.take(0);
    pair.trace();
    for psn in 1000..1003 {
        let ack = pair.ack(psn, Syndrome::ACK_UNLIMITED);
        pair.deliver(&ack);
    }
    pair.flush(0);
    assert_eq!(pair.trace(), [""; 0]);
    assert_eq!(pair.done(0), []);
}

#[test]
fn nak_beyond_a_read_is_an_implied_nak() {
    for (what, syndrome) in [
        ("sequence", Syndrome::Nak(NakCode::PsnSequence)),
        ("not ready", Syndrome::RnrNak { timer: 12 }),
    ] {
        let mut pair = Pair::rc();
        pair.read(1, 3000);
        pair.send(2, 100);
        pair.take(0);
        pair.trace();
        let nak = pair.ack(1003, syndrome);
        pair.deliver(&nak);
        pair.flush(0);
        assert_eq!(
            pair.trace(),
            ["READ_REQUEST 1000", "SEND_ONLY 1003"],
            "{what}"
        );
    }
}

#[test]
fn naks_during_a_retry_use_up_no_retries() {
    let mut pair = Pair::with(|knobs| knobs.attr.retry_cnt = 1);
    pair.write(1, 5000);
    pair.take(0);
    for _ in 0..5 {
        let nak = pair.ack(1000, Syndrome::Nak(NakCode::PsnSequence));
        pair.deliver(&nak);
    }
    assert_eq!(pair.hosts[0].count(Counter::CompleterRetryErr), 1);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn retry_cnt_7_means_seven_retries() {
    for retry_cnt in 0..=7 {
        let mut pair = Pair::with(|knobs| knobs.attr.retry_cnt = retry_cnt);
        pair.write(1, 100);
        pair.write(2, 100);
        pair.read(3, 100);
        pair.recv(9, 100);
        let start = pair.now;
        let mut timeouts = 0;
        while pair.hosts[0].state() != QpState::Err {
            pair.expire_ack_timeout();
            timeouts += 1;
        }
        pair.flush(0);
        assert_eq!(timeouts, u64::from(retry_cnt) + 1);
        assert_eq!(pair.now.nanos_since(start), 4 * TIMEOUT * timeouts);
        let flushed = WcStatus::WrFlush;
        assert_eq!(
            pair.done(0),
            [(1, WcStatus::RetryExceeded), (2, flushed), (3, flushed)]
        );
        assert_eq!(pair.hosts[0].count(Counter::RetryExceededErr), 1);
        let why = pair.hosts[0].failure_reason();
        let want = format!("no answer to PSN 0x0003e8 after {retry_cnt} retries, 268435 us each");
        assert_eq!(why, want);
        assert!(!pair.fire_next_timer(), "no timer is left");
    }
}

#[test]
fn any_ack_restores_the_retry_count() {
    let mut pair = Pair::with(|knobs| knobs.attr.retry_cnt = 1);
    pair.write(1, 4 * 1024);
    pair.run_losing(|_| true);
    for psn in 1000..1003 {
        pair.expire_ack_timeout();
        pair.run_losing(|_| true);
        let ack = pair.ack(psn, Syndrome::ACK_UNLIMITED);
        pair.deliver(&ack);
        pair.run_losing(|_| true);
    }
    assert_eq!(pair.hosts[0].count(Counter::CompleterRetryErr), 3);
    pair.expire_ack_timeout();
    assert_eq!(pair.done(0), []);
    pair.expire_ack_timeout();
    assert_eq!(pair.done(0), [(1, WcStatus::RetryExceeded)]);
}

#[test]
fn read_response_restores_the_retry_count() {
    let mut pair = Pair::with(|knobs| knobs.attr.retry_cnt = 1);
    pair.read(1, 10 * 1024);
    // Of each try only the first response packet arrives.
    for _ in 0..10 {
        let requests = pair.take(0);
        pair.deliver(&requests[0]);
        let responses = pair.take(1);
        pair.deliver(&responses[0]);
        pair.fire_next_timer();
    }
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_read(10 * 1024));
}

#[test]
fn sequence_naks_use_up_retries() {
    let mut pair = Pair::with(|knobs| knobs.attr.retry_cnt = 0);
    pair.write(1, 3000);
    pair.run_losing(first_match(|sent| sent.psn() == 1000));
    assert_eq!(pair.done(0), [(1, WcStatus::RetryExceeded)]);
    let failures = pair.hosts[0].failures();
    assert!(matches!(
        failures[0].reason,
        Reason::NoProgress {
            psn: 1000,
            retries: 0
        }
    ));
}

#[test]
fn ack_timeout_is_4096_ns_times_a_power_of_two() {
    for timeout in 1..=31 {
        let mut pair = Pair::with(|knobs| knobs.attr.timeout = timeout);
        pair.write(1, 100);
        pair.run_losing(|_| true);
        let due = pair.now.after_nanos(4096 << timeout);
        assert_eq!(pair.next_timer(), Some(due), "{timeout}");
        pair.trace();
        pair.wait((4096 << timeout) - 1);
        assert_eq!(pair.trace(), [""; 0]);
        pair.wait(1);
        assert_eq!(pair.trace(), ["WRITE_ONLY 1000", "ACK 1000"]);
    }
}

// A timer may run up to four times as long as its attribute says.
// IBTA 9.7.6.1.3
#[test]
fn retry_starts_after_four_times_the_ack_timeout() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    for _ in 0..3 {
        let start = pair.now;
        pair.expire_ack_timeout();
        assert_eq!(pair.now.nanos_since(start), 4 * TIMEOUT);
    }
}

/// Karn's rule: the ACK of a retransmitted packet may belong to the original.
#[test]
fn retransmitted_packet_is_no_round_trip_sample() {
    let mut pair = Pair::rc();
    pair.write(1, 3000);
    pair.take(0);
    let nak = pair.ack(1000, Syndrome::Nak(NakCode::PsnSequence));
    pair.deliver(&nak);
    assert_eq!(pair.take(0).len(), 3, "retransmitted");
    let late = pair.ack(1002, Syndrome::ACK_UNLIMITED);
    pair.deliver(&late);
    assert_eq!(pair.done(0), [(1, OK)]);
    pair.write(2, 100);
    pair.flush(0);
    // Without a sample the probe timeout is the ACK timeout.
    let due = pair.now.after_nanos(TIMEOUT);
    assert_eq!(pair.next_timer(), Some(due));
}

#[test]
fn timeout_12_with_7_retries_survives_half_a_second_without_acks() {
    let mut pair = Pair::with(|knobs| knobs.attr.timeout = 12);
    pair.write(1, 100);
    let sent = pair.take(0);
    let start = pair.now;
    while pair.next_timer().unwrap().nanos_since(start) < 500_000_000 {
        pair.fire_next_timer();
        pair.take(0);
    }
    pair.deliver(&sent[0]);
    assert_eq!(pair.done(0), []);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn timeout_0_disables_the_ack_timer() {
    let mut pair = Pair::with(|knobs| knobs.attr.timeout = 0);
    pair.write(1, 100);
    pair.run_losing(|_| true);
    assert_eq!(pair.next_timer(), None);
    pair.write(2, 100);
    pair.run();
    assert_eq!(
        pair.done(0),
        [(1, OK), (2, OK)],
        "a NAK still starts a retry"
    );
}

#[test]
fn ack_restarts_the_timer_and_the_last_ack_stops_it() {
    let mut pair = Pair::rc();
    pair.write(1, 3000);
    pair.take(0);
    pair.trace();
    pair.wait(TIMEOUT - 1);
    let ack = pair.ack(1000, Syndrome::ACK_UNLIMITED);
    pair.deliver(&ack);
    pair.wait(TIMEOUT - 1);
    assert_eq!(pair.trace(), [""; 0]);
    let ack = pair.ack(1002, Syndrome::ACK_UNLIMITED);
    pair.deliver(&ack);
    pair.wait(10 * TIMEOUT);
    assert_eq!(pair.trace(), [""; 0]);
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn patience_ns_is_the_minimum_time_until_retries_are_exceeded() {
    for (timeout, retry_cnt) in [(1, 0), (12, 7), (14, 3), (20, 7)] {
        let mut pair = Pair::with(|knobs| {
            knobs.config.patience_ns = 60_000_000_000;
            knobs.attr.timeout = timeout;
            knobs.attr.retry_cnt = retry_cnt;
        });
        pair.write(1, 100);
        let start = pair.now;
        while pair.hosts[0].state() != QpState::Err {
            pair.expire_ack_timeout();
        }
        let seconds = pair.now.nanos_since(start) / 1_000_000_000;
        let usual = 4 * (4096 << timeout) * (u64::from(retry_cnt) + 1) / 1_000_000_000;
        assert!(
            (60.max(usual)..61.max(usual + 1)).contains(&seconds),
            "{seconds} s"
        );
    }
}
