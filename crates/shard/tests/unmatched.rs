//! Unmatched packets belong to the connection that they arrived in.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::sync::Arc;

use connection::End;
use ferroce_roce::{
    AttrMask, QpAttr, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Time,
};
use ferroce_shard::Caller;
use loopback::{HERE, Loopback};

/// Returns a UC queue pair that is its own peer and has sent a message to itself, which
/// waits for a receive.
fn with_unmatched_packet() -> End<Loopback> {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Uc, 0);
    end.connect(end.qpn, HERE, HERE);
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&[end.sge(64)]),
        ud: None,
        xrc_srq: 0,
    };
    let posted = end.core.engine.post_send(Time::ZERO, end.qpn, wr);
    posted.expect("room");
    turns(&mut end);
    assert_eq!(completed(&end), [1], "the send");
    assert_eq!(end.core.held_packets(), 1);
    end
}

fn turns(end: &mut End<Loopback>) {
    for _ in 0..3 {
        end.turn(Time::ZERO, Caller::ProgressThread);
    }
}

fn post_receive(end: &mut End<Loopback>) {
    let wr = RecvWr {
        wr_id: 2,
        sges: &[end.sge(64)],
    };
    let posted = end.core.engine.post_recv(Time::ZERO, end.qpn, &wr);
    posted.expect("room");
}

/// Returns the ids of the completed work requests.
fn completed(end: &End<Loopback>) -> Vec<u64> {
    let mut ids = Vec::new();
    end.cq.poll(8, |wc| ids.push(wc.wr_id));
    ids
}

#[test]
fn unmatched_packet_is_delivered_when_a_receive_is_posted() {
    let mut end = with_unmatched_packet();
    post_receive(&mut end);
    turns(&mut end);
    assert_eq!(completed(&end), [2]);
    assert_eq!(end.core.held_packets(), 0);
}

#[test]
fn reset_drops_unmatched_packets() {
    let mut end = with_unmatched_packet();
    let reset = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    end.modify(&reset, AttrMask::STATE);
    assert_eq!(end.core.held_packets(), 0);
    end.connect(end.qpn, HERE, HERE);
    post_receive(&mut end);
    turns(&mut end);
    assert_eq!(completed(&end), [], "of the previous connection");
}
