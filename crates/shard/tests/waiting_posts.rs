//! Posts wait for each other only as long as an event is certain that sends them.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::sync::Arc;

use connection::End;
use ferroce_roce::{AttrMask, QpAttr, QpState, QpType, Time};
use ferroce_shard::{Caller, STANDBY_NS};
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

/// A progress thread that stands by for longer on a slow machine was woken for each message.
#[test]
fn waiting_post_is_due_after_the_standby_of_the_device() {
    for standby in [STANDBY_NS, 3 * STANDBY_NS] {
        let mut end = end();
        end.core.set_standby(standby);
        end.post_write(Time::ZERO, 1);
        end.post_write(Time::ZERO, 2);
        let due = end.core.next_deadline(Time::ZERO);
        assert_eq!(due, Some(Time::from_nanos(standby)));
    }
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
    end.core.wire_mut().runs.take(); // lost
    end.modify(&attr, AttrMask::STATE);
    end.post_write(Time::ZERO, 3);
    assert!(!end.core.has_waiting_posts());
    let mut completed = Vec::new();
    end.cq.poll(8, |wc| completed.push(wc.wr_id));
    assert_eq!(completed, [1, 2, 3]);
}

/// Returns a UD queue pair that is its own peer.
fn datagrams() -> End<Loopback> {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Ud, 0);
    end.prepare_datagrams();
    end
}

#[test]
fn datagrams_of_a_burst_wait_for_the_next_poll() {
    let mut end = datagrams();
    let start = Time::from_nanos(1_000_000);
    end.post_datagram(start, HERE);
    assert!(!end.core.has_waiting_posts(), "the first one is sent");
    for post in 1..3 {
        end.post_datagram(start.after_nanos(post * 100), HERE);
        assert!(end.core.has_waiting_posts());
    }
    assert!(end.core.next_deadline(start).is_some());
    assert_eq!(end.cq.poll(8, |_| {}), 1);
    end.turn(start.after_nanos(1_000), Caller::Poller);
    assert!(!end.core.has_waiting_posts());
    assert_eq!(end.cq.poll(8, |_| {}), 2);
}

#[test]
fn datagram_that_answers_a_message_is_sent_at_once() {
    let mut end = datagrams();
    for post in 1..4 {
        end.post_datagram(Time::from_nanos(post * 8_000), HERE);
        assert!(!end.core.has_waiting_posts());
        assert_eq!(end.cq.poll(8, |_| {}), 1);
    }
}
