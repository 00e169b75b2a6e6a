//! Receives, their completions and notifications, and shared receive queues.

use std::sync::Arc;

use ferroce_roce::{
    Arm, Event, QpEvent, QpState, RecvWr, SendFlags, SendOp, Srq, SrqInit, VerbsError, WcFlags,
    WcOpcode, WcStatus,
};

use crate::pair::{BASE, Host, Knobs, Pair};
use crate::shorthand::INBOX;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;

#[test]
fn message_longer_than_its_receive_is_a_local_length_error() {
    for (length, buffer, nak) in [(3000, 2000, 1001), (100, 99, 1000), (1, 0, 1000)] {
        let mut pair = Pair::rc();
        pair.recv(7, buffer);
        pair.recv(8, 5000);
        pair.send(1, length);
        pair.send(2, 100);
        pair.run();
        let refused = WcStatus::RemoteInvalidRequest;
        assert_eq!(pair.done(0), [(1, refused), (2, FLUSHED)]);
        assert_eq!(pair.done(1), [(7, WcStatus::LocalLength), (8, FLUSHED)]);
        assert_eq!(pair.states(), [QpState::Err; 2]);
        assert!(pair.trace().contains(&format!("NAK 61 {nak}")));
        let so_far = length.min((nak - 999) * 1024);
        assert_eq!(
            pair.hosts[1].failure_reason(),
            format!("message of {so_far} bytes or more for a receive buffer of {buffer}")
        );
    }
}

#[test]
fn message_of_exactly_the_receive_length_fits() {
    for length in [0, 1, 1024, 2048, 3001] {
        let mut pair = Pair::rc();
        pair.recv(7, length);
        pair.send(1, length);
        pair.run();
        assert_eq!((pair.done(0), pair.done(1)), (vec![(1, OK)], vec![(7, OK)]));
        assert!(pair.was_received(length as usize));
    }
}

#[test]
fn a_message_is_scattered_over_the_elements_of_its_receive() {
    let mut pair = Pair::rc();
    let host = &pair.hosts[1];
    let sges = [
        host.sge(INBOX, 700),
        host.sge(INBOX + 0x1000, 0),
        host.sge(INBOX + 0x2000, 1),
        host.sge(INBOX + 0x3000, 5000),
    ];
    pair.post_recv(1, 7, &sges);
    pair.send(1, 3000);
    pair.run();
    let ram = &pair.hosts[1].ram;
    let mut got = ram.get(BASE + INBOX, 700);
    got.extend(ram.get(BASE + INBOX + 0x2000, 1));
    got.extend(ram.get(BASE + INBOX + 0x3000, 2299));
    assert_eq!(got, pair.hosts[0].ram.get(BASE, 3000));
}

#[test]
fn receives_are_taken_in_the_order_they_were_posted() {
    let mut pair = Pair::rc();
    for wr_id in 0..10 {
        pair.recv(100 + wr_id, 2000);
        pair.send(wr_id, 1500);
    }
    pair.run();
    let ids: Vec<u64> = pair.done(1).iter().map(|done| done.0).collect();
    assert_eq!(ids, (100..110).collect::<Vec<u64>>());
}

#[test]
fn receive_completions_have_opcode_length_flags_and_immediate() {
    let mut pair = Pair::rc();
    let (write, write_imm) = (pair.write_op(None), pair.write_op(Some(0x0a0b_0c0d)));
    for wr_id in 0..4 {
        pair.recv(wr_id, 5000);
    }
    pair.post_op(1, SendOp::Send { imm: None }, 0, 3000);
    pair.post_op(
        2,
        SendOp::Send {
            imm: Some(0x0102_0304),
        },
        0,
        10,
    );
    pair.post_op(3, write, 0, 2000);
    pair.post_op(4, write_imm, 0, 2001);
    pair.run();
    let got = pair.hosts[1].completions();
    let peer = pair.hosts[0].qpn;
    for wc in &got {
        assert_eq!(wc.status, OK);
        assert_eq!((wc.qpn, wc.src_qp), (pair.hosts[1].qpn, peer));
    }
    let seen: Vec<_> = got
        .iter()
        .map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.flags, wc.imm))
        .collect();
    // rxe sets GRH for all receives, and async-rdma compares all flags.
    let imm = WcFlags::GRH | WcFlags::WITH_IMM;
    assert_eq!(
        seen,
        [
            (0, WcOpcode::Recv, 3000, WcFlags::GRH, 0),
            (1, WcOpcode::Recv, 10, imm, 0x0102_0304),
            (2, WcOpcode::RecvRdmaWithImm, 2001, imm, 0x0a0b_0c0d),
        ]
    );
    assert_eq!(
        pair.hosts[1].query().receives,
        1,
        "the plain WRITE took no receive"
    );
}

#[test]
fn immediate_data_keeps_its_byte_order() {
    let mut pair = Pair::rc();
    pair.recv(7, 0);
    pair.post_op(
        1,
        SendOp::Send {
            imm: Some(u32::from_ne_bytes(*b"abcd")),
        },
        0,
        0,
    );
    pair.run();
    let packet = &pair.log[0];
    assert_eq!(packet.bytes[12..16], *b"abcd");
    assert_eq!(pair.hosts[1].completions()[0].imm.to_ne_bytes(), *b"abcd");
}

/// Returns the number of notifications of host 1's completion queue.
fn notifications(pair: &Pair) -> usize {
    let call = |event: &&Event| matches!(event, Event::CqNotify { cq: 2 });
    pair.hosts[1].events.iter().filter(call).count()
}

#[test]
fn cq_armed_for_solicited_is_not_notified_of_other_completions() {
    let mut pair = Pair::rc();
    for wr_id in 0..9 {
        pair.recv(wr_id, 5000);
    }
    pair.hosts[1].cq.arm(Arm::Solicited);
    pair.send(1, 3000);
    let write = pair.write_op(None);
    pair.post_op_with_flags(2, write, 0, 10, SendFlags::SOLICITED);
    pair.run();
    assert_eq!(notifications(&pair), 0);
    pair.post_op_with_flags(3, SendOp::Send { imm: None }, 0, 3000, SendFlags::SOLICITED);
    pair.run();
    assert_eq!(notifications(&pair), 1);
    pair.post_op_with_flags(4, SendOp::Send { imm: None }, 0, 3000, SendFlags::SOLICITED);
    pair.run();
    assert_eq!(notifications(&pair), 1, "one notification per arm");
    pair.hosts[1].cq.arm(Arm::Solicited);
    let write = pair.write_op(Some(1));
    pair.post_op_with_flags(5, write, 0, 10, SendFlags::SOLICITED);
    pair.run();
    assert_eq!(notifications(&pair), 2);
}

#[test]
fn cq_armed_for_solicited_is_notified_of_errors() {
    let mut pair = Pair::rc();
    pair.recv(7, 100);
    pair.hosts[1].cq.arm(Arm::Solicited);
    let error = ferroce_roce::QpAttr {
        state: QpState::Err,
        ..Knobs::default().attr
    };
    pair.modify(1, &error, ferroce_roce::AttrMask::STATE);
    pair.run();
    assert_eq!(pair.done(1), [(7, FLUSHED)]);
    assert_eq!(notifications(&pair), 1);
}

#[test]
fn cq_overflow_moves_the_queue_pair_to_err() {
    let mut pair = Pair::with(|knobs| {
        knobs.cqe = 3;
        knobs.sig_all = false;
    });
    for wr_id in 0..5 {
        pair.recv(wr_id, 100);
        pair.send(wr_id, 100);
    }
    pair.run();
    assert_eq!(
        pair.done(1),
        [(0, OK), (1, OK), (2, OK)],
        "completions before the overflow stay"
    );
    assert_eq!(pair.hosts[1].state(), QpState::Err);
    assert!(pair.hosts[1].events.contains(&Event::CqError { cq: 2 }));
    assert!(pair.hosts[1].qp_events().contains(&QpEvent::Fatal));
    assert_eq!(pair.hosts[1].failure_reason(), "completion queue overflow");
    assert!(pair.hosts[1].cq.overflowed());
    let responses = pair.log.iter().filter(|sent| sent.from == 1);
    assert!(
        responses.map(|sent| sent.psn()).all(|psn| psn < 1003),
        "a message whose completion is lost is not acknowledged"
    );
}

#[test]
fn first_packet_in_rtr_raises_communication_established_once() {
    let knobs = Knobs::default();
    let mut pair = Pair::unconnected(&knobs);
    pair.bring_to_rtr(0, &knobs);
    pair.bring_to_rts(0, &knobs);
    pair.bring_to_rtr(1, &knobs);
    pair.recv(7, 100);
    pair.recv(8, 100);
    pair.send(1, 100);
    pair.send(2, 100);
    pair.run();
    assert_eq!(pair.done(1), [(7, OK), (8, OK)]);
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    let established = QpEvent::CommunicationEstablished;
    assert_eq!(pair.hosts[1].qp_events(), [established]);
    pair.bring_to_rts(1, &knobs);
    pair.write(3, 100);
    pair.run();
    assert_eq!(pair.hosts[1].qp_events(), [established]);
}

#[test]
fn first_packet_in_rts_raises_no_event() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    pair.run();
    assert_eq!(pair.hosts[1].qp_events(), []);
}

fn new_srq(host: &Host) -> Arc<Srq> {
    let init = SrqInit {
        max_wr: 16,
        max_sge: 2,
        xrc: None,
    };
    Srq::new(77, host.pd.clone(), init).unwrap()
}

/// Returns a pair with shared receive queues, and host 1's with `receives` posted.
fn pair_with_srq(receives: u64) -> (Pair, Arc<Srq>) {
    let pair = Pair::with(|knobs| knobs.srq = Some(new_srq));
    let srq = pair.hosts[1].srq.clone().unwrap();
    for wr_id in 0..receives {
        let sges = [pair.hosts[1].sge(INBOX, 2000)];
        srq.post(&RecvWr { wr_id, sges: &sges }).unwrap();
    }
    (pair, srq)
}

#[test]
fn receives_are_taken_from_the_shared_receive_queue() {
    let (mut pair, srq) = pair_with_srq(3);
    pair.send(1, 1500);
    pair.send(2, 1500);
    pair.run();
    assert_eq!(pair.done(1), [(0, OK), (1, OK)]);
    assert_eq!(srq.posted(), 1);
    assert!(pair.was_received(1500));
}

#[test]
fn empty_shared_receive_queue_causes_an_rnr_nak() {
    let (mut pair, srq) = pair_with_srq(0);
    pair.send(1, 100);
    pair.run();
    assert_eq!(pair.trace().last().unwrap(), "NAK 2c 1000");
    let sges = [pair.hosts[1].sge(INBOX, 2000)];
    srq.post(&RecvWr {
        wr_id: 5,
        sges: &sges,
    })
    .unwrap();
    pair.run_until_idle();
    assert_eq!(pair.done(1), [(5, OK)]);
}

#[test]
fn post_recv_to_a_queue_pair_with_an_srq_is_refused() {
    let (mut pair, _) = pair_with_srq(0);
    let host = &mut pair.hosts[1];
    let wr = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    let refused = host.engine.post_recv(pair.now, host.qpn, &wr);
    assert!(matches!(refused, Err(VerbsError::Invalid(_))));
}

#[test]
fn srq_limit_event_is_raised_once_below_the_limit() {
    let (mut pair, srq) = pair_with_srq(4);
    srq.set_limit(3).unwrap();
    let reached = Event::SrqLimitReached { srq: 77 };
    for (wr_id, events) in [(0, 0), (1, 1), (2, 1), (3, 1)] {
        pair.send(wr_id, 100);
        pair.run();
        let seen = pair.hosts[1].events.iter().filter(|e| **e == reached);
        assert_eq!(seen.count(), events);
    }
}

#[test]
fn queue_pair_in_err_raises_last_wqe_reached_and_flushes_no_srq_receives() {
    let (mut pair, srq) = pair_with_srq(4);
    let error = ferroce_roce::QpAttr {
        state: QpState::Err,
        ..Knobs::default().attr
    };
    pair.modify(1, &error, ferroce_roce::AttrMask::STATE);
    pair.run();
    assert_eq!(pair.done(1), []);
    assert_eq!(srq.posted(), 4);
    assert_eq!(pair.hosts[1].qp_events(), [QpEvent::LastWqeReached]);
}

#[test]
fn srq_receive_in_use_is_flushed_with_its_queue_pair() {
    let (mut pair, srq) = pair_with_srq(2);
    pair.send(1, 1500);
    pair.flush(0);
    let first = pair.wire[0].clone();
    pair.deliver(&first);
    let error = ferroce_roce::QpAttr {
        state: QpState::Err,
        ..Knobs::default().attr
    };
    pair.modify(1, &error, ferroce_roce::AttrMask::STATE);
    assert_eq!(pair.done(1), [(0, FLUSHED)]);
    assert_eq!(srq.posted(), 1);
}
