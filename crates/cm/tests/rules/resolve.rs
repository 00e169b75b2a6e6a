//! Service ID resolution (SIDR) for datagrams.

use std::time::Duration;

use ferroce_cm::message::SidrStatus;
use ferroce_cm::{
    Address, Ece, Event, Ignored, LISTENER_GAP, ListenAddress, PortSpace, PrivateData, SidrAnswer,
    SidrId, SidrRequest,
};

use crate::pair::*;

const DATAGRAMS: u64 = PortSpace::Udp.service_id(7174);
const ANSWER: SidrAnswer = SidrAnswer {
    status: SidrStatus::VALID,
    qpn: 0x77,
    qkey: 0x0123_4567,
    ece: Ece {
        vendor_id: 0,
        options: 0,
    },
    private_data: PrivateData::EMPTY,
};

fn sidr_request() -> SidrRequest {
    SidrRequest {
        address: from_a(),
        service_id: DATAGRAMS,
        private_data: PrivateData::EMPTY,
    }
}

fn requested() -> (Pair, SidrId, SidrId) {
    let mut pair = Pair::new();
    pair.b.listen(DATAGRAMS, ListenAddress::Any, 2).unwrap();
    let a = pair.a.sidr_request(pair.now, &sidr_request());
    pair.a_to_b();
    let Some(Event::SidrRequest(incoming)) = pair.b.poll_event() else {
        panic!("no SIDR request");
    };
    (pair, a, incoming.sidr)
}

fn status(events: &[Event]) -> Vec<SidrStatus> {
    let status = |event: &Event| match event {
        Event::SidrReply { status, .. } => Some(*status),
        _ => None,
    };
    events.iter().filter_map(status).collect()
}

#[test]
fn a_sidr_reply_has_queue_pair_and_qkey() {
    let (mut pair, a, b) = requested();
    pair.b.sidr_answer(pair.now, b, &ANSWER).unwrap();
    pair.b_to_a();
    let expected = Event::SidrReply {
        sidr: a,
        status: SidrStatus::VALID,
        qpn: 0x77,
        qkey: 0x0123_4567,
        ece: Ece::default(),
        private_data: Box::default(),
    };
    assert_eq!(poll_events(&mut pair.a), [expected]);
    pair.advance(Duration::from_secs(70));
    assert!(pair.a.is_idle() && pair.b.is_idle());
}

#[test]
fn a_service_without_a_listener_is_unsupported() {
    let mut pair = Pair::new();
    pair.a.sidr_request(pair.now, &sidr_request());
    pair.deliver_all();
    let status = status(&poll_events(&mut pair.a));
    assert_eq!(status, [SidrStatus::UNSUPPORTED_SERVICE]);
}

/// perftest with `-R -c UD` connects in RDMA_PS_TCP, closes that listener, and then listens on
/// the same port in RDMA_PS_UDP. Its client sends the SIDR_REQ before that.
#[test]
fn a_sidr_req_waits_for_a_listener_of_its_port_in_another_port_space() {
    let mut pair = Pair::new();
    let connections = PortSpace::Tcp.service_id(7175);
    let datagrams = PortSpace::Udp.service_id(7175);
    let first = pair.b.listen(connections, ListenAddress::Any, 1).unwrap();
    pair.b.unlisten(pair.now, first).unwrap();
    let request = SidrRequest {
        service_id: datagrams,
        ..sidr_request()
    };
    pair.a.sidr_request(pair.now, &request);
    let mads = sent(&mut pair.a);
    for _ in 0..2 {
        let held = pair.b.receive(pair.now, from_b(), &mads[0].encode());
        assert_eq!(held, Err(Ignored::NotYet));
    }
    assert_eq!(sent(&mut pair.b), []);
    assert_eq!(pair.b.next_timeout(), Some(pair.now + LISTENER_GAP));

    let second = pair.b.listen(datagrams, ListenAddress::Any, 1).unwrap();
    assert!(pair.b.next_timeout().is_some_and(|due| due <= pair.now));
    pair.b.handle_timeout(pair.now);
    let events = poll_events(&mut pair.b);
    let [Event::SidrRequest(incoming)] = &events[..] else {
        panic!("not one SIDR request: {events:?}");
    };
    assert_eq!(incoming.listener, second);
}

#[test]
fn a_sidr_req_for_a_port_whose_listener_closed_for_good_is_unsupported() {
    let mut pair = Pair::new();
    let (closed, request) = (PortSpace::Tcp.service_id(7175), sidr_request());
    let listener = pair.b.listen(closed, ListenAddress::Any, 1).unwrap();
    pair.b.unlisten(pair.now, listener).unwrap();
    // The gap of another port does not delay the answer.
    pair.a.sidr_request(pair.now, &request);
    pair.deliver_all();
    let unsupported = [SidrStatus::UNSUPPORTED_SERVICE];
    assert_eq!(status(&poll_events(&mut pair.a)), unsupported);

    let service_id = PortSpace::Udp.service_id(7175);
    let request = SidrRequest {
        service_id,
        ..request
    };
    pair.a.sidr_request(pair.now, &request);
    pair.deliver_all();
    assert_eq!(poll_events(&mut pair.a), []);
    pair.now += LISTENER_GAP;
    pair.b.handle_timeout(pair.now);
    pair.b_to_a();
    assert_eq!(status(&poll_events(&mut pair.a)), unsupported);
}

#[test]
fn a_sidr_req_is_retransmitted_fifteen_times_and_then_given_up() {
    let mut pair = Pair::new();
    let a = pair.a.sidr_request(pair.now, &sidr_request());
    let first = sent(&mut pair.a);
    for _ in 0..15 {
        pair.advance(REP_INTERVAL);
        assert_eq!(sent(&mut pair.a), first);
    }
    pair.advance(REP_INTERVAL);
    assert_eq!(
        poll_events(&mut pair.a),
        [Event::SidrUnreachable { sidr: a }]
    );
    assert!(pair.a.is_idle());
}

#[test]
fn a_duplicate_sidr_req_makes_no_second_request() {
    let (mut pair, _, _) = requested();
    pair.advance(REP_INTERVAL);
    assert_eq!(names(&pair.a_to_b()), ["SIDR_REQ"]);
    assert_eq!(poll_events(&mut pair.b), []);
    assert_eq!(sent(&mut pair.b), []);
}

#[test]
fn a_duplicate_sidr_req_gets_the_reply_again() {
    let (mut pair, _, b) = requested();
    pair.b.sidr_answer(pair.now, b, &ANSWER).unwrap();
    let answer = sent(&mut pair.b);
    pair.advance(REP_INTERVAL);
    pair.a_to_b();
    assert_eq!(pair.b_to_a(), answer);
    assert_eq!(poll_events(&mut pair.b), [], "no second request event");
    assert_eq!(status(&poll_events(&mut pair.a)), [SidrStatus::VALID]);
}

#[test]
fn a_sidr_reply_from_another_address_is_ignored() {
    let (mut pair, _, b) = requested();
    pair.b.sidr_answer(pair.now, b, &ANSWER).unwrap();
    let answer = sent(&mut pair.b)[0].encode();
    let elsewhere = Address {
        local: A,
        remote: [192, 0, 2, 66].into(),
    };
    let result = pair.a.receive(pair.now, elsewhere, &answer);
    assert_eq!(result, Err(Ignored::Address));
    pair.a.receive(pair.now, from_a(), &answer).unwrap();
    let result = pair.a.receive(pair.now, from_a(), &answer);
    assert_eq!(result, Err(Ignored::UnknownId), "a duplicate reply");
}

#[test]
fn sidr_requests_count_against_the_backlog() {
    let mut pair = Pair::new();
    pair.b.listen(DATAGRAMS, ListenAddress::Any, 1).unwrap();
    pair.a.sidr_request(pair.now, &sidr_request());
    pair.a.sidr_request(pair.now, &sidr_request());
    pair.a_to_b();
    let events = poll_events(&mut pair.b);
    let [Event::SidrRequest(incoming)] = &events[..] else {
        panic!("{events:?}");
    };
    pair.b.sidr_taken(incoming.sidr).unwrap();
    pair.advance(REP_INTERVAL);
    pair.a_to_b();
    assert_eq!(poll_events(&mut pair.b).len(), 1);
}

#[test]
fn destroying_an_unanswered_sidr_request_rejects_it() {
    let (mut pair, a, b) = requested();
    pair.b.sidr_destroy(pair.now, b).unwrap();
    pair.b_to_a();
    assert_eq!(status(&poll_events(&mut pair.a)), [SidrStatus::REJECTED]);
    assert!(pair.a.sidr_destroy(pair.now, a).is_err());
    assert!(pair.b.sidr_answer(pair.now, b, &ANSWER).is_err());
}

#[test]
fn a_reply_to_a_destroyed_sidr_request_has_no_event() {
    let (mut pair, a, b) = requested();
    pair.a.sidr_destroy(pair.now, a).unwrap();
    pair.b.sidr_answer(pair.now, b, &ANSWER).unwrap();
    pair.b_to_a();
    assert_eq!(poll_events(&mut pair.a), []);
    assert!(pair.a.is_idle());
}
