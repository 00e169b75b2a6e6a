//! Setting up a connection.

use ferroce_cm::message::{Message, Transport};
use ferroce_cm::{
    Accept, CallError, Ece, Event, Gid, Kind, PrivateData, QpParameters, Reason, State, flow_label,
};

use crate::pair::*;

#[test]
fn a_connection_takes_req_rep_and_rtu() {
    let (pair, a, b) = Pair::connected();
    assert_eq!(pair.a.state(a), Some(State::Established));
    assert_eq!(pair.b.state(b), Some(State::Established));
    assert_eq!(pair.a.next_timeout(), None);
    assert_eq!(pair.b.next_timeout(), None);
}

#[test]
fn taking_an_event_moves_the_connection_to_the_mra_state() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &request());
    assert_eq!(pair.a.state(a), Some(State::ReqSent));
    pair.a_to_b();
    let peek = |pair: &Pair, b| pair.b.state(b);
    let Some(Event::Request(incoming)) = pair.b.poll_event() else {
        panic!("no request");
    };
    let b = incoming.conn;
    assert_eq!(peek(&pair, b), Some(State::MraReqSent));
    pair.b.accept(pair.now, b, &Accept::new(B_QPN)).unwrap();
    assert_eq!(peek(&pair, b), Some(State::RepSent));
    pair.b_to_a();
    assert_eq!(pair.a.state(a), Some(State::RepRcvd));
    poll_events(&mut pair.a);
    assert_eq!(pair.a.state(a), Some(State::MraRepSent));
}

#[test]
fn a_req_has_the_values_of_the_kernel() {
    let mut pair = Pair::new();
    let mut params = request();
    params.flow_label = flow_label(40_000, 7174);
    params.retry_count = 9;
    params.rnr_retry_count = 9;
    pair.a.connect(pair.now, &params);
    let mads = sent(&mut pair.a);
    let Message::Req(req) = mads[0].message else {
        panic!("{mads:?}");
    };
    assert_eq!(req.ca_guid, A_GUID);
    assert_eq!(req.service_id, SERVICE);
    assert_eq!(req.qpn, A_QPN);
    assert_eq!(req.transport, Transport::Rc);
    assert_eq!((req.retry_count, req.rnr_retry_count), (7, 7));
    assert_eq!(req.remote_response_timeout, 20);
    assert_eq!(req.local_response_timeout, 20);
    assert_eq!(req.max_cm_retries, 15);
    assert_eq!(req.pkey, 0xffff);
    assert_eq!((req.qkey, req.eecn, req.remote_eecn), (0, 0, 0));
    assert_eq!(req.primary.local_gid, Gid::from(A));
    assert_eq!(req.primary.remote_gid, Gid::from(B));
    assert_eq!(req.primary.local_lid, 0xffff);
    assert_eq!(req.primary.ack_timeout, 17);
    assert_eq!(req.primary.flow_label, (40_000 * 31 + 7174) & 0xf_ffff);
    assert!(!req.primary.subnet_local);
}

#[test]
fn a_path_within_the_subnet_has_lids_of_zero() {
    let mut pair = Pair::new();
    let mut params = request();
    params.hop_limit = 1;
    pair.a.connect(pair.now, &params);
    let Message::Req(req) = sent(&mut pair.a)[0].message else {
        panic!();
    };
    assert_eq!((req.primary.local_lid, req.primary.remote_lid), (0, 0));
    assert!(req.primary.subnet_local);
}

#[test]
fn a_starting_psn_is_the_first_psn_that_its_sender_expects() {
    let (pair, a, b) = Pair::connected();
    let (a, b) = (
        pair.a.qp_parameters(a).unwrap(),
        pair.b.qp_parameters(b).unwrap(),
    );
    assert_eq!(a.rq_psn, b.sq_psn);
    assert_eq!(b.rq_psn, a.sq_psn);
    assert_ne!(a.rq_psn, b.rq_psn);
    assert_eq!((a.local_qpn, a.remote_qpn), (A_QPN, B_QPN));
    assert_eq!((b.local_qpn, b.remote_qpn), (B_QPN, A_QPN));
    assert_eq!((a.timeout, b.timeout), (17, 17));
}

#[test]
fn depths_are_swapped_for_the_receiver() {
    let mut pair = Pair::new();
    let mut params = request();
    params.responder_resources = 3;
    params.initiator_depth = 5;
    let a = pair.a.connect(pair.now, &params);
    pair.a_to_b();
    let Some(Event::Request(incoming)) = pair.b.poll_event() else {
        panic!("no request");
    };
    assert_eq!(incoming.responder_resources, 5);
    assert_eq!(incoming.initiator_depth, 3);
    let mut accept = Accept::new(B_QPN);
    accept.responder_resources = 4;
    accept.initiator_depth = 2;
    accept.rnr_retry_count = 6;
    pair.b.accept(pair.now, incoming.conn, &accept).unwrap();
    pair.b_to_a();
    let Some(Event::Response {
        responder_resources,
        initiator_depth,
        ..
    }) = pair.a.poll_event()
    else {
        panic!("no response");
    };
    assert_eq!((responder_resources, initiator_depth), (2, 4));
    let active = pair.a.qp_parameters(a).unwrap();
    assert_eq!((active.responder_resources, active.initiator_depth), (2, 4));
    assert_eq!(active.rnr_retry_count, 6, "the active side follows the REP");
    let passive = pair.b.qp_parameters(incoming.conn).unwrap();
    assert_eq!(
        (passive.responder_resources, passive.initiator_depth),
        (4, 2)
    );
    assert_eq!(
        passive.rnr_retry_count, 7,
        "the passive side follows the REQ"
    );
}

#[test]
fn private_data_is_delivered_in_both_directions() {
    let mut pair = Pair::new();
    let mut params = request();
    params.private_data.0[36..].fill(0x5a);
    pair.a.connect(pair.now, &params);
    pair.a_to_b();
    let Some(Event::Request(incoming)) = pair.b.poll_event() else {
        panic!("no request");
    };
    assert_eq!(incoming.user_data(), [0x5a; 56]);
    assert_eq!(incoming.ip.unwrap().source_port, 40_000);
    let mut accept = Accept::new(B_QPN);
    accept.private_data = PrivateData::new(b"welcome").unwrap();
    accept.ece = Ece {
        vendor_id: 0x1234,
        options: 7,
    };
    pair.b.accept(pair.now, incoming.conn, &accept).unwrap();
    pair.b_to_a();
    let Some(Event::Response {
        private_data, ece, ..
    }) = pair.a.poll_event()
    else {
        panic!("no response");
    };
    assert_eq!(&private_data[..8], b"welcome\0");
    assert_eq!(ece, accept.ece);
}

#[test]
fn data_establishes_a_connection_if_the_rtu_is_lost() {
    let (mut pair, a, b) = Pair::responded();
    pair.a.establish(a, PrivateData::EMPTY).unwrap();
    assert_eq!(names(&sent(&mut pair.a)), ["RTU"], "not delivered");
    pair.b.communication_established(b).unwrap();
    assert_eq!(poll_events(&mut pair.b), [Event::Established { conn: b }]);
    assert_eq!(pair.b.next_timeout(), None, "the REP is not retransmitted");
    pair.b.communication_established(b).unwrap();
    assert_eq!(poll_events(&mut pair.b), [], "no second event");
}

#[test]
fn the_active_side_of_an_xrc_connection_learns_the_target_qpn() {
    let mut pair = Pair::new();
    let mut params = request();
    params.kind = Kind::Xrc;
    let a = pair.a.connect(pair.now, &params);
    pair.a_to_b();
    let Some(Event::Request(incoming)) = pair.b.poll_event() else {
        panic!("no request");
    };
    assert_eq!(incoming.kind, Kind::Xrc);
    pair.b
        .accept(pair.now, incoming.conn, &Accept::new(B_QPN))
        .unwrap();
    pair.b_to_a();
    assert_eq!(pair.a.qp_parameters(a).unwrap().remote_qpn, B_QPN);
}

#[test]
fn a_node_can_connect_to_itself() {
    let mut pair = Pair::new();
    let address = ferroce_cm::Address {
        local: B,
        remote: B,
    };
    let mut params = ferroce_cm::Request::new(address, 77, A_QPN);
    params.private_data = PrivateData::EMPTY;
    let any = ferroce_cm::ListenAddress::Any;
    pair.b.listen(77, any, 1).unwrap();
    let active = pair.b.connect(pair.now, &params);
    let mut passive = None;
    for _ in 0..6 {
        for mad in sent(&mut pair.b) {
            pair.b.receive(pair.now, address, &mad.encode()).unwrap();
        }
        match pair.b.poll_event() {
            Some(Event::Request(incoming)) => {
                passive = Some(incoming.conn);
                pair.b
                    .accept(pair.now, incoming.conn, &Accept::new(B_QPN))
                    .unwrap();
            }
            Some(Event::Response { conn, .. }) => {
                pair.b.establish(conn, PrivateData::EMPTY).unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(pair.b.state(active), Some(State::Established));
    assert_eq!(pair.b.state(passive.unwrap()), Some(State::Established));
}

#[test]
fn communication_ids_are_random_unique_and_not_zero() {
    let mut pair = Pair::new();
    let mut ids: Vec<u32> = (0..100)
        .map(|_| pair.a.connect(pair.now, &request()).comm_id())
        .collect();
    let near = |w: &[u32]| w[0].abs_diff(w[1]) < 1000;
    assert!(!ids.windows(2).any(near));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100);
    assert!(!ids.contains(&0));
}

#[test]
fn calls_in_the_wrong_state_change_nothing() {
    let (mut pair, a, b) = Pair::requested();
    let state = |s| Err(CallError::State(s));
    let none = PrivateData::EMPTY;
    let accept = Accept::new(B_QPN);
    assert_eq!(pair.a.establish(a, none), state(State::ReqSent));
    assert_eq!(pair.a.accept(pair.now, a, &accept), state(State::ReqSent));
    assert_eq!(
        pair.a.disconnect(pair.now, a, PrivateData::EMPTY),
        state(State::ReqSent)
    );
    assert_eq!(
        pair.a
            .reject(pair.now, a, Reason::CONSUMER, &[], PrivateData::EMPTY),
        state(State::ReqSent)
    );
    assert_eq!(pair.b.establish(b, none), state(State::MraReqSent));
    assert_eq!(
        pair.b.communication_established(b),
        state(State::MraReqSent)
    );
    pair.b.accept(pair.now, b, &accept).unwrap();
    assert_eq!(pair.b.accept(pair.now, b, &accept), state(State::RepSent));
}

#[test]
fn a_connection_that_is_gone_is_unknown() {
    let (mut pair, a, _) = Pair::requested();
    pair.a.destroy(pair.now, a).unwrap();
    assert_eq!(pair.a.destroy(pair.now, a), Err(CallError::Unknown));
    let none = PrivateData::EMPTY;
    assert_eq!(pair.a.establish(a, none), Err(CallError::Unknown));
    assert_eq!(pair.a.state(a), None);
    assert_eq!(pair.a.qp_parameters(a), None::<QpParameters>);
}
