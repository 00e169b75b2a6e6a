//! Rejections.

use std::time::Duration;

use ferroce_cm::message::{Message, Subject};
use ferroce_cm::{Event, IpHeader, Mad, PrivateData, Reason, Request, State};

use crate::pair::*;

/// Sends a request that `b` rejects, and returns the reason and the ARI that `a` gets.
/// `change` modifies the request, and `twist` the encoded REQ.
fn refusal(change: impl Fn(&mut Request), twist: impl Fn(&mut Mad)) -> (Reason, Vec<u8>) {
    let mut pair = Pair::new();
    let mut params = request();
    change(&mut params);
    let a = pair.a.connect(pair.now, &params);
    let mut mads = sent(&mut pair.a);
    twist(&mut mads[0]);
    pair.b
        .receive(pair.now, from_b(), &mads[0].encode())
        .unwrap();
    assert_eq!(poll_events(&mut pair.b), []);
    assert_eq!(pair.b.connections(), 0, "no state is kept");
    assert_eq!(names(&pair.b_to_a()), ["REJ"]);
    match &poll_events(&mut pair.a)[..] {
        [
            Event::Rejected {
                conn,
                reason,
                ari,
                timewait: false,
                ..
            },
        ] if *conn == a => (*reason, ari.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_req_without_a_listener_is_rejected_as_invalid_service_id() {
    let (reason, ari) = refusal(|r| r.service_id += 1, |_| {});
    assert_eq!(reason, Reason::INVALID_SERVICE_ID);
    assert_eq!(ari, []);
}

#[test]
fn a_foreign_destination_gid_is_rejected_with_our_gid_as_ari() {
    let twist = |mad: &mut Mad| {
        if let Message::Req(req) = &mut mad.message {
            req.primary.remote_gid.0[15] ^= 1;
        }
    };
    let (reason, ari) = refusal(|_| {}, twist);
    assert_eq!(reason, Reason::INVALID_GID);
    assert_eq!(ari, ferroce_cm::Gid::from(B).0);
}

#[test]
fn a_source_gid_that_is_not_the_senders_is_rejected() {
    let twist = |mad: &mut Mad| {
        if let Message::Req(req) = &mut mad.message {
            req.primary.local_gid.0[15] ^= 1;
        }
    };
    assert_eq!(refusal(|_| {}, twist).0, Reason::INVALID_GID);
}

#[test]
fn reliable_datagram_is_rejected_as_invalid_transport() {
    let twist = |mad: &mut Mad| {
        if let Message::Req(req) = &mut mad.message {
            req.transport = ferroce_cm::message::Transport::Rd;
        }
    };
    assert_eq!(refusal(|_| {}, twist).0, Reason::INVALID_TRANSPORT);
}

#[test]
fn an_unknown_header_version_is_rejected_with_reason_consumer() {
    let (reason, _) = refusal(|r| r.private_data.0[0] = 1, |_| {});
    assert_eq!(reason, Reason::CONSUMER);
}

#[test]
fn implausible_addresses_are_rejected_with_reason_consumer() {
    for bad in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        let bad = bad.parse().unwrap();
        let header = IpHeader {
            source_port: 1,
            source: bad,
            destination: B,
        };
        let (reason, _) = refusal(|r| header.emit(&mut r.private_data.0), |_| {});
        assert_eq!(reason, Reason::CONSUMER, "{bad}");
    }
}

#[test]
fn a_rej_delivers_its_reason_ari_and_private_data() {
    let (mut pair, a, b) = Pair::requested();
    let data = PrivateData::new(b"no").unwrap();
    pair.b
        .reject(pair.now, b, Reason::CONSUMER, &[1, 2], data)
        .unwrap();
    let mads = pair.b_to_a();
    let Message::Rej(rej) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(rej.subject, Subject::Req);
    let expected = Event::Rejected {
        conn: a,
        reason: Reason::CONSUMER,
        ari: vec![1, 2],
        private_data: Box::new(data),
        timewait: false,
    };
    assert_eq!(poll_events(&mut pair.a), [expected]);
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
}

#[test]
fn a_duplicate_req_gets_the_rej_again() {
    let (mut pair, a, b) = Pair::requested();
    let none = PrivateData::EMPTY;
    pair.b
        .reject(pair.now, b, Reason::CONSUMER, &[], none)
        .unwrap();
    sent(&mut pair.b);
    pair.advance(REQ_INTERVAL);
    pair.deliver_all();
    let events = poll_events(&mut pair.a);
    assert!(matches!(events[..], [Event::Rejected { conn, .. }] if conn == a));
    assert_eq!(poll_events(&mut pair.b), [], "no second request event");
}

#[test]
fn a_rej_is_cached_until_the_peer_stops_retransmitting() {
    let (mut pair, _, b) = Pair::requested();
    let none = PrivateData::EMPTY;
    pair.b
        .reject(pair.now, b, Reason::CONSUMER, &[], none)
        .unwrap();
    pair.deliver_all();
    poll_events(&mut pair.a);
    assert!(!pair.b.is_idle());
    pair.advance(Duration::from_secs(90));
    assert!(pair.b.is_idle());
    pair.advance(Duration::from_secs(90));
    assert!(pair.a.is_idle());
}

#[test]
fn the_active_side_may_reject_a_response() {
    let (mut pair, a, b) = Pair::responded();
    let none = PrivateData::EMPTY;
    pair.a
        .reject(pair.now, a, Reason::CONSUMER, &[], none)
        .unwrap();
    let mads = pair.a_to_b();
    let Message::Rej(rej) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(rej.subject, Subject::Rep);
    let events = poll_events(&mut pair.b);
    assert!(matches!(events[..], [Event::Rejected { conn, .. }] if conn == b));
    assert_eq!(pair.b.state(b), None);
}

#[test]
fn a_duplicate_rep_gets_the_rej_again() {
    let (mut pair, a, b) = Pair::responded();
    let none = PrivateData::EMPTY;
    pair.a
        .reject(pair.now, a, Reason::CONSUMER, &[], none)
        .unwrap();
    sent(&mut pair.a);
    pair.advance(REP_INTERVAL);
    assert_eq!(names(&pair.b_to_a()), ["REP"]);
    assert_eq!(names(&pair.a_to_b()), ["REJ"]);
    let events = poll_events(&mut pair.b);
    assert!(matches!(events[..], [Event::Rejected { conn, .. }] if conn == b));
}

#[test]
fn a_rej_ends_a_connection_that_the_active_side_has_established() {
    let (mut pair, a, b) = Pair::responded();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    sent(&mut pair.a);
    pair.b.destroy(pair.now, b).unwrap();
    assert_eq!(names(&pair.b_to_a()), ["REJ"]);
    let events = poll_events(&mut pair.a);
    assert!(matches!(events[..], [Event::Disconnected { conn, .. }] if conn == a));
    assert_eq!(pair.a.state(a), Some(State::Timewait));
}

#[test]
fn the_number_of_cached_answers_is_limited() {
    let mut config = ferroce_cm::Config::new(B_GUID);
    config.max_cached_answers = 4;
    let mut pair = Pair::new();
    pair.b = ferroce_cm::Cm::new(config, [2; 32]);
    let any = ferroce_cm::ListenAddress::Any;
    pair.b.listen(SERVICE, any, 16).unwrap();
    for qpn in 1..10 {
        pair.a.connect(pair.now, &request_from(qpn));
        pair.a_to_b();
        let Some(Event::Request(incoming)) = pair.b.poll_event() else {
            panic!("no request");
        };
        let none = PrivateData::EMPTY;
        pair.b
            .reject(pair.now, incoming.conn, Reason::CONSUMER, &[], none)
            .unwrap();
        sent(&mut pair.b);
    }
    pair.advance(REQ_INTERVAL);
    assert_eq!(pair.a_to_b().len(), 9);
    assert_eq!(sent(&mut pair.b).len(), 4, "the newest are cached");
    assert_eq!(
        poll_events(&mut pair.b).len(),
        5,
        "the others are new requests"
    );
}
