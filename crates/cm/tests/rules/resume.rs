//! A connection manager that starts anew.

use ferroce_cm::{CallError, Cm, Config, Event, Ignored, PrivateData, State};

use crate::pair::*;

#[test]
fn an_established_connection_outlives_its_manager() {
    let (mut pair, a, b) = Pair::connected();
    let snapshot = pair.b.snapshot(b).unwrap();
    pair.b = Cm::new(Config::new(B_GUID), [7; 32]);
    assert_eq!(pair.b.resume(&snapshot), Ok(b));
    assert_eq!(pair.b.state(b), Some(State::Established));
    assert_eq!(pair.b.snapshot(b), Some(snapshot));
    let none = PrivateData::EMPTY;
    pair.a.disconnect(pair.now, a, none).unwrap();
    pair.flow();
    let events = heard(&mut pair.b);
    assert!(matches!(events[..], [Event::Disconnected { conn, .. }] if conn == b));
}

#[test]
fn a_resumed_active_side_still_repeats_its_rtu() {
    let (mut pair, a, b) = Pair::answered();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    sent(&mut pair.a);
    let snapshot = pair.a.snapshot(a).unwrap();
    pair.a = Cm::new(Config::new(A_GUID), [7; 32]);
    pair.a.resume(&snapshot).unwrap();
    pair.later(REP_INTERVAL);
    pair.flow();
    assert_eq!(heard(&mut pair.b), [Event::Established { conn: b }]);
}

#[test]
fn only_established_connections_have_a_record() {
    let (mut pair, a, b) = Pair::answered();
    assert_eq!(pair.a.snapshot(a), None);
    assert_eq!(pair.b.snapshot(b), None);
    pair.a.destroy(pair.now, a).unwrap();
    assert_eq!(pair.a.snapshot(a), None);
}

#[test]
fn a_connection_is_not_resumed_twice() {
    let (mut pair, _, b) = Pair::connected();
    let snapshot = pair.b.snapshot(b).unwrap();
    assert_eq!(pair.b.resume(&snapshot), Err(CallError::InUse));
}

/// The program of a connection takes a moment to come back. Who disconnects in that
/// moment must not be told that there was no such connection: the program would
/// never hear of the end.
#[test]
fn nobody_is_refused_for_those_who_are_not_back_yet() {
    let (mut pair, a, b) = Pair::connected();
    let snapshot = pair.b.snapshot(b).unwrap();
    pair.b = Cm::new(Config::new(B_GUID), [7; 32]);
    pair.b.hold_refusals(pair.now + REQ_INTERVAL / 2);
    pair.a.disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    let other = pair.a.connect(pair.now, &request_from(A_QPN + 1));
    for mad in sent(&mut pair.a) {
        let result = pair.b.receive(pair.now, from_b(), &mad.encode());
        assert_eq!(result, Err(Ignored::NotYet));
    }
    assert!(sent(&mut pair.b).is_empty());

    pair.b.resume(&snapshot).unwrap();
    pair.later(REQ_INTERVAL);
    assert_eq!(names(&pair.a_to_b()), ["REQ", "DREQ"]);
    let events = heard(&mut pair.b);
    assert!(matches!(events[..], [Event::Disconnected { conn, .. }] if conn == b));
    // By now whoever is not back will not come back.
    pair.flow();
    let events = heard(&mut pair.a);
    assert!(matches!(events[..], [Event::Rejected { conn, .. }] if conn == other));
}
