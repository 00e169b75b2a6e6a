//! States, the end of connections, and calls that are refused.

use ferroce_iwarp::mpa::{Params, Role, Rtr};
use ferroce_iwarp::{CLOSE_TIMEOUT, CloseCause, Config, Engine, MAX_INLINE, MAX_SGE, StreamEvent};
use ferroce_objects::{
    Event, QpEvent, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, VerbsError, WcStatus,
};

use crate::host::{BASE, CAP, Host, MSS, PARAMS, exchange, fpdus, pair};

const SEND: SendOp = SendOp::Send { imm: None };
const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;

fn closed(host: &Host, abort: bool, cause: CloseCause) -> StreamEvent {
    StreamEvent::Closed {
        qpn: host.qpn,
        abort,
        cause,
    }
}

// siw: RC queue pairs only.
#[test]
fn other_queue_pair_types_are_refused() {
    let host = Host::new();
    for qp_type in [QpType::Uc, QpType::Ud, QpType::XrcInitiator] {
        let init = ferroce_objects::QpInit {
            qp_type,
            pd: Some(host.pd.clone()),
            send_cq: Some(host.send_cq.clone()),
            recv_cq: Some(host.recv_cq.clone()),
            srq: None,
            xrcd: None,
            cap: CAP,
            sq_sig_all: true,
        };
        let mut engine = Engine::new(Config::default(), host.regions.clone());
        let error = engine.create_qp(&init).unwrap_err();
        assert!(matches!(error, VerbsError::NotSupported(_)), "{error}");
    }
}

// siw: six elements, 80 bytes inline, granted to every queue pair.
#[test]
fn sizes_are_those_of_siw() {
    let host = Host::unconnected(|init| init.cap.max_inline_data = 0);
    let cap = host.engine.query_qp(host.qpn).unwrap().cap;
    assert_eq!((cap.max_inline_data, MAX_INLINE, MAX_SGE), (80, 80, 6));
    let result = std::panic::catch_unwind(|| {
        Host::unconnected(|init| init.cap.max_send_sge = 7);
    });
    assert!(result.is_err());
}

// siw: no atomics, no immediate data, no local operations; a READ has one element.
#[test]
fn operations_that_siw_lacks_are_refused() {
    let mut host = Host::new();
    let (remote_addr, rkey) = (BASE, host.mr.rkey());
    let sges = [host.sge(0, 8)];
    for op in [
        SendOp::Send { imm: Some(1) },
        SendOp::Write {
            remote_addr,
            rkey,
            imm: Some(1),
        },
        SendOp::FetchAdd {
            remote_addr,
            rkey,
            add: 1,
        },
        SendOp::CompareSwap {
            remote_addr,
            rkey,
            compare: 1,
            swap: 2,
        },
        SendOp::AtomicWrite { remote_addr, rkey },
        SendOp::LocalInvalidate { key: rkey },
    ] {
        let error = host.try_post(1, op, SendFlags::empty(), SendData::Sges(&sges));
        assert!(matches!(error, Err(VerbsError::Invalid(_))), "{error:?}");
    }
    let read = SendOp::Read { remote_addr, rkey };
    let two = [sges[0], sges[0]];
    let error = host.try_post(1, read.clone(), SendFlags::empty(), SendData::Sges(&two));
    assert!(error.is_err());
    let error = host.try_post(1, read, SendFlags::INLINE, SendData::Inline(&[1]));
    assert!(error.is_err());
    let error = host.try_post(1, SEND, SendFlags::INLINE, SendData::Inline(&[0; 81]));
    assert_eq!(
        error.unwrap_err().to_string(),
        "invalid argument: 81 bytes of inline data, at most 80 are possible"
    );
    assert!(host.sent().is_empty());
}

// siw: ENOTCONN before the connection; receives may be posted in every state.
#[test]
fn sends_need_a_connection_and_receives_do_not() {
    let mut host = Host::unconnected(|_| ());
    let sges = [host.sge(0, 8)];
    let error = host.try_post(1, SEND, SendFlags::empty(), SendData::Sges(&sges));
    assert!(
        matches!(error, Err(VerbsError::NotConnected(_))),
        "{error:?}"
    );
    host.post_recv(1, 0, 100);
}

// siw: queue pairs get ready by the connection, RTR by a verb changes nothing.
#[test]
fn verbs_do_not_connect() {
    let mut host = Host::unconnected(|_| ());
    host.modify(QpState::Rtr).unwrap();
    assert_eq!(host.state(), QpState::Init);
    assert!(host.modify(QpState::Rts).is_err());
    host.engine
        .connect(host.now, host.qpn, PARAMS, MSS)
        .unwrap();
    assert_eq!(host.state(), QpState::Rts);
    host.modify(QpState::Rts).unwrap();
    let again = host.engine.connect(host.now, host.qpn, PARAMS, MSS);
    assert!(again.is_err(), "one connection at a time");
}

// siw: a state that only a connection can give is accepted and ignored; ERR is left by RESET only.
#[test]
fn states_without_a_connection_are_accepted_and_ignored() {
    let mut host = Host::unconnected(|_| ());
    host.modify(QpState::Reset).unwrap();
    for state in [QpState::Rtr, QpState::Sqd] {
        host.modify(state).unwrap();
        assert_eq!(host.state(), QpState::Reset);
    }
    host.modify(QpState::Init).unwrap();
    host.modify(QpState::Sqd).unwrap();
    assert_eq!(host.state(), QpState::Init);
    host.modify(QpState::Err).unwrap();
    host.modify(QpState::Init).unwrap();
    assert_eq!(host.state(), QpState::Err);
    host.modify(QpState::Reset).unwrap();
    host.engine
        .connect(host.now, host.qpn, PARAMS, MSS)
        .unwrap();
    assert_eq!(host.state(), QpState::Rts);
}

#[test]
fn full_send_queue_refuses_posts() {
    let mut host = Host::new();
    for wr_id in 0..u64::from(CAP.max_send_wr) {
        host.post(wr_id, SEND, 0, 8);
    }
    let sges = [host.sge(0, 8)];
    let error = host.try_post(99, SEND, SendFlags::empty(), SendData::Sges(&sges));
    assert!(matches!(error, Err(VerbsError::NoMemory(_))));
}

// siw: rdma_disconnect moves to SQD, flushes receives and closes TCP in order.
#[test]
fn disconnect_sends_started_messages_and_shuts_down() {
    let (mut a, mut b) = pair(false);
    a.stream_events();
    b.stream_events();
    a.post_recv(7, 0, 10);
    b.post_recv(1, 0x1000, 10_000);
    b.post_recv(8, 0x1000, 10_000);
    a.post(2, SEND, 0, 5000);
    a.post(3, SEND, 0, 10);
    let mut sent = a.send_up_to(1448 + 100);
    a.modify(QpState::Sqd).unwrap();
    assert_eq!(a.state(), QpState::Sqd);
    assert_eq!(a.receives(), [(7, FLUSHED)]);
    let sges = [a.sge(0, 8)];
    let error = a.try_post(9, SEND, SendFlags::empty(), SendData::Sges(&sges));
    assert!(matches!(error, Err(VerbsError::NotConnected(_))));
    sent.extend(a.send_all());
    let qpn = a.qpn;
    assert_eq!(a.stream_events(), [StreamEvent::Shutdown { qpn }]);
    b.receive(&sent);
    // Both messages were in the output when the program disconnected.
    assert_eq!(b.receives(), [(1, OK), (8, OK)]);
    b.engine.end_of_stream(b.now, b.qpn);
    assert_eq!(b.state(), QpState::Err);
    let peer = closed(&b, false, CloseCause::Peer);
    assert_eq!(b.stream_events(), [peer]);
    a.engine.end_of_stream(a.now, a.qpn);
    let program = closed(&a, false, CloseCause::Program);
    assert_eq!(a.stream_events(), [program]);
    assert_eq!(a.sends(), [(2, OK), (3, OK)]);
    assert_eq!(a.state(), QpState::Err);
}

// siw hands messages to TCP when they are posted, so a disconnect does not lose them.
#[test]
fn disconnect_sends_messages_that_were_posted_before() {
    let (mut a, mut b) = pair(false);
    a.stream_events();
    for wr_id in 1..=3 {
        b.post_recv(wr_id, 0x1000, 10_000);
        a.post(wr_id, SEND, 0, 5000);
    }
    a.engine.disconnect(a.now, a.qpn).unwrap();
    assert_eq!((a.stream_events(), a.sends()), (vec![], vec![]));
    // The socket has room for little at a time.
    let mut sent = a.send_up_to(700);
    assert_eq!((a.stream_events(), a.sends()), (vec![], vec![]));
    sent.extend(a.send_all());
    assert_eq!(a.stream_events(), [StreamEvent::Shutdown { qpn: a.qpn }]);
    assert_eq!(a.sends(), [(1, OK), (2, OK), (3, OK)]);
    b.receive(&sent);
    assert_eq!(b.receives(), [(1, OK), (2, OK), (3, OK)]);
}

// A Read needs an answer, which this end no longer receives.
#[test]
fn disconnect_flushes_from_the_first_read_on() {
    let mut host = Host::new();
    host.stream_events();
    host.post(1, SEND, 0, 10);
    let read = SendOp::Read {
        remote_addr: 0,
        rkey: 1,
    };
    host.post(2, read, 0, 10);
    host.post(3, SEND, 0, 10);
    host.engine.disconnect(host.now, host.qpn).unwrap();
    assert_eq!(host.sent().len(), 1);
    assert_eq!(host.sends(), [(1, OK), (2, FLUSHED), (3, FLUSHED)]);
    let qpn = host.qpn;
    assert_eq!(host.stream_events(), [StreamEvent::Shutdown { qpn }]);
}

#[test]
fn disconnect_flushes_a_fence_behind_an_outstanding_read() {
    let mut host = Host::new();
    host.stream_events();
    let read = SendOp::Read {
        remote_addr: 0,
        rkey: 1,
    };
    host.post(1, read, 0, 10);
    let sges = [host.sge(0, 8)];
    host.try_post(2, SEND, SendFlags::FENCE, SendData::Sges(&sges))
        .unwrap();
    assert_eq!(host.sent().len(), 1);
    host.engine.disconnect(host.now, host.qpn).unwrap();
    assert_eq!(host.sent(), []);
    assert_eq!(host.sends(), [(1, FLUSHED), (2, FLUSHED)]);
    let qpn = host.qpn;
    assert_eq!(host.stream_events(), [StreamEvent::Shutdown { qpn }]);
}

// A slow peer is not a dead one: the timeout begins anew with each byte that TCP accepts.
#[test]
fn disconnect_waits_while_the_socket_accepts_bytes() {
    let mut host = Host::new();
    host.post(1, SEND, 0, 5000);
    host.engine.disconnect(host.now, host.qpn).unwrap();
    for _ in 0..5 {
        assert_eq!(
            host.engine.next_timeout(),
            Some(host.now + CLOSE_TIMEOUT),
            "from the last byte on"
        );
        host.now = host.now + CLOSE_TIMEOUT / 2;
        assert_eq!(host.send_up_to(500).len(), 500);
    }
    host.send_all();
    assert_eq!(host.sends(), [(1, OK)]);
}

// Nothing waits for ever: a peer that does not close is reset.
#[test]
fn peer_that_does_not_close_is_reset_after_the_timeout() {
    let mut host = Host::new();
    host.stream_events();
    host.engine.disconnect(host.now, host.qpn).unwrap();
    let deadline = host.engine.next_timeout().unwrap();
    assert_eq!(deadline, host.now + CLOSE_TIMEOUT);
    host.engine.handle_timeout(deadline);
    let events = host.stream_events();
    assert_eq!(events[1], closed(&host, true, CloseCause::TimedOut));
    assert_eq!(host.engine.next_timeout(), None);
    assert!(host.engine.disconnect(host.now, host.qpn).is_err());
}

// An initiator that never sends its RTR frame does not hold the responder for ever.
#[test]
fn missing_rtr_frame_ends_the_connection() {
    let mut host = Host::with(Params {
        role: Role::Responder,
        rtr: Some(Rtr::Write),
        ..PARAMS
    });
    host.post_recv(1, 0, 10);
    let deadline = host.engine.next_timeout().unwrap();
    host.engine.handle_timeout(deadline);
    assert_eq!(
        host.stream_events(),
        [closed(&host, true, CloseCause::TimedOut)]
    );
    assert_eq!(host.receives(), [(1, FLUSHED)]);
}

#[test]
fn end_of_stream_in_the_middle_of_a_message_is_a_loss() {
    let (mut a, mut b) = pair(false);
    b.stream_events();
    b.post_recv(1, 0x1000, 10_000);
    a.post(1, SEND, 0, 5000);
    let bytes = a.send_all();
    for cut in [1, 100, 1448, 1449, bytes.len() - 1] {
        let (_, mut b) = pair(false);
        b.stream_events();
        b.post_recv(1, 0x1000, 10_000);
        b.receive(&bytes[..cut]);
        b.engine.end_of_stream(b.now, b.qpn);
        assert_eq!(
            b.stream_events(),
            [closed(&b, true, CloseCause::Lost)],
            "{cut}"
        );
        assert_eq!(b.receives(), [(1, FLUSHED)]);
    }
}

#[test]
fn reset_flushes_both_queues_in_order() {
    let mut host = Host::new();
    host.stream_events();
    host.post_recv(1, 0, 10);
    host.post_recv(2, 0, 10);
    host.post(3, SEND, 0, 10);
    host.post(4, SEND, 0, 10);
    host.engine.reset(host.now, host.qpn);
    assert_eq!(host.sends(), [(3, FLUSHED), (4, FLUSHED)]);
    assert_eq!(host.receives(), [(1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(
        host.stream_events(),
        [closed(&host, true, CloseCause::Lost)]
    );
    host.post(5, SEND, 0, 10);
    host.post_recv(6, 0, 10);
    assert_eq!(
        (host.sends(), host.receives()),
        (vec![(5, FLUSHED)], vec![(6, FLUSHED)])
    );
    host.receive(&[0; 100]);
    assert!(host.sent().is_empty(), "the stream is gone");
}

#[test]
fn err_and_reset_by_verbs_end_the_stream() {
    let mut host = Host::new();
    host.stream_events();
    host.post(1, SEND, 0, 10);
    host.modify(QpState::Err).unwrap();
    assert_eq!(host.sends(), [(1, FLUSHED)]);
    assert!(host.sent().is_empty());
    assert_eq!(
        host.stream_events(),
        [StreamEvent::Shutdown { qpn: host.qpn }]
    );
    host.modify(QpState::Reset).unwrap();
    assert_eq!(
        host.stream_events(),
        [closed(&host, true, CloseCause::Program)]
    );
    assert_eq!(host.engine.next_timeout(), None);
    host.modify(QpState::Init).unwrap();
    host.engine
        .connect(host.now, host.qpn, PARAMS, MSS)
        .unwrap();
    host.post(2, SEND, 0, 10);
    assert_eq!(
        fpdus(&host.send_all()).len(),
        1,
        "the next connection works"
    );
    assert_eq!(host.sends(), [(2, OK)]);
}

#[test]
fn destroyed_queue_pair_closes_its_stream() {
    let mut host = Host::new();
    host.stream_events();
    host.post(1, SEND, 0, 10);
    host.engine.destroy_qp(host.now, host.qpn).unwrap();
    assert_eq!(
        host.stream_events(),
        [closed(&host, false, CloseCause::Program)]
    );
    assert_eq!(host.sends(), []);
    assert_eq!(host.engine.poll_ready(), None);
    assert!(host.engine.query_qp(host.qpn).is_err());
    assert_eq!(host.engine.qpns().count(), 0);
}

#[test]
fn overflow_of_a_completion_queue_fails_the_queue_pair() {
    let small = ferroce_objects::Cq::new(5, 1).unwrap();
    let mut a = Host::unconnected(|init| init.send_cq = Some(small.clone()));
    a.engine.connect(a.now, a.qpn, PARAMS, MSS).unwrap();
    a.post(1, SEND, 0, 10);
    a.post(2, SEND, 0, 10);
    a.send_all();
    assert_eq!(a.state(), QpState::Err);
    let events = a.events();
    assert!(events.contains(&Event::CqError { cq: 5 }));
    assert!(events.contains(&Event::Qp {
        qpn: a.qpn,
        kind: QpEvent::Fatal
    }));
}

#[test]
fn queue_pair_numbers_are_not_reused_at_once() {
    let host = Host::new();
    let mut engine = Engine::new(
        Config {
            qpns: 10..13,
            ..Config::default()
        },
        host.regions.clone(),
    );
    let init = ferroce_objects::QpInit {
        qp_type: QpType::Rc,
        pd: Some(host.pd.clone()),
        send_cq: Some(host.send_cq.clone()),
        recv_cq: Some(host.recv_cq.clone()),
        srq: None,
        xrcd: None,
        cap: CAP,
        sq_sig_all: true,
    };
    assert_eq!(engine.create_qp(&init).unwrap().0, 10);
    engine.destroy_qp(host.now, 10).unwrap();
    assert_eq!(engine.create_qp(&init).unwrap().0, 11);
    assert_eq!(engine.create_qp(&init).unwrap().0, 12);
    assert_eq!(engine.create_qp(&init).unwrap().0, 10);
    assert!(matches!(
        engine.create_qp(&init),
        Err(VerbsError::NoMemory(_))
    ));
    assert!(engine.destroy_qp(host.now, 9).is_err());
    let wr = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    assert!(engine.post_recv(host.now, 99, &wr).is_err());
}

#[test]
fn both_ends_flush_when_one_disconnects_without_traffic() {
    let (mut a, mut b) = pair(true);
    a.stream_events();
    a.post_recv(1, 0, 10);
    b.post_recv(2, 0, 10);
    a.engine.disconnect(a.now, a.qpn).unwrap();
    exchange(&mut a, &mut b);
    assert_eq!(a.stream_events(), [StreamEvent::Shutdown { qpn: a.qpn }]);
    b.engine.end_of_stream(b.now, b.qpn);
    assert_eq!(
        (a.receives(), b.receives()),
        (vec![(1, FLUSHED)], vec![(2, FLUSHED)])
    );
}
