//! Loss probes: find lost packets after a few round trips, long before the ACK timeout.

use ferroce_roce::{Counter, QpState, Time, WcStatus};
use ferroce_wire::{Operation, Syndrome};

use crate::pair::{Pair, Sent};
use crate::shorthand::first_match;

const OK: WcStatus = WcStatus::Success;
const ROUND_TRIP: u64 = 20_000;
/// More than any probe timeout after round trips of 20 us, and far below the ACK timeout.
const SOON: u64 = 3_000_000;

/// Returns a pair that has measured 8 round trips of 20 us. The next PSN is 1008.
fn pair_with_measured_rtt() -> Pair {
    let mut pair = Pair::rc();
    for wr_id in 0..8 {
        pair.write(wr_id, 100);
        let sent = pair.take(0);
        pair.deliver(&sent[0]);
        let response = pair.take(1);
        pair.now = pair.now.after_nanos(ROUND_TRIP);
        pair.deliver(&response[0]);
    }
    assert_eq!(pair.done(0).len(), 8);
    pair.trace();
    pair
}

fn from_requester(sent: &Sent) -> bool {
    sent.from == 0
}

/// Fires timers until the requester sends a probe, which must be within [`SOON`].
fn send_probe(pair: &mut Pair) {
    let start = pair.now;
    while pair.wire.is_empty() {
        assert!(pair.fire_next_timer(), "no timer runs");
        let waited = pair.now.nanos_since(start);
        assert!(waited <= SOON, "{waited} ns");
        pair.flush(0);
    }
}

/// Fires timers until the requester sends a probe, and lets a round trip pass.
fn wait_for_probe(pair: &mut Pair) {
    send_probe(pair);
    pair.now = pair.now.after_nanos(ROUND_TRIP);
}

#[test]
fn lost_tail_is_retransmitted_after_a_few_round_trips() {
    for lost in 1008..1013 {
        let mut pair = pair_with_measured_rtt();
        pair.write(1, 5000);
        pair.run_losing(|sent| from_requester(sent) && sent.psn() >= lost);
        wait_for_probe(&mut pair);
        pair.run();
        assert_eq!(pair.done(0), [(1, OK)], "{lost}");
        assert!(pair.was_written(5000));
    }
}

#[test]
fn a_lost_tail_costs_no_more_packets_than_go_back_n() {
    let mut pair = pair_with_measured_rtt();
    pair.write(1, 5000);
    pair.run_losing(|sent| from_requester(sent) && sent.psn() >= 1010);
    wait_for_probe(&mut pair);
    pair.run();
    let again: Vec<u32> = pair
        .log
        .iter()
        .skip(5)
        .filter(|s| from_requester(s))
        .map(Sent::psn)
        .collect();
    // Only the last packet sets AckReq, and it was lost. So nothing is acknowledged, and the
    // probe is the first packet.
    assert_eq!(again, [1008, 1010, 1011, 1012]);
}

#[test]
fn a_lost_ack_costs_one_packet() {
    let mut pair = pair_with_measured_rtt();
    pair.write(1, 5000);
    pair.run_losing(|sent| !from_requester(sent));
    pair.trace();
    wait_for_probe(&mut pair);
    pair.run();
    assert_eq!(pair.trace(), ["WRITE_FIRST 1008", "ACK 1012"]);
    assert_eq!(pair.done(0), [(1, OK)]);
    assert_eq!(pair.hosts[0].count(Counter::CompleterRetryErr), 0);
}

#[test]
fn a_late_peer_costs_one_packet() {
    let mut pair = pair_with_measured_rtt();
    let window = pair.hosts[0].query().window;
    pair.write(1, 5000);
    let sent = pair.take(0);
    wait_for_probe(&mut pair);
    let probe = pair.take(0);
    assert_eq!(probe.len(), 1);
    for late in sent.iter().chain(&probe) {
        pair.deliver(late);
    }
    pair.trace();
    pair.run();
    assert_eq!(pair.trace(), ["ACK 1012"], "nothing is retransmitted");
    assert_eq!(pair.done(0), [(1, OK)]);
    assert_eq!(pair.hosts[0].query().window, window);
}

#[test]
fn lost_retransmission_is_retransmitted_without_a_second_nak() {
    let mut pair = pair_with_measured_rtt();
    pair.write(1, 5000);
    let mut left = 2;
    pair.run_losing(|sent| {
        let lose = from_requester(sent) && sent.psn() == 1009 && left > 0;
        left -= u32::from(lose);
        lose
    });
    assert_eq!(pair.done(0), []);
    wait_for_probe(&mut pair);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_written(5000));
}

#[test]
fn probes_use_up_no_retry_and_back_off() {
    let mut pair = pair_with_measured_rtt();
    pair.write(1, 100);
    pair.run_losing(|_| true);
    let start = pair.now;
    let mut gaps = Vec::new();
    let mut last = start;
    while pair.hosts[0].count(Counter::CompleterRetryErr) == 0 {
        pair.fire_next_timer();
        pair.flush(0);
        if pair.wire.pop_front().is_some() {
            gaps.push(pair.now.nanos_since(last));
            last = pair.now;
        }
    }
    assert_eq!(pair.now.nanos_since(start), 4 * (4096 << 14));
    assert!(gaps.len() < 12, "{gaps:?}");
    let probes = &gaps[..gaps.len() - 1];
    assert!(
        probes.windows(2).all(|two| two[1] == 2 * two[0]),
        "{gaps:?}"
    );
    assert_eq!(pair.states(), [QpState::Rts; 2]);
}

#[test]
fn lost_read_request_is_retransmitted_unchanged() {
    let mut pair = pair_with_measured_rtt();
    pair.read(1, 5000);
    pair.run_losing(|_| true);
    pair.trace();
    wait_for_probe(&mut pair);
    pair.run();
    assert_eq!(read_requests(&pair), [(1008, 5000)]);
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_read(5000));
}

#[test]
fn read_with_a_lost_tail_is_probed_with_a_request_for_one_packet() {
    let mut pair = pair_with_measured_rtt();
    pair.read(1, 5000);
    pair.run_losing(|sent| !from_requester(sent) && sent.psn() >= 1010);
    pair.trace();
    wait_for_probe(&mut pair);
    pair.run();
    let requests = [(1010, 1024), (1011, 5000 - 3 * 1024)];
    assert_eq!(read_requests(&pair), requests);
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_read(5000));
}

/// PSNs and lengths of the READ requests since the last trace.
fn read_requests(pair: &Pair) -> Vec<(u32, u32)> {
    let sent = pair.log.iter();
    let reads = sent.filter(|sent| sent.is(Operation::ReadRequest));
    reads
        .map(|sent| (sent.psn(), sent.packet().reth().unwrap().length))
        .collect()
}

#[test]
fn lost_tail_of_a_read_is_requested_again_after_a_few_round_trips() {
    for lost in 1008..1013 {
        let mut pair = pair_with_measured_rtt();
        pair.read(1, 5000);
        pair.run_losing(|sent| !from_requester(sent) && sent.psn() >= lost);
        wait_for_probe(&mut pair);
        pair.run();
        assert_eq!(pair.done(0), [(1, OK)], "{lost}");
        assert!(pair.was_read(5000));
    }
}

#[test]
fn late_read_response_is_accepted_and_the_response_to_the_probe_is_dropped() {
    let mut pair = pair_with_measured_rtt();
    pair.read(1, 5000);
    let request = pair.take(0);
    wait_for_probe(&mut pair);
    let probe = pair.take(0);
    pair.deliver(&request[0]);
    pair.deliver(&probe[0]);
    pair.trace();
    pair.run();
    let requests = pair.log.iter().filter(|sent| from_requester(sent)).count();
    assert_eq!(requests, 0, "nothing is requested again");
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_read(5000));
}

#[test]
fn probe_of_an_atomic_does_not_execute_it_twice() {
    let mut pair = pair_with_measured_rtt();
    pair.fetch_add(1, 5);
    pair.run_losing(first_match(|sent| !from_requester(sent)));
    wait_for_probe(&mut pair);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    assert_eq!(
        pair.hosts[1].ram.word(crate::shorthand::REMOTE),
        5 + original_value(&pair)
    );
}

/// Returns the original value that the atomic returned to the requester.
fn original_value(pair: &Pair) -> u64 {
    pair.hosts[0]
        .ram
        .word(crate::pair::BASE + crate::shorthand::INBOX)
}

#[test]
fn no_probe_is_sent_while_the_responder_is_not_ready() {
    let mut pair = pair_with_measured_rtt();
    pair.send(1, 100);
    pair.take(0);
    let nak = pair.ack(1008, Syndrome::RnrNak { timer: 1 });
    pair.deliver(&nak);
    pair.trace();
    let start = pair.now;
    pair.fire_next_timer();
    assert_eq!(
        pair.now.nanos_since(start),
        10_000,
        "only the RNR timer runs"
    );
}

#[test]
fn response_to_a_read_probe_is_accepted_after_a_retry() {
    let mut pair = pair_with_measured_rtt();
    pair.read(1, 5000);
    pair.run_losing(|sent| !from_requester(sent) && sent.psn() >= 1010);
    wait_for_probe(&mut pair);
    let probe = pair.take(0);
    pair.deliver(&probe[0]);
    let late = pair.take(1);
    pair.expire_ack_timeout();
    pair.deliver(&late[0]);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    assert!(pair.was_read(5000));
}

/// Delivers the first request of a late peer just after the requester has sent a probe of it,
/// and the second request afterwards. Checks that the requester does not go back.
fn assert_late_peer_causes_no_retry(mut pair: Pair, first: &Sent, second: &Sent) {
    send_probe(&mut pair);
    let probe = pair.take(0);
    assert_eq!(probe[0].bytes, first.bytes);
    for late in [first, second] {
        pair.deliver(late);
        for response in pair.take(1) {
            pair.deliver(&response);
        }
        pair.take(0);
    }
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert_eq!(pair.hosts[0].count(Counter::CompleterRetryErr), 0);
}

#[test]
fn late_ack_of_the_original_is_not_taken_for_the_ack_of_the_probe() {
    let mut pair = pair_with_measured_rtt();
    pair.write(1, 100);
    let first = pair.take(0).remove(0);
    pair.write(2, 100);
    let second = pair.take(0).remove(0);
    assert_late_peer_causes_no_retry(pair, &first, &second);
}

#[test]
fn late_response_to_an_atomic_is_not_taken_for_the_response_to_the_probe() {
    let mut pair = pair_with_measured_rtt();
    pair.fetch_add(1, 5);
    let first = pair.take(0).remove(0);
    pair.fetch_add(2, 5);
    let second = pair.take(0).remove(0);
    assert_late_peer_causes_no_retry(pair, &first, &second);
}

/// A shard may defer sending, and receive again before it sends the probe.
#[test]
fn late_ack_is_not_taken_for_the_ack_of_a_probe_that_is_not_sent_yet() {
    let mut pair = pair_with_measured_rtt();
    pair.write(1, 100);
    let first = pair.take(0).remove(0);
    pair.write(2, 100);
    let second = pair.take(0).remove(0);
    // The first timer only finds the probe timer restarted by the second request.
    for _ in 0..2 {
        assert!(pair.fire_next_timer(), "no timer runs");
    }
    pair.now = pair.now.after_nanos(ROUND_TRIP);
    for late in [first, second] {
        pair.deliver(&late);
        for response in pair.take(1) {
            pair.deliver(&response);
        }
    }
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert_eq!(pair.hosts[0].count(Counter::CompleterRetryErr), 0);
}

/// A thread that waited for the lock brings a time from before the probe.
#[test]
fn ack_with_a_time_before_the_probe_confirms_no_loss() {
    let mut pair = pair_with_measured_rtt();
    pair.write(1, 100);
    let first = pair.take(0).remove(0);
    pair.write(2, 100);
    let second = pair.take(0).remove(0);
    send_probe(&mut pair);
    pair.take(0);
    let after = pair.now;
    pair.now = Time::from_nanos(after.as_nanos() - 1000);
    pair.deliver(&first);
    for response in pair.take(1) {
        pair.deliver(&response);
    }
    pair.now = after;
    pair.deliver(&second);
    for response in pair.take(1) {
        pair.deliver(&response);
    }
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert_eq!(pair.hosts[0].count(Counter::CompleterRetryErr), 0);
}

#[test]
fn lost_tail_is_found_even_if_the_peer_answers_faster_than_ever_before() {
    let mut pair = pair_with_measured_rtt();
    for wr_id in 1..=5 {
        pair.write(wr_id, 100);
    }
    pair.run_losing(|_| true);
    send_probe(&mut pair);
    pair.run();
    assert_eq!(pair.done(0).len(), 5);
}

#[test]
fn a_stream_is_not_probed_again_while_it_has_more_to_send() {
    let mut pair = pair_with_measured_rtt();
    for wr_id in 1..200 {
        pair.write(wr_id, 4096);
    }
    let first = pair.take(0);
    wait_for_probe(&mut pair);
    pair.take(0);
    // The peer was late, and acknowledges a part of the packets.
    for late in &first[..first.len() / 2] {
        pair.deliver(late);
    }
    for response in pair.take(1) {
        pair.deliver(&response);
    }
    let last = first.last().unwrap().psn();
    let more = pair.take(0);
    assert!(!more.is_empty());
    assert!(
        more.iter().all(|sent| sent.psn() > last),
        "nothing is retransmitted"
    );
}
