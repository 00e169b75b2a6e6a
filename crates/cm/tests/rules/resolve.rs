//! Service ID resolution, for datagrams.

use std::time::Duration;

use ferroce_cm::message::SidrStatus;
use ferroce_cm::{
    Address, Ece, Event, Ignored, ListenAddress, PortSpace, PrivateData, SidrAnswer, SidrId,
    SidrQuestion,
};

use crate::pair::*;

const DATAGRAMS: u64 = PortSpace::Udp.service_id(7174);
const YES: SidrAnswer = SidrAnswer {
    status: SidrStatus::VALID,
    qpn: 0x77,
    qkey: 0x0123_4567,
    ece: Ece {
        vendor_id: 0,
        options: 0,
    },
    private_data: PrivateData::EMPTY,
};

fn question() -> SidrQuestion {
    SidrQuestion {
        address: from_a(),
        service_id: DATAGRAMS,
        private_data: PrivateData::EMPTY,
    }
}

fn asked() -> (Pair, SidrId, SidrId) {
    let mut pair = Pair::new();
    pair.b.listen(DATAGRAMS, ListenAddress::Any, 2).unwrap();
    let a = pair.a.sidr_ask(pair.now, &question());
    pair.a_to_b();
    let Some(Event::SidrRequest(incoming)) = pair.b.poll_event() else {
        panic!("no question");
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
fn a_question_gets_queue_pair_and_key() {
    let (mut pair, a, b) = asked();
    pair.b.sidr_answer(pair.now, b, &YES).unwrap();
    pair.b_to_a();
    let expected = Event::SidrReply {
        sidr: a,
        status: SidrStatus::VALID,
        qpn: 0x77,
        qkey: 0x0123_4567,
        ece: Ece::default(),
        private_data: Box::default(),
    };
    assert_eq!(heard(&mut pair.a), [expected]);
    pair.later(Duration::from_secs(70));
    assert!(pair.a.is_idle() && pair.b.is_idle());
}

#[test]
fn a_service_that_nobody_offers_is_unsupported() {
    let mut pair = Pair::new();
    pair.a.sidr_ask(pair.now, &question());
    pair.flow();
    let heard = status(&heard(&mut pair.a));
    assert_eq!(heard, [SidrStatus::UNSUPPORTED_SERVICE]);
}

#[test]
fn a_question_is_repeated_fifteen_times_and_then_given_up() {
    let mut pair = Pair::new();
    let a = pair.a.sidr_ask(pair.now, &question());
    let first = sent(&mut pair.a);
    for _ in 0..15 {
        pair.later(REP_INTERVAL);
        assert_eq!(sent(&mut pair.a), first);
    }
    pair.later(REP_INTERVAL);
    assert_eq!(heard(&mut pair.a), [Event::SidrUnreachable { sidr: a }]);
    assert!(pair.a.is_idle());
}

#[test]
fn a_repeated_question_is_asked_once() {
    let (mut pair, _, _) = asked();
    pair.later(REP_INTERVAL);
    assert_eq!(names(&pair.a_to_b()), ["SIDR_REQ"]);
    assert_eq!(heard(&mut pair.b), []);
    assert_eq!(sent(&mut pair.b), []);
}

#[test]
fn a_repeated_question_gets_its_answer_again() {
    let (mut pair, _, b) = asked();
    pair.b.sidr_answer(pair.now, b, &YES).unwrap();
    let answer = sent(&mut pair.b);
    pair.later(REP_INTERVAL);
    pair.a_to_b();
    assert_eq!(pair.b_to_a(), answer);
    assert_eq!(heard(&mut pair.b), [], "the program is not asked twice");
    assert_eq!(status(&heard(&mut pair.a)), [SidrStatus::VALID]);
}

#[test]
fn an_answer_from_elsewhere_changes_nothing() {
    let (mut pair, _, b) = asked();
    pair.b.sidr_answer(pair.now, b, &YES).unwrap();
    let answer = sent(&mut pair.b)[0].encode();
    let elsewhere = Address {
        local: A,
        remote: [192, 0, 2, 66].into(),
    };
    let result = pair.a.receive(pair.now, elsewhere, &answer);
    assert_eq!(result, Err(Ignored::Address));
    pair.a.receive(pair.now, from_a(), &answer).unwrap();
    let result = pair.a.receive(pair.now, from_a(), &answer);
    assert_eq!(result, Err(Ignored::UnknownId), "once is enough");
}

#[test]
fn questions_count_in_the_backlog() {
    let mut pair = Pair::new();
    pair.b.listen(DATAGRAMS, ListenAddress::Any, 1).unwrap();
    pair.a.sidr_ask(pair.now, &question());
    pair.a.sidr_ask(pair.now, &question());
    pair.a_to_b();
    let events = heard(&mut pair.b);
    let [Event::SidrRequest(incoming)] = &events[..] else {
        panic!("{events:?}");
    };
    pair.b.sidr_taken(incoming.sidr).unwrap();
    pair.later(REP_INTERVAL);
    pair.a_to_b();
    assert_eq!(heard(&mut pair.b).len(), 1);
}

#[test]
fn a_program_that_dies_with_a_question_has_it_refused() {
    let (mut pair, a, b) = asked();
    pair.b.sidr_destroy(pair.now, b).unwrap();
    pair.b_to_a();
    assert_eq!(status(&heard(&mut pair.a)), [SidrStatus::REJECTED]);
    assert!(pair.a.sidr_destroy(pair.now, a).is_err());
    assert!(pair.b.sidr_answer(pair.now, b, &YES).is_err());
}

#[test]
fn who_does_not_want_to_know_any_more_is_not_told() {
    let (mut pair, a, b) = asked();
    pair.a.sidr_destroy(pair.now, a).unwrap();
    pair.b.sidr_answer(pair.now, b, &YES).unwrap();
    pair.b_to_a();
    assert_eq!(heard(&mut pair.a), []);
    assert!(pair.a.is_idle());
}
