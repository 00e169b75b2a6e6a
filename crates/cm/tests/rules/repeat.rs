//! Losses and repetitions.

use std::time::Duration;

use ferroce_cm::message::{Message, Subject};
use ferroce_cm::{Accept, Event, Ignored, PrivateData, Reason, State};

use crate::pair::*;

#[test]
fn a_req_is_repeated_fifteen_times_and_then_given_up() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &request());
    let first = sent(&mut pair.a);
    for _ in 0..15 {
        pair.later(REQ_INTERVAL - Duration::from_millis(1));
        assert_eq!(sent(&mut pair.a), []);
        pair.later(Duration::from_millis(1));
        assert_eq!(sent(&mut pair.a), first, "the same, bit for bit");
    }
    assert_eq!(heard(&mut pair.a), []);
    pair.later(REQ_INTERVAL);
    assert_eq!(heard(&mut pair.a), [Event::Unreachable { conn: a }]);
    let last = sent(&mut pair.a);
    let Message::Rej(rej) = last[0].message else {
        panic!("{last:?}");
    };
    assert_eq!(rej.reason, Reason::TIMEOUT);
    assert_eq!(rej.ari(), A_GUID.to_be_bytes());
    pair.later(Duration::from_secs(200));
    assert!(pair.a.is_idle(), "nothing is left");
}

#[test]
fn a_rep_is_repeated_four_times_for_a_peer_that_never_answers() {
    let (mut pair, _, b) = Pair::accepted();
    let first = sent(&mut pair.b);
    for repeat in 1..=15 {
        pair.later(REP_INTERVAL);
        match [1, 2, 4, 8].contains(&repeat) {
            true => assert_eq!(sent(&mut pair.b), first),
            false => assert_eq!(sent(&mut pair.b), [], "the REQ may be forged"),
        }
        assert_eq!(
            heard(&mut pair.b),
            [],
            "the peer has as much time as before"
        );
    }
    pair.later(REP_INTERVAL);
    assert_eq!(heard(&mut pair.b), [Event::Unreachable { conn: b }]);
    assert_eq!(names(&sent(&mut pair.b)), ["REJ"]);
}

#[test]
fn a_repeated_req_makes_no_second_request() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &request());
    let req = sent(&mut pair.a)[0].encode();
    pair.b.receive(pair.now, from_b(), &req).unwrap();
    let again = pair.b.receive(pair.now, from_b(), &req);
    assert_eq!(again, Err(Ignored::Duplicate));
    assert_eq!(sent(&mut pair.b), [], "the program has not been told yet");
    assert_eq!(heard(&mut pair.b).len(), 1);
}

#[test]
fn a_req_that_the_program_thinks_about_is_answered_with_mra() {
    let (mut pair, a, _) = Pair::asked();
    pair.later(REQ_INTERVAL);
    assert_eq!(names(&pair.a_to_b()), ["REQ"]);
    let mads = pair.b_to_a();
    let Message::Mra(mra) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(mra.subject, Subject::Req);
    assert_eq!(mra.service_timeout, 24);
    assert_eq!(pair.a.state(a), Some(State::MraReqRcvd));
    assert_eq!(heard(&mut pair.b), []);
}

#[test]
fn an_mra_makes_the_sender_of_a_req_wait_longer_once() {
    let (mut pair, _, _) = Pair::asked();
    pair.later(REQ_INTERVAL);
    pair.a_to_b();
    let mra = pair.b_to_a()[0].encode();
    pair.later(MRA_WAIT - Duration::from_millis(1));
    assert_eq!(sent(&mut pair.a), []);
    let again = pair.a.receive(pair.now, from_a(), &mra);
    assert_eq!(again, Err(Ignored::Duplicate), "a flood would hold us");
    pair.later(Duration::from_millis(1));
    assert_eq!(names(&sent(&mut pair.a)), ["REQ"]);
    pair.a.receive(pair.now, from_a(), &mra).unwrap();
    assert_eq!(
        pair.a.next_timeout(),
        Some(pair.now + MRA_WAIT),
        "each repetition may be prolonged"
    );
}

#[test]
fn a_rep_that_the_program_thinks_about_is_answered_with_mra() {
    let (mut pair, _, b) = Pair::answered();
    pair.later(REP_INTERVAL);
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
fn an_mra_about_a_rep_does_not_prevent_its_rtu() {
    let (mut pair, a, b) = Pair::answered();
    pair.later(REP_INTERVAL);
    pair.flow();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    pair.flow();
    assert_eq!(heard(&mut pair.b), [Event::Established { conn: b }]);
}

#[test]
fn a_rep_is_repeated_fifteen_times_for_a_peer_that_has_answered_with_mra() {
    let (mut pair, _, b) = Pair::answered();
    pair.later(REP_INTERVAL);
    pair.flow();
    assert_eq!(pair.b.state(b), Some(State::MraRepRcvd));
    pair.later(MRA_WAIT);
    let mut repeats = 1 + names(&sent(&mut pair.b)).len();
    while heard(&mut pair.b).is_empty() {
        pair.later(REP_INTERVAL);
        repeats += names(&sent(&mut pair.b))
            .iter()
            .filter(|name| **name == "REP")
            .count();
    }
    assert_eq!(repeats, 15);
}

#[test]
fn a_repeated_req_gets_the_rep_again() {
    let (mut pair, _, _) = Pair::accepted();
    let rep = sent(&mut pair.b);
    pair.later(REP_INTERVAL - Duration::from_millis(1));
    pair.a_to_b();
    pair.later(REQ_INTERVAL - REP_INTERVAL + Duration::from_millis(1));
    let own = sent(&mut pair.b);
    assert_eq!(own, rep, "its own repetition");
    assert_eq!(names(&pair.a_to_b()), ["REQ"]);
    assert_eq!(sent(&mut pair.b), rep, "and the answer to the REQ");
}

#[test]
fn a_repeated_rep_gets_the_rtu_again() {
    let (mut pair, a, b) = Pair::answered();
    pair.a
        .establish(a, PrivateData::new(b"hello").unwrap())
        .unwrap();
    let rtu = sent(&mut pair.a);
    pair.later(REP_INTERVAL);
    assert_eq!(names(&pair.b_to_a()), ["REP"]);
    assert_eq!(pair.a_to_b(), rtu, "with its private data");
    assert_eq!(heard(&mut pair.b), [Event::Established { conn: b }]);
    assert_eq!(heard(&mut pair.a), []);
}

#[test]
fn a_repeated_rtu_is_no_news() {
    let (mut pair, a, b) = Pair::answered();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    let rtu = sent(&mut pair.a)[0].encode();
    pair.b.receive(pair.now, from_b(), &rtu).unwrap();
    let again = pair.b.receive(pair.now, from_b(), &rtu);
    assert_eq!(again, Err(Ignored::Duplicate));
    assert_eq!(heard(&mut pair.b), [Event::Established { conn: b }]);
}

#[test]
fn a_late_rep_does_not_reopen_an_attempt_that_was_given_up() {
    let (mut pair, a, b) = Pair::accepted();
    let rep = sent(&mut pair.b)[0].encode();
    pair.a.destroy(pair.now, a).unwrap();
    sent(&mut pair.a);
    let late = pair.a.receive(pair.now, from_a(), &rep);
    assert_eq!(late, Err(Ignored::Duplicate));
    assert_eq!(names(&pair.a_to_b()), ["REJ"], "and the peer is told");
    let events = heard(&mut pair.b);
    assert!(
        matches!(events[..], [Event::Rejected { conn, reason: Reason::TIMEOUT, .. }] if conn == b)
    );
}

#[test]
fn who_accepts_a_request_that_was_given_up_finds_it_gone() {
    let (mut pair, a, b) = Pair::asked();
    pair.a.destroy(pair.now, a).unwrap();
    assert_eq!(names(&pair.a_to_b()), ["REJ"]);
    let events = heard(&mut pair.b);
    assert!(matches!(events[..], [Event::Rejected { conn, .. }] if conn == b));
    assert!(pair.b.accept(pair.now, b, &Accept::new(B_QPN)).is_err());
}

#[test]
fn a_request_given_up_before_the_program_hears_of_it_is_never_told() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &request());
    pair.a_to_b();
    pair.a.destroy(pair.now, a).unwrap();
    pair.a_to_b();
    assert_eq!(heard(&mut pair.b), []);
    assert_eq!(pair.b.connections(), 0);
}
