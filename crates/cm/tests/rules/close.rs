//! Ending a connection.

use std::time::Duration;

use ferroce_cm::message::{AprStatus, Lap, Message, Path};
use ferroce_cm::{CallError, Closed, Event, Ignored, Mad, PrivateData, State};

use crate::pair::*;

const NONE: PrivateData<220> = PrivateData::EMPTY;

fn closed(events: &[Event]) -> Vec<Closed> {
    let by = |event: &Event| match event {
        Event::Disconnected { by, .. } => Some(*by),
        _ => None,
    };
    events.iter().filter_map(by).collect()
}

#[test]
fn a_disconnection_takes_dreq_and_drep() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    let mads = pair.a_to_b();
    let Message::Dreq(dreq) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(dreq.remote_qpn, B_QPN);
    let owed = Closed::Peer { answer_owed: true };
    assert_eq!(closed(&heard(&mut pair.b)), [owed]);
    assert_eq!(pair.b.state(b), Some(State::DreqRcvd));
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    let answer = pair.b_to_a();
    assert_eq!(names(&answer), ["DREP"]);
    assert_eq!(answer[0].tid, mads[0].tid);
    assert_eq!(closed(&heard(&mut pair.a)), [Closed::Local]);
    assert_eq!(pair.a.state(a), Some(State::Timewait));
    assert_eq!(pair.b.state(b), Some(State::Timewait));
}

#[test]
fn timewait_lasts_as_long_as_the_timeout_and_leaves_nothing() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.flow();
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    pair.flow();
    heard(&mut pair.a);
    heard(&mut pair.b);
    pair.later(TIMEWAIT - Duration::from_millis(1));
    assert_eq!(heard(&mut pair.a), []);
    pair.later(Duration::from_millis(1));
    assert_eq!(heard(&mut pair.a), [Event::TimewaitExit { conn: a }]);
    assert_eq!(heard(&mut pair.b), [Event::TimewaitExit { conn: b }]);
    assert!(pair.a.is_idle() && pair.b.is_idle());
}

#[test]
fn a_dreq_is_repeated_fifteen_times_and_then_counts_as_answered() {
    let (mut pair, a, _) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    let first = sent(&mut pair.a);
    for _ in 0..15 {
        pair.later(REQ_INTERVAL);
        assert_eq!(sent(&mut pair.a), first);
    }
    pair.later(REQ_INTERVAL);
    assert_eq!(closed(&heard(&mut pair.a)), [Closed::TimedOut]);
    assert_eq!(pair.a.state(a), Some(State::Timewait));
}

#[test]
fn crossing_dreqs_are_agreement() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    pair.flow();
    let by = Closed::Peer { answer_owed: false };
    assert_eq!(closed(&heard(&mut pair.a)).len(), 1);
    assert_eq!(closed(&heard(&mut pair.b)), [by]);
    assert_eq!(pair.a.state(a), Some(State::Timewait));
    assert_eq!(pair.b.state(b), Some(State::Timewait));
    let again = pair.a.disconnect(pair.now, a, NONE);
    assert_eq!(again, Err(CallError::State(State::Timewait)));
}

#[test]
fn a_dreq_tells_that_the_rep_had_arrived() {
    let (mut pair, a, b) = Pair::answered();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    sent(&mut pair.a);
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.a_to_b();
    let owed = Closed::Peer { answer_owed: true };
    assert_eq!(closed(&heard(&mut pair.b)), [owed]);
    assert_eq!(pair.b.next_timeout(), None, "the REP is not repeated");
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    pair.flow();
    assert_eq!(closed(&heard(&mut pair.a)), [Closed::Local]);
}

#[test]
fn a_repeated_dreq_gets_the_drep_again_in_timewait() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    let dreq = pair.a_to_b()[0].encode();
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    let drep = sent(&mut pair.b);
    let again = pair.b.receive(pair.now, from_b(), &dreq);
    assert_eq!(again, Err(Ignored::Duplicate));
    assert_eq!(sent(&mut pair.b), drep);
}

#[test]
fn a_dreq_for_a_connection_that_is_gone_gets_a_drep() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.a_to_b();
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    sent(&mut pair.b);
    pair.later(REQ_INTERVAL);
    assert_eq!(pair.b.state(b), None);
    assert_eq!(names(&pair.a_to_b()), ["DREQ"]);
    assert_eq!(names(&pair.b_to_a()), ["DREP"]);
    assert_eq!(closed(&heard(&mut pair.a)), [Closed::Local]);
}

#[test]
fn a_repeated_dreq_is_not_answered_before_the_program_does() {
    let (mut pair, a, _) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.a_to_b();
    pair.later(REQ_INTERVAL);
    pair.a_to_b();
    assert_eq!(sent(&mut pair.b), []);
    assert_eq!(closed(&heard(&mut pair.b)).len(), 1);
}

#[test]
fn the_connection_of_a_program_that_dies_is_disconnected_for_it() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.destroy(pair.now, a).unwrap();
    assert_eq!(names(&pair.a_to_b()), ["DREQ"]);
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    pair.flow();
    pair.later(TIMEWAIT);
    assert_eq!(heard(&mut pair.a), [], "nobody wants to know");
    assert!(pair.a.is_idle());
}

#[test]
fn a_program_that_dies_owing_an_answer_has_it_given() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.a_to_b();
    pair.b.destroy(pair.now, b).unwrap();
    assert_eq!(names(&pair.b_to_a()), ["DREP"]);
    assert_eq!(heard(&mut pair.b), []);
    assert_eq!(closed(&heard(&mut pair.a)), [Closed::Local]);
}

#[test]
fn a_program_that_dies_with_a_request_has_it_refused() {
    let (mut pair, a, b) = Pair::asked();
    pair.b.destroy(pair.now, b).unwrap();
    pair.flow();
    let events = heard(&mut pair.a);
    assert!(matches!(events[..], [Event::Rejected { conn, .. }] if conn == a));
}

#[test]
fn alternate_paths_are_refused() {
    let (mut pair, a, b) = Pair::connected();
    let lap = Lap {
        local_id: a.comm_id(),
        remote_id: b.comm_id(),
        remote_qpn: B_QPN,
        remote_response_timeout: 20,
        path: Path::default(),
        private_data: PrivateData::EMPTY,
    };
    let mad = Mad {
        tid: 5,
        modifier: 0,
        message: Message::Lap(lap),
    };
    let _ = pair.b.receive(pair.now, from_b(), &mad.encode());
    let mads = pair.b_to_a();
    let Message::Apr(apr) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(apr.status, AprStatus::UNSUPPORTED);
    assert_eq!((apr.local_id, apr.remote_id), (b.comm_id(), a.comm_id()));
    assert_eq!(pair.b.state(b), Some(State::Established));
    assert_eq!(heard(&mut pair.a), []);
}
