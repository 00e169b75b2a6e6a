//! Peers that have lost a connection.

use ferroce_cm::message::{Message, Subject};
use ferroce_cm::{Cm, Config, Event, PrivateData, Reason, State};

use crate::pair::*;

/// Restarts `a`, which loses its connections.
fn restart_a(pair: &mut Pair) {
    pair.a = Cm::new(Config::new(A_GUID), [9; 32]);
}

#[test]
fn a_req_from_a_connected_queue_pair_is_rejected_as_stale() {
    let (mut pair, _, b) = Pair::connected();
    restart_a(&mut pair);
    let new = pair.a.connect(pair.now, &request());
    pair.a_to_b();
    let mads = sent(&mut pair.b);
    assert_eq!(names(&mads), ["REJ", "DREQ"]);
    let Message::Rej(rej) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(rej.reason, Reason::STALE_CONNECTION);
    assert_eq!(rej.subject, Subject::Req);
    assert_eq!(pair.b.state(b), Some(State::DreqSent));
    for mad in mads {
        let _ = pair.a.receive(pair.now, from_a(), &mad.encode());
    }
    let events = poll_events(&mut pair.a);
    assert!(
        matches!(events[..], [Event::Rejected { conn, timewait: true, .. }] if conn == new),
        "{events:?}"
    );
    assert_eq!(pair.a.state(new), Some(State::Timewait));
}

#[test]
fn the_peer_can_connect_after_the_stale_connection_is_closed() {
    let (mut pair, _, b) = Pair::connected();
    restart_a(&mut pair);
    pair.a.connect(pair.now, &request());
    pair.deliver_all();
    let events = poll_events(&mut pair.b);
    assert!(matches!(events[..], [Event::Disconnected { conn, .. }] if conn == b));
    pair.advance(TIMEWAIT);
    pair.a.connect(pair.now, &request());
    pair.deliver_all();
    let events = poll_events(&mut pair.b);
    let request = |event: &Event| matches!(event, Event::Request(_));
    assert!(events.iter().any(request), "{events:?}");
}

#[test]
fn a_req_from_another_queue_pair_of_the_peer_is_not_stale() {
    let (mut pair, _, b) = Pair::connected();
    pair.a.connect(pair.now, &request_from(A_QPN + 1));
    pair.a_to_b();
    let events = poll_events(&mut pair.b);
    assert!(matches!(events[..], [Event::Request(_)]));
    assert_eq!(pair.b.state(b), Some(State::Established));
}

#[test]
fn a_queue_pair_can_be_reused_while_the_other_end_is_in_timewait() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.destroy(pair.now, a).unwrap();
    pair.a_to_b();
    poll_events(&mut pair.b);
    pair.b.disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    pair.deliver_all();
    pair.a.connect(pair.now, &request());
    pair.a_to_b();
    assert!(matches!(poll_events(&mut pair.b)[..], [Event::Request(_)]));
}

#[test]
fn a_duplicate_req_in_timewait_is_rejected_as_stale() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &request());
    let req = pair.a_to_b()[0].encode();
    let Some(Event::Request(incoming)) = pair.b.poll_event() else {
        panic!("no request");
    };
    let b = incoming.conn;
    let accept = ferroce_cm::Accept::new(B_QPN);
    pair.b.accept(pair.now, b, &accept).unwrap();
    pair.deliver_all();
    poll_events(&mut pair.a);
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    pair.a.disconnect(pair.now, a, PrivateData::EMPTY).unwrap();
    pair.deliver_all();
    pair.b.disconnect(pair.now, b, PrivateData::EMPTY).unwrap();
    sent(&mut pair.b);
    poll_events(&mut pair.b);
    let _ = pair.b.receive(pair.now, from_b(), &req);
    let mads = sent(&mut pair.b);
    let Message::Rej(rej) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(rej.reason, Reason::STALE_CONNECTION);
    assert_eq!(poll_events(&mut pair.b), [], "no request event");
}

#[test]
fn a_rep_from_a_connected_queue_pair_is_rejected_as_stale() {
    let (mut pair, old, _) = Pair::connected();
    pair.b = Cm::new(Config::new(B_GUID), [8; 32]);
    let any = ferroce_cm::ListenAddress::Any;
    pair.b.listen(SERVICE, any, 4).unwrap();
    let new = pair.a.connect(pair.now, &request_from(A_QPN + 1));
    pair.a_to_b();
    let Some(Event::Request(incoming)) = pair.b.poll_event() else {
        panic!("no request");
    };
    let accept = ferroce_cm::Accept::new(B_QPN);
    pair.b.accept(pair.now, incoming.conn, &accept).unwrap();
    pair.b_to_a();
    assert_eq!(names(&sent(&mut pair.a)), ["REJ", "DREQ"]);
    let events = poll_events(&mut pair.a);
    assert!(
        matches!(events[..], [Event::Rejected { conn, reason: Reason::STALE_CONNECTION, .. }] if conn == new)
    );
    assert_eq!(pair.a.state(old), Some(State::DreqSent));
}
