//! The order in which a request and the answer to it complete, and the ACK that may wait.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::sync::Arc;

use connection::End;
use ferroce_roce::{Cq, QpType, Time, WcOpcode};
use ferroce_shard::Caller;
use loopback::{HERE, Loopback};

/// Returns a queue pair that is its own peer, and so answers itself.
fn end() -> End<Loopback> {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Rc, 0);
    connect(&mut end);
    end
}

/// Connects a queue pair with itself, as programs connect it with a peer on their host.
fn connect(end: &mut End<Loopback>) {
    end.connect(end.qpn, HERE, HERE);
    let peer_is_here = end.core.engine.set_local_peer(end.qpn, 1, false);
    peer_is_here.expect("the queue pair exists");
}

/// Sends request 1 and receives it. The ACK is deferred, and leaves with the next packets.
fn receive_request(end: &mut End<Loopback>) {
    end.post_send(Time::ZERO, 1);
    end.turn(Time::ZERO, Caller::ExpectsPost);
    let request = end.cq.pop().map(|wc| (wc.opcode, wc.wr_id));
    assert_eq!(request, Some((WcOpcode::Recv, 1)), "its ACK is deferred");
}

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
        let mut end = end();
        receive_request(&mut end);
        end.post_send(Time::ZERO, 2);
        end.turn(Time::ZERO, Caller::Poller);
        let runs = end.core.wire().runs.borrow().len();
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

/// A network separates the packets of a run. A peer that polls in between must see its request complete
/// first: `ib_send_lat -e` between two machines overflowed its completion queue.
#[test]
fn request_completes_before_its_answer_arrives_from_another_host() {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Rc, 0);
    end.connect(end.qpn, HERE, HERE);
    receive_request(&mut end);
    end.post_send(Time::ZERO, 2);
    end.flush(Time::ZERO);
    let answer = end.core.wire().runs.borrow_mut().pop_back();
    end.turn(Time::ZERO, Caller::Poller);
    let request = end.cq.pop().map(|wc| (wc.opcode, wc.wr_id));
    assert_eq!(request, Some((WcOpcode::Send, 1)));
    assert!(end.cq.pop().is_none(), "the answer is on its way");
    end.core.wire().runs.borrow_mut().extend(answer);
    end.turn(Time::ZERO, Caller::Poller);
    let answer = end.cq.pop().map(|wc| (wc.opcode, wc.wr_id));
    assert_eq!(answer, Some((WcOpcode::Recv, 2)));
}

/// DiSNI counts completed sends and receives in one queue. It waited for ever when three answers and one ACK
/// arrived in a run, and two of the answers completed first.
#[test]
fn several_requests_complete_before_their_answers() {
    let mut end = end();
    for wr_id in 1..=2 {
        end.post_send(Time::ZERO, wr_id);
    }
    end.flush(Time::ZERO);
    end.turn(Time::ZERO, Caller::ExpectsPost);
    let mut received = 0;
    end.cq.poll(8, |wc| {
        assert_eq!(wc.opcode, WcOpcode::Recv);
        received += 1;
    });
    assert_eq!(received, 2, "their ACK is deferred");
    for wr_id in 3..=4 {
        end.post_send(Time::ZERO, wr_id);
    }
    end.flush(Time::ZERO);
    let mut order = Vec::new();
    while !end.core.wire().runs.borrow().is_empty() {
        end.turn(Time::ZERO, Caller::Poller);
        end.cq.poll(8, |wc| order.push((wc.opcode, wc.wr_id)));
        end.flush(Time::ZERO);
    }
    let place = |opcode, wr_id| order.iter().position(|&wc| wc == (opcode, wr_id));
    for (request, answer) in [(1, 3), (2, 4)] {
        let request = place(WcOpcode::Send, request).expect("the request completes");
        let answer = place(WcOpcode::Recv, answer).expect("the answer completes");
        assert!(request < answer, "{order:?}");
    }
}

/// `rdma-client write` of a tutorial hung: the ACK arrived behind a WRITE and was deferred, and the SEND
/// behind both completed before the request.
#[test]
fn deferred_ack_completes_its_request_before_a_later_answer() {
    let mut end = end();
    receive_request(&mut end);
    end.post_write(Time::ZERO, 2);
    end.flush(Time::ZERO);
    end.post_send(Time::ZERO, 3);
    end.flush(Time::ZERO);
    assert_eq!(
        end.core.wire().runs.borrow().len(),
        2,
        "WRITE and ACK, SEND"
    );
    end.turn(Time::ZERO, Caller::Poller);
    let mut order = Vec::new();
    end.cq.poll(8, |wc| order.push((wc.opcode, wc.wr_id)));
    assert_eq!(order, [(WcOpcode::Send, 1), (WcOpcode::Recv, 3)]);
}

/// librpma has a queue for sends and one for receives, and one channel for the events of both.
#[test]
fn request_completes_before_its_answer_in_queues_of_one_channel() {
    for shared in [false, true] {
        let cqs = [1, 2].map(|id| Cq::new(id, 16).expect("a completion queue"));
        if shared {
            cqs.iter().for_each(|cq| cq.set_channel(7));
        }
        let page = Arc::default();
        let mut end = End::with_queues(Loopback::default(), &page, QpType::Rc, 0, cqs);
        connect(&mut end);
        end.post_send(Time::ZERO, 1);
        end.turn(Time::ZERO, Caller::ExpectsPost);
        assert!(end.recv_cq.pop().is_some());
        end.post_send(Time::ZERO, 2);
        end.flush(Time::ZERO);
        end.turn(Time::ZERO, Caller::Poller);
        assert!(end.recv_cq.pop().is_some());
        let completed = end.cq.pop().is_some();
        assert_eq!(completed, shared, "without a channel the ACK may wait");
    }
}

/// A program that posts before it polls again does not wait for the ACK behind a message.
#[test]
fn acks_wait_while_the_program_posts_before_it_polls() {
    let mut end = end();
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
