//! Queue pair states: SQD and draining, SQE, ERR and RESET.

use ferroce_roce::{
    AttrMask, Drop, QpAttr, QpEvent, QpState, QpType, Received, RecvWr, SendOp, VerbsError,
    WcStatus,
};
use ferroce_wire::Psn;

use crate::pair::{Knobs, Pair, wr};
use crate::shorthand::INBOX;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;

fn to(state: QpState) -> QpAttr {
    QpAttr {
        state,
        ..Knobs::default().attr
    }
}

fn move_to(pair: &mut Pair, side: usize, state: QpState) {
    pair.modify(side, &to(state), AttrMask::STATE);
}

/// Moves host 0 to SQD, with or without SQ_DRAINED enabled.
fn drain(pair: &mut Pair, notify: bool) {
    let mut attr = to(QpState::Sqd);
    attr.en_sqd_async_notify = notify;
    let mut mask = AttrMask::STATE;
    mask.set(AttrMask::EN_SQD_ASYNC_NOTIFY, notify);
    pair.modify(0, &attr, mask);
}

fn refused(pair: &mut Pair, state: QpState) -> bool {
    let host = &mut pair.hosts[0];
    let result = host
        .engine
        .modify_qp(pair.now, host.qpn, &to(state), AttrMask::STATE);
    matches!(result, Err(VerbsError::Invalid(_)))
}

#[test]
fn sqd_finishes_started_sends_and_holds_the_rest() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    pair.write(2, 20_000);
    pair.write(3, 100);
    pair.flush_some(0, 5);
    drain(&mut pair, true);
    pair.write(4, 100);
    assert!(pair.hosts[0].query().attr.sq_draining);
    assert_eq!(pair.hosts[0].qp_events(), []);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert!(pair.was_written(20_000));
    assert!(!pair.hosts[0].query().attr.sq_draining);
    assert_eq!(pair.hosts[0].qp_events(), [QpEvent::SqDrained]);
    assert_eq!(pair.hosts[0].state(), QpState::Sqd);
    move_to(&mut pair, 0, QpState::Rts);
    pair.run();
    assert_eq!(pair.done(0), [(3, OK), (4, OK)]);
}

#[test]
fn sqd_waits_for_retransmissions_and_reads() {
    let mut pair = Pair::rc();
    pair.read(1, 5000);
    pair.write(2, 5000);
    pair.run_losing(|_| true);
    drain(&mut pair, true);
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert_eq!(pair.hosts[0].qp_events(), [QpEvent::SqDrained]);
}

#[test]
fn an_idle_send_queue_is_drained_at_once() {
    let mut pair = Pair::rc();
    drain(&mut pair, true);
    pair.run();
    assert_eq!(pair.hosts[0].qp_events(), [QpEvent::SqDrained]);
}

#[test]
fn sq_drained_is_raised_only_if_enabled() {
    let mut pair = Pair::rc();
    drain(&mut pair, true);
    move_to(&mut pair, 0, QpState::Rts);
    drain(&mut pair, false);
    pair.run();
    assert_eq!(
        pair.hosts[0].qp_events(),
        [QpEvent::SqDrained],
        "only when enabled"
    );
    move_to(&mut pair, 0, QpState::Rts);
    pair.assert_connected();
}

#[test]
fn draining_queue_pair_can_only_move_to_err_or_reset() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    pair.run_losing(|_| true);
    drain(&mut pair, false);
    assert!(refused(&mut pair, QpState::Rts));
    assert!(refused(&mut pair, QpState::Sqd));
    move_to(&mut pair, 0, QpState::Err);
    assert_eq!(pair.done(0), [(1, FLUSHED)]);
}

#[test]
fn queue_pair_receives_in_sqd() {
    let mut pair = Pair::rc();
    move_to(&mut pair, 1, QpState::Sqd);
    pair.recv(7, 100);
    pair.send(1, 100);
    pair.read(2, 100);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert_eq!(pair.done(1), [(7, OK)]);
}

#[test]
fn attributes_can_change_in_sqd() {
    let mut pair = Pair::rc();
    drain(&mut pair, false);
    let attr = QpAttr {
        retry_cnt: 0,
        timeout: 5,
        ..Knobs::default().attr
    };
    pair.modify(0, &attr, AttrMask::RETRY_CNT | AttrMask::TIMEOUT);
    move_to(&mut pair, 0, QpState::Rts);
    pair.write(1, 100);
    pair.run_losing(|_| true);
    assert_eq!(pair.next_timer(), Some(pair.now.after_nanos(4096 << 5)));
    pair.expire_ack_timeout();
    assert_eq!(pair.done(0), [(1, WcStatus::RetryExceeded)]);
}

#[test]
fn err_flushes_each_queue_in_order_and_later_posts() {
    let mut pair = Pair::rc();
    pair.write(1, 20_000);
    pair.read(2, 100);
    pair.write(3, 100);
    for wr_id in 7..10 {
        let sge = pair.hosts[0].sge(INBOX, 100);
        pair.post_recv(0, wr_id, &[sge]);
    }
    pair.flush_some(0, 3);
    move_to(&mut pair, 0, QpState::Err);
    let done = pair.done(0);
    assert_eq!(done[..3], [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]);
    assert_eq!(done[3..], [(7, FLUSHED), (8, FLUSHED), (9, FLUSHED)]);
    pair.write(4, 100);
    let sge = pair.hosts[0].sge(INBOX, 100);
    pair.post_recv(0, 10, &[sge]);
    assert_eq!(pair.done(0), [(4, FLUSHED), (10, FLUSHED)]);
    pair.trace();
    pair.flush(0);
    assert_eq!(pair.trace(), [""; 0], "nothing is sent in ERR");
    assert!(!pair.hosts[0].query().attr.sq_draining);
}

#[test]
fn flushed_unsignaled_sends_complete_too() {
    let mut pair = Pair::with(|knobs| knobs.sig_all = false);
    pair.write(1, 100);
    pair.write(2, 100);
    move_to(&mut pair, 0, QpState::Err);
    assert_eq!(pair.done(0), [(1, FLUSHED), (2, FLUSHED)]);
}

#[test]
fn packets_are_dropped_in_err() {
    let mut pair = Pair::rc();
    move_to(&mut pair, 1, QpState::Err);
    pair.write(1, 100);
    let packet = pair.take(0).remove(0);
    assert_eq!(pair.deliver(&packet), Received::Dropped(Drop::WrongState));
    pair.flush(1);
    assert!(pair.wire.is_empty());
}

#[test]
fn reset_empties_the_queues_without_completions() {
    let mut pair = Pair::rc();
    pair.write(1, 20_000);
    pair.read(2, 100);
    pair.recv(7, 5000);
    pair.recv(8, 5000);
    pair.flush_some(0, 3);
    let old = pair.wire.pop_front().unwrap();
    move_to(&mut pair, 0, QpState::Reset);
    move_to(&mut pair, 1, QpState::Reset);
    pair.wire.clear();
    pair.trace();
    assert_eq!(pair.deliver(&old), Received::Dropped(Drop::WrongState));
    pair.run_until_idle();
    assert_eq!((pair.done(0), pair.done(1)), (vec![], vec![]));
    assert_eq!(pair.trace(), [""; 0]);
    let query = pair.hosts[1].query();
    assert_eq!((query.sends, query.receives), (0, 0));
}

#[test]
fn reset_drops_queued_responses_and_notifications() {
    let mut pair = Pair::rc();
    pair.read(1, 100);
    let mut request = pair.take(0).remove(0);
    request.path.traffic_class = 3; // a congestion mark: a CNP is queued besides the data
    pair.deliver(&request);
    move_to(&mut pair, 1, QpState::Reset);
    assert!(pair.take(1).is_empty());
}

#[test]
fn fault_reported_after_reset_changes_nothing() {
    let mut pair = Pair::rc();
    pair.read(1, 100);
    let request = pair.take(0).remove(0);
    pair.deliver(&request);
    let mut batch = ferroce_roce::Batch::new(1, ferroce_roce::RunLimits::NONE);
    pair.hosts[1].engine.poll_transmit(pair.now, &mut batch);
    move_to(&mut pair, 1, QpState::Reset);
    batch.fault(0, ferroce_roce::Fault::host(0));
    pair.hosts[1].engine.finish_transmit(pair.now, &mut batch);
    assert_eq!(pair.hosts[1].state(), QpState::Reset);
}

#[test]
fn batch_finished_after_reset_completes_no_new_sends() {
    let knobs = Knobs {
        qp_type: QpType::Uc,
        ..Knobs::default()
    };
    let mut pair = Pair::new(&knobs);
    pair.write(1, 3000);
    let mut batch = ferroce_roce::Batch::new(64, ferroce_roce::RunLimits::NONE);
    pair.hosts[0].engine.poll_transmit(pair.now, &mut batch);
    move_to(&mut pair, 0, QpState::Reset);
    move_to(&mut pair, 1, QpState::Reset);
    pair.connect(&knobs);
    pair.write(2, 100);
    pair.hosts[0].engine.finish_transmit(pair.now, &mut batch);
    assert_eq!(pair.done(0), []);
    pair.run();
    assert_eq!(pair.done(0), [(2, OK)]);
}

#[test]
fn after_reset_a_queue_pair_works_with_new_psns() {
    for through_error in [false, true] {
        let mut pair = Pair::rc();
        pair.recv(7, 5000);
        pair.send(1, 3000);
        pair.read(2, 3000);
        pair.run_losing(|sent| sent.psn() == 1001);
        for side in 0..2 {
            if through_error {
                move_to(&mut pair, side, QpState::Err);
            }
            move_to(&mut pair, side, QpState::Reset);
        }
        pair.done(0);
        pair.done(1);
        let mut knobs = Knobs::default();
        knobs.attr.sq_psn = Psn::new(77);
        knobs.attr.rq_psn = Psn::new(77);
        pair.connect(&knobs);
        pair.trace();
        pair.recv(9, 5000);
        pair.send(3, 3000);
        pair.run_until_idle();
        assert_eq!((pair.done(0), pair.done(1)), (vec![(3, OK)], vec![(9, OK)]));
        assert_eq!(pair.trace()[..2], ["SEND_FIRST 77", "SEND_MIDDLE 78"]);
        assert!(pair.was_received(3000));
        pair.assert_connected();
    }
}

#[test]
fn posts_in_the_wrong_state_are_refused() {
    let knobs = Knobs::default();
    let mut pair = Pair::unconnected(&knobs);
    let invalid = |result: Result<(), VerbsError>| matches!(result, Err(VerbsError::Invalid(_)));
    let now = pair.now;
    let host = &mut pair.hosts[0];
    let receive = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    assert!(
        invalid(host.engine.post_recv(now, host.qpn, &receive)),
        "RESET"
    );
    let send = || wr(1, SendOp::Send { imm: None }, &[]);
    assert!(
        invalid(host.engine.post_send(now, host.qpn, send())),
        "RESET"
    );
    pair.bring_to_rtr(0, &knobs);
    let host = &mut pair.hosts[0];
    assert!(host.engine.post_recv(now, host.qpn, &receive).is_ok());
    assert!(invalid(host.engine.post_send(now, host.qpn, send())), "RTR");
    pair.bring_to_rts(0, &knobs);
    let host = &mut pair.hosts[0];
    assert!(host.engine.post_send(now, host.qpn, send()).is_ok());
    let unknown = host.engine.post_send(now, 0x999, send());
    assert!(matches!(unknown, Err(VerbsError::NotFound(_))));
}

#[test]
fn a_refused_transition_changes_nothing() {
    let mut pair = Pair::rc();
    for state in [QpState::Init, QpState::Rtr, QpState::Sqe] {
        assert!(refused(&mut pair, state), "{state:?}");
    }
    pair.assert_connected();
    let mut pair = Pair::unconnected(&Knobs::default());
    for state in [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
        assert!(refused(&mut pair, state), "{state:?}");
    }
}

#[test]
fn full_queues_refuse_more_until_something_completes() {
    let mut pair = Pair::with(|knobs| {
        knobs.cap.max_send_wr = 2;
        knobs.cap.max_recv_wr = 2;
    });
    let full = |result| matches!(result, Err(VerbsError::NoMemory(_)));
    pair.send(1, 100);
    pair.send(2, 100);
    let now = pair.now;
    let send = wr(3, SendOp::Send { imm: None }, &[]);
    let host = &mut pair.hosts[0];
    assert!(full(host.engine.check_send(host.qpn, &send, 0)));
    assert!(full(host.engine.post_send(now, host.qpn, send.clone())));
    pair.recv(7, 100);
    pair.recv(8, 100);
    let host = &mut pair.hosts[1];
    let receive = RecvWr {
        wr_id: 9,
        sges: &[],
    };
    assert!(full(host.engine.post_recv(now, host.qpn, &receive)));
    pair.run();
    let host = &mut pair.hosts[0];
    for (ahead, fits) in [(0, true), (1, true), (2, false)] {
        let checked = host.engine.check_send(host.qpn, &send, ahead);
        assert_eq!(checked.is_ok(), fits, "after {ahead} others");
    }
    assert!(host.engine.post_send(now, host.qpn, send).is_ok());
    let host = &mut pair.hosts[1];
    assert!(host.engine.post_recv(now, host.qpn, &receive).is_ok());
}

#[test]
fn failed_datagram_moves_to_sqe_and_rts_resumes_sending() {
    let mut pair = Pair::with(|knobs| knobs.qp_type = QpType::Ud);
    pair.datagram(1, 100);
    pair.datagram(2, 1025);
    pair.datagram(3, 100);
    pair.run();
    let long = WcStatus::LocalLength;
    assert_eq!(pair.done(0), [(1, OK), (2, long), (3, FLUSHED)]);
    assert_eq!(pair.hosts[0].state(), QpState::Sqe);
    pair.datagram(4, 100);
    assert_eq!(
        pair.done(0),
        [(4, FLUSHED)],
        "SQE flushes sends until the program moves to RTS"
    );
    move_to(&mut pair, 0, QpState::Rts);
    pair.datagram(5, 100);
    pair.run();
    assert_eq!(pair.done(0), [(5, OK)]);
}

#[test]
fn failed_uc_send_moves_to_sqe_and_receiving_continues() {
    let mut pair = Pair::with(|knobs| knobs.qp_type = QpType::Uc);
    pair.write(1, 100);
    let op = pair.write_op(None);
    let bad = ferroce_roce::Sge {
        lkey: 1,
        ..pair.hosts[0].sge(0, 100)
    };
    pair.post(0, wr(2, op, &[bad]));
    pair.write(3, 100);
    pair.run();
    let protection = WcStatus::LocalProtection;
    assert_eq!(pair.done(0), [(1, OK), (2, protection), (3, FLUSHED)]);
    assert_eq!(pair.hosts[0].state(), QpState::Sqe);
    let sge = pair.hosts[0].sge(INBOX, 100);
    pair.post_recv(0, 9, &[sge]);
    let sge = pair.hosts[1].sge(0, 100);
    pair.post(1, wr(5, SendOp::Send { imm: None }, &[sge]));
    pair.run();
    assert_eq!(pair.done(0), [(9, OK)], "receiving goes on");
    move_to(&mut pair, 0, QpState::Rts);
    pair.write(6, 2000);
    pair.run();
    assert_eq!(pair.done(0), [(6, OK)]);
    assert!(pair.was_written(2000));
}
