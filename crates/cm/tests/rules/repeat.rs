//! Lost messages, retransmissions and duplicates.

use std::time::Duration;

use ferroce_cm::message::{Message, Subject};
use ferroce_cm::{Accept, Event, Ignored, PrivateData, Reason, State};

use crate::pair::*;

#[test]
fn a_req_is_retransmitted_fifteen_times_and_then_given_up() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &request());
    let first = sent(&mut pair.a);
    for _ in 0..15 {
        pair.advance(REQ_INTERVAL - Duration::from_millis(1));
        assert_eq!(sent(&mut pair.a), []);
        pair.advance(Duration::from_millis(1));
        assert_eq!(sent(&mut pair.a), first, "an identical message");
    }
    assert_eq!(poll_events(&mut pair.a), []);
    pair.advance(REQ_INTERVAL);
    assert_eq!(poll_events(&mut pair.a), [Event::Unreachable { conn: a }]);
    let last = sent(&mut pair.a);
    let Message::Rej(rej) = last[0].message else {
        panic!("{last:?}");
    };
    assert_eq!(rej.reason, Reason::TIMEOUT);
    assert_eq!(rej.ari(), A_GUID.to_be_bytes());
    pair.advance(Duration::from_secs(200));
    assert!(pair.a.is_idle(), "state is left");
}

#[test]
fn a_rep_is_retransmitted_four_times_to_a_peer_that_never_answers() {
    let (mut pair, _, b) = Pair::accepted();
    let first = sent(&mut pair.b);
    for repeat in 1..=15 {
        pair.advance(REP_INTERVAL);
        match [1, 2, 4, 8].contains(&repeat) {
            true => assert_eq!(sent(&mut pair.b), first),
            false => assert_eq!(sent(&mut pair.b), [], "the REQ may be forged"),
        }
        assert_eq!(
            poll_events(&mut pair.b),
            [],
            "the peer has as much time as before"
        );
    }
    pair.advance(REP_INTERVAL);
    assert_eq!(poll_events(&mut pair.b), [Event::Unreachable { conn: b }]);
    assert_eq!(names(&sent(&mut pair.b)), ["REJ"]);
}

#[test]
fn a_duplicate_req_makes_no_second_request() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &request());
    let req = sent(&mut pair.a)[0].encode();
    pair.b.receive(pair.now, from_b(), &req).unwrap();
    let again = pair.b.receive(pair.now, from_b(), &req);
    assert_eq!(again, Err(Ignored::Duplicate));
    assert_eq!(
        sent(&mut pair.b),
        [],
        "no MRA before the program takes the event"
    );
    assert_eq!(poll_events(&mut pair.b).len(), 1);
}

#[test]
fn a_duplicate_of_an_undecided_req_is_answered_with_mra() {
    let (mut pair, a, _) = Pair::requested();
    pair.advance(REQ_INTERVAL);
    assert_eq!(names(&pair.a_to_b()), ["REQ"]);
    let mads = pair.b_to_a();
    let Message::Mra(mra) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(mra.subject, Subject::Req);
    assert_eq!(mra.service_timeout, 24);
    assert_eq!(pair.a.state(a), Some(State::MraReqRcvd));
    assert_eq!(poll_events(&mut pair.b), []);
}

#[test]
fn an_mra_makes_the_sender_of_a_req_wait_longer_once() {
    let (mut pair, _, _) = Pair::requested();
    pair.advance(REQ_INTERVAL);
    pair.a_to_b();
    let mra = pair.b_to_a()[0].encode();
    pair.advance(MRA_WAIT - Duration::from_millis(1));
    assert_eq!(sent(&mut pair.a), []);
    let again = pair.a.receive(pair.now, from_a(), &mra);
    assert_eq!(
        again,
        Err(Ignored::Duplicate),
        "a flood of MRAs must not extend the wait"
    );
    pair.advance(Duration::from_millis(1));
    assert_eq!(names(&sent(&mut pair.a)), ["REQ"]);
    pair.a.receive(pair.now, from_a(), &mra).unwrap();
    assert_eq!(
        pair.a.next_timeout(),
        Some(pair.now + MRA_WAIT),
        "an MRA may extend each retransmission"
    );
}

#[test]
fn a_duplicate_of_an_undecided_rep_is_answered_with_mra() {
    let (mut pair, _, b) = Pair::responded();
    pair.advance(REP_INTERVAL);
    assert_eq!(names(&pair.b_to_a()), ["REP"]);
    let mads = pair.a_to_b();
    let Message::Mra(mra) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(mra.subject, Subject::Rep);
    assert_eq!(pair.b.state(b), Some(State::MraRepRcvd));
    assert_eq!(pair.b.next_timeout(), Some(pair.now + MRA_WAIT));
}

#[test]
fn an_rtu_after_an_mra_establishes_the_connection() {
    let (mut pair, a, b) = Pair::responded();
    pair.advance(REP_INTERVAL);
    pair.deliver_all();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    pair.deliver_all();
    assert_eq!(poll_events(&mut pair.b), [Event::Established { conn: b }]);
}

#[test]
fn a_rep_is_retransmitted_fifteen_times_to_a_peer_that_has_sent_an_mra() {
    let (mut pair, _, b) = Pair::responded();
    pair.advance(REP_INTERVAL);
    pair.deliver_all();
    assert_eq!(pair.b.state(b), Some(State::MraRepRcvd));
    pair.advance(MRA_WAIT);
    let mut repeats = 1 + names(&sent(&mut pair.b)).len();
    while poll_events(&mut pair.b).is_empty() {
        pair.advance(REP_INTERVAL);
        repeats += names(&sent(&mut pair.b))
            .iter()
            .filter(|name| **name == "REP")
            .count();
    }
    assert_eq!(repeats, 15);
}

#[test]
fn a_duplicate_req_gets_the_rep_again() {
    let (mut pair, _, _) = Pair::accepted();
    let rep = sent(&mut pair.b);
    pair.advance(REP_INTERVAL - Duration::from_millis(1));
    pair.a_to_b();
    pair.advance(REQ_INTERVAL - REP_INTERVAL + Duration::from_millis(1));
    let own = sent(&mut pair.b);
    assert_eq!(own, rep, "the retransmission");
    assert_eq!(names(&pair.a_to_b()), ["REQ"]);
    assert_eq!(sent(&mut pair.b), rep, "the answer to the duplicate REQ");
}

#[test]
fn a_duplicate_rep_gets_the_rtu_again() {
    let (mut pair, a, b) = Pair::responded();
    pair.a
        .establish(a, PrivateData::new(b"hello").unwrap())
        .unwrap();
    let rtu = sent(&mut pair.a);
    pair.advance(REP_INTERVAL);
    assert_eq!(names(&pair.b_to_a()), ["REP"]);
    assert_eq!(pair.a_to_b(), rtu, "with its private data");
    assert_eq!(poll_events(&mut pair.b), [Event::Established { conn: b }]);
    assert_eq!(poll_events(&mut pair.a), []);
}

#[test]
fn a_duplicate_rtu_is_ignored() {
    let (mut pair, a, b) = Pair::responded();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    let rtu = sent(&mut pair.a)[0].encode();
    pair.b.receive(pair.now, from_b(), &rtu).unwrap();
    let again = pair.b.receive(pair.now, from_b(), &rtu);
    assert_eq!(again, Err(Ignored::Duplicate));
    assert_eq!(poll_events(&mut pair.b), [Event::Established { conn: b }]);
}

#[test]
fn a_late_rep_does_not_reopen_an_attempt_that_was_given_up() {
    let (mut pair, a, b) = Pair::accepted();
    let rep = sent(&mut pair.b)[0].encode();
    pair.a.destroy(pair.now, a).unwrap();
    sent(&mut pair.a);
    let late = pair.a.receive(pair.now, from_a(), &rep);
    assert_eq!(late, Err(Ignored::Duplicate));
    assert_eq!(names(&pair.a_to_b()), ["REJ"], "the peer gets a REJ");
    let events = poll_events(&mut pair.b);
    assert!(
        matches!(events[..], [Event::Rejected { conn, reason: Reason::TIMEOUT, .. }] if conn == b)
    );
}

#[test]
fn accepting_a_request_that_the_peer_gave_up_fails() {
    let (mut pair, a, b) = Pair::requested();
    pair.a.destroy(pair.now, a).unwrap();
    assert_eq!(names(&pair.a_to_b()), ["REJ"]);
    let events = poll_events(&mut pair.b);
    assert!(matches!(events[..], [Event::Rejected { conn, .. }] if conn == b));
    assert!(pair.b.accept(pair.now, b, &Accept::new(B_QPN)).is_err());
}

#[test]
fn a_request_given_up_before_the_program_takes_it_has_no_event() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &request());
    pair.a_to_b();
    pair.a.destroy(pair.now, a).unwrap();
    pair.a_to_b();
    assert_eq!(poll_events(&mut pair.b), []);
    assert_eq!(pair.b.connections(), 0);
}
