//! The choice of the listener for a request.

use std::net::IpAddr;

use ferroce_cm::{
    Accept, CallError, Cm, Config, Event, Ignored, IpHeader, LISTENER_GAP, ListenAddress,
    ListenerId, Reason, Request,
};

use crate::pair::*;

fn listening(addresses: &[ListenAddress]) -> (Pair, Vec<ListenerId>) {
    let mut pair = Pair::new();
    pair.b = Cm::new(Config::new(B_GUID), [2; 32]);
    let ids = addresses
        .iter()
        .map(|at| pair.b.listen(SERVICE, *at, 4).unwrap());
    let ids = ids.collect();
    (pair, ids)
}

/// Sends a request. Returns the listener that gets it, or the reason of its rejection.
fn goes_to(pair: &mut Pair, request: &Request) -> Result<ListenerId, Reason> {
    pair.a.connect(pair.now, request);
    pair.a_to_b();
    pair.b_to_a();
    match pair.b.poll_event() {
        Some(Event::Request(incoming)) => Ok(incoming.listener),
        None => match poll_events(&mut pair.a).pop() {
            Some(Event::Rejected { reason, .. }) => Err(reason),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn to(destination: &str) -> Request {
    let destination: IpAddr = destination.parse().unwrap();
    let mut request = request();
    let source = match destination {
        IpAddr::V4(_) => A,
        IpAddr::V6(_) => "3fff:51:0:100::11".parse().unwrap(),
    };
    let header = IpHeader {
        source_port: 1,
        source,
        destination,
    };
    header.emit(&mut request.private_data.0);
    request
}

#[test]
fn an_exact_address_takes_precedence_over_the_wildcard() {
    let (mut pair, ids) = listening(&[ListenAddress::Any, ListenAddress::Exactly(B)]);
    assert_eq!(goes_to(&mut pair, &to("198.51.100.12")), Ok(ids[1]));
    let mut other = to("198.51.100.13");
    other.qpn += 1;
    assert_eq!(goes_to(&mut pair, &other), Ok(ids[0]));
}

#[test]
fn a_service_at_another_address_is_rejected_with_reason_consumer() {
    let (mut pair, _) = listening(&[ListenAddress::Exactly(B)]);
    let refused = goes_to(&mut pair, &to("198.51.100.13"));
    assert_eq!(refused, Err(Reason::CONSUMER));
}

#[test]
fn a_wildcard_without_afonly_accepts_both_ip_versions() {
    let (mut pair, ids) = listening(&[ListenAddress::Any]);
    assert_eq!(goes_to(&mut pair, &to("198.51.100.12")), Ok(ids[0]));
    let mut v6 = to("3fff:51:0:100::12");
    v6.qpn += 1;
    assert_eq!(goes_to(&mut pair, &v6), Ok(ids[0]));
}

#[test]
fn a_wildcard_with_afonly_accepts_its_own_ip_version() {
    let (mut pair, ids) = listening(&[ListenAddress::AnyV4, ListenAddress::AnyV6]);
    assert_eq!(goes_to(&mut pair, &to("198.51.100.12")), Ok(ids[0]));
    let mut v6 = to("3fff:51:0:100::12");
    v6.qpn += 1;
    assert_eq!(goes_to(&mut pair, &v6), Ok(ids[1]));
}

#[test]
fn a_request_without_ip_addresses_is_for_a_wildcard() {
    let mut plain = request();
    plain.private_data.0.fill(0);
    let (mut pair, ids) = listening(&[ListenAddress::Any, ListenAddress::Exactly(B)]);
    assert_eq!(goes_to(&mut pair, &plain), Ok(ids[0]));
    let (mut pair, _) = listening(&[ListenAddress::Exactly(B)]);
    assert_eq!(goes_to(&mut pair, &plain), Err(Reason::CONSUMER));
}

#[test]
fn a_service_and_address_has_one_listener() {
    let (mut pair, ids) = listening(&[ListenAddress::Any]);
    let second = pair.b.listen(SERVICE, ListenAddress::Any, 1);
    assert_eq!(second, Err(CallError::InUse));
    pair.b.unlisten(pair.now, ids[0]).unwrap();
    assert!(pair.b.listen(SERVICE, ListenAddress::Any, 1).is_ok());
    assert_eq!(pair.b.unlisten(pair.now, ids[0]), Err(CallError::Unknown));
}

#[test]
fn requests_beyond_the_backlog_are_dropped_without_an_answer() {
    let mut pair = Pair::new();
    pair.b = Cm::new(Config::new(B_GUID), [2; 32]);
    pair.b.listen(SERVICE, ListenAddress::Any, 1).unwrap();
    pair.a.connect(pair.now, &request_from(1));
    pair.a.connect(pair.now, &request_from(2));
    let mads = sent(&mut pair.a);
    let first = pair.b.receive(pair.now, from_b(), &mads[0].encode());
    assert_eq!(first, Ok(()));
    let second = pair.b.receive(pair.now, from_b(), &mads[1].encode());
    assert_eq!(second, Err(Ignored::Backlog));
    assert_eq!(sent(&mut pair.b), [], "no answer: the peer retransmits");

    let Some(Event::Request(incoming)) = pair.b.poll_event() else {
        panic!("no request");
    };
    pair.b.taken(incoming.conn).unwrap();
    pair.b.taken(incoming.conn).unwrap();
    let again = pair.b.receive(pair.now, from_b(), &mads[1].encode());
    assert_eq!(again, Ok(()), "the program has taken the first");
}

#[test]
fn an_answer_makes_room_in_the_backlog() {
    let mut pair = Pair::new();
    pair.b = Cm::new(Config::new(B_GUID), [2; 32]);
    pair.b.listen(SERVICE, ListenAddress::Any, 1).unwrap();
    for qpn in 1..5 {
        pair.a.connect(pair.now, &request_from(qpn));
        pair.a_to_b();
        let Some(Event::Request(incoming)) = pair.b.poll_event() else {
            panic!("no request");
        };
        let accept = Accept::new(B_QPN + qpn);
        pair.b.accept(pair.now, incoming.conn, &accept).unwrap();
    }
}

#[test]
fn removing_a_listener_rejects_requests_that_were_not_taken() {
    let (mut pair, ids) = listening(&[ListenAddress::Any]);
    let waiting = pair.a.connect(pair.now, &request_from(1));
    let taken = pair.a.connect(pair.now, &request_from(2));
    pair.a_to_b();
    let events = poll_events(&mut pair.b);
    let Event::Request(second) = &events[1] else {
        panic!("{events:?}");
    };
    pair.b.taken(second.conn).unwrap();
    pair.b.unlisten(pair.now, ids[0]).unwrap();
    pair.b_to_a();
    let events = poll_events(&mut pair.a);
    assert!(
        matches!(events[..], [Event::Rejected { conn, reason: Reason::CONSUMER, .. }] if conn == waiting)
    );
    assert!(pair.a.state(taken).is_some());
    let accept = Accept::new(B_QPN);
    assert!(pair.b.accept(pair.now, second.conn, &accept).is_ok());
}

/// perftest's client connects before the server listens again.
#[test]
fn a_request_after_a_listener_closed_waits_for_the_next_one() {
    let (mut pair, ids) = listening(&[ListenAddress::Any]);
    pair.b.unlisten(pair.now, ids[0]).unwrap();
    pair.a.connect(pair.now, &request_from(1));
    let mads = sent(&mut pair.a);
    for _ in 0..2 {
        let held = pair.b.receive(pair.now, from_b(), &mads[0].encode());
        assert_eq!(held, Err(Ignored::NotYet));
    }
    assert_eq!(sent(&mut pair.b), []);
    assert_eq!(pair.b.next_timeout(), Some(pair.now + LISTENER_GAP));
    pair.b.handle_timeout(pair.now);
    assert_eq!(poll_events(&mut pair.b), []);

    let listener = pair.b.listen(SERVICE, ListenAddress::Any, 1).unwrap();
    assert!(pair.b.next_timeout().is_some_and(|due| due <= pair.now));
    pair.b.handle_timeout(pair.now);
    let events = poll_events(&mut pair.b);
    let [Event::Request(incoming)] = &events[..] else {
        panic!("not one request: {events:?}");
    };
    assert_eq!(incoming.listener, listener);
}

/// qperf's client connects before the server listens for the first time.
#[test]
fn a_request_for_a_port_that_is_bound_waits_for_the_listener() {
    let (mut pair, _) = listening(&[]);
    pair.b.expect_listener(pair.now, SERVICE);
    pair.a.connect(pair.now, &request_from(1));
    pair.a_to_b();
    pair.b.handle_timeout(pair.now);
    assert_eq!(sent(&mut pair.b), []);
    let listener = pair.b.listen(SERVICE, ListenAddress::Any, 1).unwrap();
    pair.b.handle_timeout(pair.now);
    let events = poll_events(&mut pair.b);
    assert!(
        matches!(&events[..], [Event::Request(incoming)] if incoming.listener == listener),
        "{events:?}"
    );
}

#[test]
fn a_request_after_a_listener_closed_for_good_is_rejected() {
    let (mut pair, ids) = listening(&[ListenAddress::Any]);
    pair.b.unlisten(pair.now, ids[0]).unwrap();
    pair.a.connect(pair.now, &request_from(1));
    pair.a_to_b();
    pair.now += LISTENER_GAP;
    pair.b.handle_timeout(pair.now);
    pair.b_to_a();
    let events = poll_events(&mut pair.a);
    assert!(
        matches!(
            events[..],
            [Event::Rejected {
                reason: Reason::INVALID_SERVICE_ID,
                ..
            }]
        ),
        "{events:?}"
    );
    // Later ones are rejected at once.
    pair.a.connect(pair.now, &request_from(2));
    pair.a_to_b();
    pair.b_to_a();
    assert_eq!(poll_events(&mut pair.a).len(), 1);
}
