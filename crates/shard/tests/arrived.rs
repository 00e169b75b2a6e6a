//! Packets that have arrived when a queue pair ends.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::sync::Arc;

use connection::End;
use ferroce_roce::{AttrMask, QpAttr, QpState, QpType, Time, WcOpcode, WcStatus};
use ferroce_shard::Caller;
use loopback::{HERE, Loopback};

/// Returns a queue pair whose SEND its peer, itself, has received and acknowledged. The ACK has
/// arrived, and the program has not polled since.
fn acknowledged() -> End<Loopback> {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Rc, 0);
    end.connect(end.qpn, HERE, HERE);
    end.post_send(Time::ZERO, 1);
    end.turn(Time::ZERO, Caller::ProgressThread);
    assert_eq!(end.cq.pop().map(|wc| wc.opcode), Some(WcOpcode::Recv));
    assert!(end.cq.pop().is_none(), "the ACK has not been received");
    end
}

fn send_has_completed(end: &End<Loopback>) {
    let send = end.cq.pop().map(|wc| (wc.opcode, wc.wr_id, wc.status));
    assert_eq!(send, Some((WcOpcode::Send, 1, WcStatus::Success)));
}

#[test]
fn acknowledged_send_completes_before_the_error_state() {
    let mut end = acknowledged();
    let error = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    end.modify(&error, AttrMask::STATE);
    send_has_completed(&end);
}

/// libfabric destroys a queue pair when the peer disconnects, and then polls. Sends without a
/// completion count as failed: `fi_rdm -U` failed in one of four runs on a busy machine.
#[test]
fn acknowledged_send_completes_before_the_queue_pair_is_destroyed() {
    let mut end = acknowledged();
    end.destroy();
    send_has_completed(&end);
}
