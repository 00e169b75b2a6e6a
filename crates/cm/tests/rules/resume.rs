//! A connection manager that starts anew.

use ferroce_cm::{CallError, Cm, Config, Event, PrivateData, State};

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
