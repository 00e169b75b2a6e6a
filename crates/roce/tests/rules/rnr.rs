//! RNR NAK: the requester retries after the time that the responder names.

use ferroce_roce::{Counter, QpState, WcStatus};
use ferroce_wire::Syndrome;

use crate::pair::Pair;
use crate::shorthand::INBOX;

const OK: WcStatus = WcStatus::Success;

/// IBTA table 45, in units of ten microseconds.
const DELAYS: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[test]
fn rnr_wait_lasts_exactly_the_coded_time() {
    for (code, units) in (0..).zip(DELAYS) {
        let mut pair = Pair::with(|knobs| knobs.attr.min_rnr_timer = code);
        pair.send(1, 100);
        pair.run();
        assert_eq!(
            pair.trace(),
            [
                "SEND_ONLY 1000".into(),
                format!("NAK {:02x} 1000", 0x20 | code)
            ]
        );
        pair.recv(7, 100);
        pair.wait(units * 10_000 - 1);
        assert_eq!(pair.trace(), [""; 0], "{code}");
        pair.wait(1);
        assert_eq!(pair.trace(), ["SEND_ONLY 1000", "ACK 1000"], "{code}");
        assert_eq!((pair.done(0), pair.done(1)), (vec![(1, OK)], vec![(7, OK)]));
    }
}

/// rxe accepts any value too.
#[test]
fn min_rnr_timer_is_truncated_to_five_bits() {
    for (timer, on_the_wire) in [(32, 0), (33, 1), (255, 31)] {
        let mut pair = Pair::with(|knobs| knobs.attr.min_rnr_timer = timer);
        pair.send(1, 100);
        pair.run();
        let nak = format!("NAK {:02x} 1000", 0x20 | on_the_wire);
        assert_eq!(pair.trace(), ["SEND_ONLY 1000".into(), nak], "{timer}");
    }
}

#[test]
fn rnr_retry_counts_retries() {
    for rnr_retry in 0..7 {
        let mut pair = Pair::with(|knobs| {
            knobs.attr.rnr_retry = rnr_retry;
            knobs.attr.retry_cnt = 0;
        });
        pair.send(1, 100);
        pair.write(2, 100);
        pair.run_until_idle();
        let sent = pair.log.iter().filter(|s| s.summary() == "SEND_ONLY 1000");
        assert_eq!(sent.count(), usize::from(rnr_retry) + 1);
        assert_eq!(
            pair.done(0),
            [(1, WcStatus::RnrRetryExceeded), (2, WcStatus::WrFlush)]
        );
        assert_eq!(pair.states(), [QpState::Err, QpState::Rts]);
        assert_eq!(pair.hosts[0].count(Counter::RetryRnrExceededErr), 1);
        let why = pair.hosts[0].failure_reason();
        assert_eq!(
            why,
            format!("the peer had no receive posted, {rnr_retry} times in a row")
        );
    }
}

#[test]
fn rnr_retry_7_means_unlimited_retries() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.rnr_retry = 7;
        knobs.attr.retry_cnt = 0;
    });
    pair.send(1, 100);
    for _ in 0..1000 {
        pair.run();
        assert!(pair.fire_next_timer());
    }
    assert_eq!(pair.hosts[0].count(Counter::RcvdRnrErr), 1000);
    assert_eq!(pair.hosts[0].query().retry_counts.rnr_received, 1000);
    assert_eq!(pair.hosts[1].query().retry_counts.rnr_sent, 1000);
    pair.recv(7, 100);
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn ack_restores_the_rnr_retry_count() {
    let mut pair = Pair::with(|knobs| knobs.attr.rnr_retry = 1);
    for n in 0..5 {
        pair.send(n, 100);
        pair.run();
        pair.recv(100 + n, 100);
        pair.run_until_idle();
        assert_eq!(pair.done(0), [(n, OK)]);
    }
}

#[test]
fn nothing_is_sent_during_the_rnr_wait() {
    let mut pair = Pair::rc();
    pair.send(1, 100);
    pair.run();
    pair.trace();
    pair.write(2, 100);
    pair.read(3, 100);
    pair.flush(0);
    assert_eq!(pair.trace(), [""; 0]);
    pair.recv(7, 100);
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn ack_timeout_does_not_shorten_the_rnr_wait() {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.timeout = 1;
        knobs.attr.retry_cnt = 1;
        knobs.attr.min_rnr_timer = 0;
    });
    pair.send(1, 100);
    pair.run();
    pair.trace();
    pair.wait(655_000_000);
    assert_eq!(pair.trace(), [""; 0]);
    pair.recv(7, 100);
    pair.wait(360_000);
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn rnr_nak_acknowledges_the_requests_before_it() {
    let mut pair = Pair::rc();
    pair.write(1, 3000);
    pair.send(2, 100);
    pair.take(0);
    let nak = pair.ack(1003, Syndrome::RnrNak { timer: 12 });
    pair.deliver(&nak);
    assert_eq!(pair.done(0), [(1, OK)]);
    pair.trace();
    pair.fire_next_timer();
    pair.flush(0);
    assert_eq!(pair.trace(), ["SEND_ONLY 1003"]);
}

#[test]
fn write_with_immediate_needs_a_receive_at_its_last_packet_only() {
    let mut pair = Pair::rc();
    let op = pair.write_op(Some(5));
    pair.post_op(1, op, 0, 3000);
    pair.run();
    assert!(pair.was_written(2048));
    pair.trace();
    pair.recv(7, 0);
    pair.run_until_idle();
    assert_eq!(pair.trace(), ["WRITE_LAST_IMM 1002", "ACK 1002"]);
    assert!(pair.was_written(3000));
    let received = pair.hosts[1].completions();
    assert_eq!((received[0].byte_len, received[0].imm), (3000, 5));
}

#[test]
fn send_answered_with_rnr_nak_changes_no_memory() {
    let mut pair = Pair::rc();
    let before = pair.hosts[1].ram.get(crate::pair::BASE + INBOX, 3000);
    pair.send(1, 3000);
    pair.run();
    pair.run();
    assert_eq!(
        pair.hosts[1].ram.get(crate::pair::BASE + INBOX, 3000),
        before
    );
    assert_eq!(pair.hosts[1].query().attr.rq_psn.value(), 1000);
    assert_eq!(pair.hosts[1].count(Counter::SendRnrErr), 1);
}

#[test]
fn rnr_nak_after_the_wait_but_before_the_timer_runs_starts_a_new_wait() {
    const WAIT: u64 = 640_000; // code 12
    let mut pair = Pair::rc();
    pair.send(1, 100);
    let request = pair.take(0);
    pair.deliver(&request[0]);
    let refusal = pair.take(1);
    pair.deliver(&refusal[0]);
    pair.trace();
    // The wait is over, but the timer has not been handled yet.
    pair.now = pair.now.after_nanos(WAIT + 5_000);
    pair.deliver(&refusal[0]);
    let now = pair.now;
    pair.hosts[0].engine.handle_timeout(now);
    pair.flush(0);
    assert_eq!(
        pair.trace(),
        [""; 0],
        "the second RNR NAK starts a new wait"
    );
    pair.recv(7, 100);
    pair.wait(WAIT);
    assert_eq!(pair.trace(), ["SEND_ONLY 1000", "ACK 1000"]);
}
