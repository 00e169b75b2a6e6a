//! The order in which a request and the answer to it complete, and the ACK that may wait.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::sync::Arc;

use connection::End;
use ferroce_roce::{QpType, Time, WcOpcode};
use ferroce_shard::Caller;
use loopback::{HERE, Loopback};

/// The ACK of a request shares a run with the answer, behind it. libiscsi crashes, and tgt
/// refuses a login, if the request completes after the answer in the same queue.
#[test]
fn request_completes_before_its_answer() {
    for caller in [
        Caller::Poller,
        Caller::ProgressThread,
        Caller::ExpectsPost,
        Caller::Stream,
    ] {
        let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Rc, 0);
        // The queue pair is its own peer, and so answers itself.
        end.connect(end.qpn, HERE, HERE);
        end.post_send(Time::ZERO, 1);
        end.turn(Time::ZERO, Caller::ExpectsPost);
        let request = end.cq.pop().map(|wc| (wc.opcode, wc.wr_id));
        assert_eq!(request, Some((WcOpcode::Recv, 1)), "its ACK is deferred");
        end.post_send(Time::ZERO, 2);
        end.turn(Time::ZERO, Caller::Poller);
        let runs = end.core.wire().0.borrow().len();
        assert_eq!(runs, 1, "the answer and the ACK share a run");
        end.turn(Time::ZERO, caller);
        let mut order = Vec::new();
        end.cq.poll(8, |wc| order.push((wc.opcode, wc.wr_id)));
        assert_eq!(
            order,
            [(WcOpcode::Send, 1), (WcOpcode::Recv, 2)],
            "{caller:?}"
        );
    }
}

/// A program that posts before it polls again does not wait for the ACK behind a message.
#[test]
fn acks_wait_while_the_program_posts_before_it_polls() {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Rc, 0);
    end.connect(end.qpn, HERE, HERE);
    end.post_write(Time::ZERO, 0);
    end.turn(Time::ZERO, Caller::Poller);
    // This WRITE waits for the ACK of the first one, which is deferred, until the next poll.
    end.post_write(Time::ZERO, 1);
    end.turn(Time::ZERO, Caller::Poller);
    end.turn(Time::ZERO, Caller::Poller);
    for wr_id in 2..=12 {
        end.post_write(Time::ZERO, wr_id);
        end.turn(Time::ZERO, Caller::Poller);
        assert_eq!(end.core.held_packets(), 1, "WRITE {wr_id}");
    }
}
