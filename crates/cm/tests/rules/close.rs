//! Closing a connection.

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
    assert_eq!(closed(&poll_events(&mut pair.b)), [owed]);
    assert_eq!(pair.b.state(b), Some(State::DreqRcvd));
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    let answer = pair.b_to_a();
    assert_eq!(names(&answer), ["DREP"]);
    assert_eq!(answer[0].tid, mads[0].tid);
    assert_eq!(closed(&poll_events(&mut pair.a)), [Closed::Local]);
    assert_eq!(pair.a.state(a), Some(State::Timewait));
    assert_eq!(pair.b.state(b), Some(State::Timewait));
}

#[test]
fn timewait_lasts_for_the_ack_timeout_and_leaves_no_state() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.deliver_all();
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    pair.deliver_all();
    poll_events(&mut pair.a);
    poll_events(&mut pair.b);
    pair.advance(TIMEWAIT - Duration::from_millis(1));
    assert_eq!(poll_events(&mut pair.a), []);
    pair.advance(Duration::from_millis(1));
    assert_eq!(poll_events(&mut pair.a), [Event::TimewaitExit { conn: a }]);
    assert_eq!(poll_events(&mut pair.b), [Event::TimewaitExit { conn: b }]);
    assert!(pair.a.is_idle() && pair.b.is_idle());
}

#[test]
fn a_dreq_is_retransmitted_fifteen_times_and_then_enters_timewait() {
    let (mut pair, a, _) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    let first = sent(&mut pair.a);
    for _ in 0..15 {
        pair.advance(REQ_INTERVAL);
        assert_eq!(sent(&mut pair.a), first);
    }
    pair.advance(REQ_INTERVAL);
    assert_eq!(closed(&poll_events(&mut pair.a)), [Closed::TimedOut]);
    assert_eq!(pair.a.state(a), Some(State::Timewait));
}

#[test]
fn crossing_dreqs_close_the_connection() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    pair.deliver_all();
    let by = Closed::Peer { answer_owed: false };
    assert_eq!(closed(&poll_events(&mut pair.a)).len(), 1);
    assert_eq!(closed(&poll_events(&mut pair.b)), [by]);
    assert_eq!(pair.a.state(a), Some(State::Timewait));
    assert_eq!(pair.b.state(b), Some(State::Timewait));
    let again = pair.a.disconnect(pair.now, a, NONE);
    assert_eq!(again, Err(CallError::State(State::Timewait)));
}

#[test]
fn a_dreq_implies_that_the_rep_was_received() {
    let (mut pair, a, b) = Pair::responded();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    sent(&mut pair.a);
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.a_to_b();
    let owed = Closed::Peer { answer_owed: true };
    assert_eq!(closed(&poll_events(&mut pair.b)), [owed]);
    assert_eq!(pair.b.next_timeout(), None, "the REP is not retransmitted");
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    pair.deliver_all();
    assert_eq!(closed(&poll_events(&mut pair.a)), [Closed::Local]);
}

#[test]
fn a_duplicate_dreq_in_timewait_gets_the_drep_again() {
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
    pair.advance(REQ_INTERVAL);
    assert_eq!(pair.b.state(b), None);
    assert_eq!(names(&pair.a_to_b()), ["DREQ"]);
    assert_eq!(names(&pair.b_to_a()), ["DREP"]);
    assert_eq!(closed(&poll_events(&mut pair.a)), [Closed::Local]);
}

#[test]
fn a_duplicate_dreq_is_not_answered_before_the_program_does() {
    let (mut pair, a, _) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.a_to_b();
    pair.advance(REQ_INTERVAL);
    pair.a_to_b();
    assert_eq!(sent(&mut pair.b), []);
    assert_eq!(closed(&poll_events(&mut pair.b)).len(), 1);
}

#[test]
fn destroying_an_established_connection_sends_a_dreq() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.destroy(pair.now, a).unwrap();
    assert_eq!(names(&pair.a_to_b()), ["DREQ"]);
    pair.b.disconnect(pair.now, b, NONE).unwrap();
    pair.deliver_all();
    pair.advance(TIMEWAIT);
    assert_eq!(poll_events(&mut pair.a), [], "no events after destroy");
    assert!(pair.a.is_idle());
}

#[test]
fn destroying_a_connection_with_an_unanswered_dreq_sends_the_drep() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.disconnect(pair.now, a, NONE).unwrap();
    pair.a_to_b();
    pair.b.destroy(pair.now, b).unwrap();
    assert_eq!(names(&pair.b_to_a()), ["DREP"]);
    assert_eq!(poll_events(&mut pair.b), []);
    assert_eq!(closed(&poll_events(&mut pair.a)), [Closed::Local]);
}

#[test]
fn destroying_an_unanswered_request_rejects_it() {
    let (mut pair, a, b) = Pair::requested();
    pair.b.destroy(pair.now, b).unwrap();
    pair.deliver_all();
    let events = poll_events(&mut pair.a);
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
    assert_eq!(poll_events(&mut pair.a), []);
}
