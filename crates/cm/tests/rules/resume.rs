//! Restart of a connection manager.

use ferroce_cm::{CallError, Cm, Config, Event, Ignored, PrivateData, State};

use crate::pair::*;

#[test]
fn an_established_connection_survives_a_restart() {
    let (mut pair, a, b) = Pair::connected();
    let snapshot = pair.b.snapshot(b).unwrap();
    pair.b = Cm::new(Config::new(B_GUID), [7; 32]);
    assert_eq!(pair.b.resume(&snapshot), Ok(b));
    assert_eq!(pair.b.state(b), Some(State::Established));
    assert_eq!(pair.b.snapshot(b), Some(snapshot));
    let none = PrivateData::EMPTY;
    pair.a.disconnect(pair.now, a, none).unwrap();
    pair.deliver_all();
    let events = poll_events(&mut pair.b);
    assert!(matches!(events[..], [Event::Disconnected { conn, .. }] if conn == b));
}

#[test]
fn a_resumed_active_side_answers_a_duplicate_rep_with_an_rtu() {
    let (mut pair, a, b) = Pair::responded();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    sent(&mut pair.a);
    let snapshot = pair.a.snapshot(a).unwrap();
    pair.a = Cm::new(Config::new(A_GUID), [7; 32]);
    pair.a.resume(&snapshot).unwrap();
    pair.advance(REP_INTERVAL);
    pair.deliver_all();
    assert_eq!(poll_events(&mut pair.b), [Event::Established { conn: b }]);
}

#[test]
fn only_established_connections_have_a_snapshot() {
    let (mut pair, a, b) = Pair::responded();
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

/// After a restart it takes some time until the program has restored its connection. A DREQ
/// that arrives before must not be answered with a DREP, or the program would never get the
/// disconnect event.
#[test]
fn requests_for_missing_listeners_and_connections_are_held_after_a_restart() {
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
    pair.advance(REQ_INTERVAL);
    assert_eq!(names(&pair.a_to_b()), ["REQ", "DREQ"]);
    let events = poll_events(&mut pair.b);
    assert!(matches!(events[..], [Event::Disconnected { conn, .. }] if conn == b));
    // The hold has ended, so the REQ without a listener is rejected.
    pair.deliver_all();
    let events = poll_events(&mut pair.a);
    assert!(matches!(events[..], [Event::Rejected { conn, .. }] if conn == other));
}
