//! Posts wait for each other only as long as an event is certain that sends them.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::sync::Arc;

use connection::End;
use ferroce_roce::{AttrMask, QpAttr, QpState, QpType, Time};
use ferroce_shard::Caller;
use loopback::{HERE, Loopback};

const CALLERS: [Caller; 4] = [
    Caller::Poller,
    Caller::ProgressThread,
    Caller::ExpectsPost,
    Caller::Stream,
];

/// Returns an RC queue pair that is its own peer.
fn end() -> End<Loopback> {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Rc, 0);
    end.connect(end.qpn, HERE, HERE);
    end
}

#[test]
fn lone_post_is_sent_at_once() {
    let mut end = end();
    end.post_write(Time::ZERO, 1);
    assert!(!end.core.has_waiting_posts());
}

#[test]
fn waiting_post_has_a_deadline() {
    let mut end = end();
    end.post_write(Time::ZERO, 1);
    end.post_write(Time::ZERO, 2);
    assert!(end.core.has_waiting_posts());
    assert!(end.core.next_deadline(Time::ZERO).is_some());
}

/// A caller that receives a packet may defer its ACKs, but not the posts: no other packet
/// may come.
#[test]
fn turn_that_receives_sends_waiting_posts() {
    for caller in CALLERS {
        let mut end = end();
        end.post_write(Time::ZERO, 1);
        end.post_write(Time::ZERO, 2);
        end.turn(Time::ZERO, caller);
        assert!(!end.core.has_waiting_posts(), "{caller:?}");
    }
}

#[test]
fn post_in_the_error_state_is_flushed_at_once() {
    let mut end = end();
    end.post_write(Time::ZERO, 1);
    end.post_write(Time::ZERO, 2);
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    end.core.wire_mut().0.take(); // lost
    end.modify(&attr, AttrMask::STATE);
    end.post_write(Time::ZERO, 3);
    assert!(!end.core.has_waiting_posts());
    let mut completed = Vec::new();
    end.cq.poll(8, |wc| completed.push(wc.wr_id));
    assert_eq!(completed, [1, 2, 3]);
}
