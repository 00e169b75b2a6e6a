//! A thread that sends takes the packets of other threads along.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::sync::Arc;

use connection::End;
use ferroce_roce::{QpType, Time};
use ferroce_shard::Caller;
use loopback::{HERE, Loopback};

/// Returns a UC queue pair that is its own peer. Its posts never wait for ACKs.
fn end() -> End<Loopback> {
    let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Uc, 0);
    end.connect(end.qpn, HERE, HERE);
    end
}

fn sent_runs(end: &End<Loopback>) -> usize {
    end.core.wire().runs.borrow().len()
}

#[test]
fn packets_posted_meanwhile_are_left_to_the_thread_that_sends() {
    let mut end = end();
    let first = end.begin_write(Time::ZERO, 1).expect("a packet");
    assert!(end.core.is_sending());
    assert!(end.begin_write(Time::ZERO, 2).is_none());
    end.turn(Time::ZERO, Caller::Poller);
    assert_eq!(sent_runs(&end), 0);
    let second = end.send(Time::ZERO, first, true).expect("the other packet");
    assert_eq!(sent_runs(&end), 1);
    assert!(end.send(Time::ZERO, second, true).is_none());
    assert_eq!(sent_runs(&end), 2);
    assert!(!end.core.is_sending());
}

#[test]
fn packets_that_the_thread_leaves_have_a_deadline_and_go_with_the_next_turn() {
    let mut end = end();
    let first = end.begin_write(Time::ZERO, 1).expect("a packet");
    assert!(end.begin_write(Time::ZERO, 2).is_none());
    assert!(end.send(Time::ZERO, first, false).is_none());
    assert!(!end.core.is_sending());
    assert!(end.core.next_deadline(Time::ZERO).is_some());
    end.turn(Time::ZERO, Caller::ProgressThread);
    assert_eq!(sent_runs(&end), 1, "the turn received the first one");
}

#[test]
fn packets_are_assembled_while_another_thread_sends() {
    let mut end = end();
    end.core.prepare_batches(true);
    let first = end.begin_write(Time::ZERO, 1).expect("a packet");
    assert!(!end.core.has_prepared());
    assert!(end.begin_write(Time::ZERO, 2).is_none());
    assert!(end.core.has_prepared());
    assert!(end.begin_write(Time::ZERO, 3).is_none(), "still sending");
    // The prepared packet, then the one that was posted after it.
    let second = end.send(Time::ZERO, first, true).expect("the second");
    assert!(!end.core.has_prepared());
    let third = end.send(Time::ZERO, second, true).expect("the third");
    assert!(end.send(Time::ZERO, third, true).is_none());
    assert_eq!(sent_runs(&end), 3);
    assert!(end.core.is_idle());
}

#[test]
fn prepared_packets_precede_those_posted_later() {
    let mut end = end();
    end.core.prepare_batches(true);
    let first = end.begin_write(Time::ZERO, 1).expect("a packet");
    assert!(end.begin_write(Time::ZERO, 2).is_none());
    assert!(end.send(Time::ZERO, first, false).is_none());
    assert!(end.core.has_prepared() && !end.core.is_idle());
    let second = end.begin_write(Time::ZERO, 3).expect("the prepared one");
    let third = end.send(Time::ZERO, second, true).expect("the third");
    assert!(end.send(Time::ZERO, third, true).is_none());
    let runs = end.core.wire().runs.borrow();
    // The last byte of the BTH.
    let psns: Vec<u8> = runs.iter().map(|(.., bytes)| bytes[11]).collect();
    assert_eq!(psns, [psns[0], psns[0] + 1, psns[0] + 2]);
}
