//! Looks at the sockets: by a thread that receives through memory, and by polls that find nothing.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use connection::End;
use ferroce_net::{IncomingRun, Properties, Scope, Wire};
use ferroce_roce::{QpType, Time};
use ferroce_shard::Caller;
use loopback::{HERE, Loopback};

/// A wire whose packets come through memory. It records the scope of each call.
#[derive(Default)]
struct InMemory {
    inner: Loopback,
    scopes: Rc<RefCell<Vec<Scope>>>,
}

impl Wire for InMemory {
    type Sender = <Loopback as Wire>::Sender;

    fn take_sender(&mut self) -> Self::Sender {
        self.inner.take_sender()
    }

    fn receive(
        &mut self,
        scope: Scope,
        max: usize,
        each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        self.scopes.borrow_mut().push(scope);
        self.inner.receive(scope, max, each)
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.inner.descriptors()
    }

    fn join_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join_multicast(group)
    }

    fn leave_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.leave_multicast(group)
    }

    fn report_hop_limits(&mut self, report: bool) -> io::Result<()> {
        self.inner.report_hop_limits(report)
    }

    fn is_memory_busy(&self) -> bool {
        true
    }

    fn has_packet_in_memory(&self) -> bool {
        !self.inner.runs.borrow().is_empty()
    }

    fn properties(&self) -> Properties {
        self.inner.properties()
    }
}

/// Such a thread sleeps on the sockets after a turn without packets. To read them before costs two
/// system calls for each message.
#[test]
fn thread_that_waits_for_events_reads_the_sockets_once_memory_is_empty() {
    let wire = InMemory::default();
    let scopes = Rc::clone(&wire.scopes);
    let mut end = End::new(wire, &Arc::default(), QpType::Rc, 0);
    end.connect(end.qpn, HERE, HERE);
    end.post_send(Time::ZERO, 1);
    scopes.borrow_mut().clear();
    let mut turns = 0;
    while end.cq.pop().is_none_or(|wc| wc.wr_id != 1) {
        assert!(turns < 10, "the message does not arrive");
        end.turn(Time::ZERO, Caller::ExpectsPost);
        turns += 1;
    }
    scopes.borrow_mut().clear();
    // The last turn received: memory only, then the sockets, because memory was empty.
    end.turn(Time::ZERO, Caller::ExpectsPost);
    end.turn(Time::ZERO, Caller::ExpectsPost);
    let seen = scopes.borrow().clone();
    assert_eq!(seen, [Scope::Memory, Scope::EitherFamily]);
}

/// A poll skips the turn of a shard that finds nothing, so such a turn must have nothing to do.
#[test]
fn turn_of_a_shard_that_finds_nothing_does_nothing() {
    let in_memory = InMemory::default();
    let packets = in_memory.inner.clone();
    finds_nothing_only_without_packets(in_memory, &packets);
    let loopback = Loopback::default();
    let packets = loopback.clone();
    finds_nothing_only_without_packets(loopback, &packets);
}

fn finds_nothing_only_without_packets<W: Wire>(wire: W, packets: &Loopback) {
    let mut end = End::new(wire, &Arc::default(), QpType::Rc, 0);
    end.connect(end.qpn, HERE, HERE);
    let waiting = || packets.runs.borrow().len();
    let mut empty_polls = 0;
    for step in 0..200 {
        // Posts come at different distances, before and after the deferred ACKs have left.
        let now = Time::ZERO.after_nanos(step * 500);
        if step % 11 == 0 || step % 17 == 0 {
            end.post_send(now, step);
        }
        let before = waiting();
        let finds_nothing = end.core.finds_nothing(now);
        assert!(!finds_nothing || before == 0, "a packet waits");
        end.turn(now, Caller::Poller);
        let completed = end.cq.pop().is_some();
        if finds_nothing {
            empty_polls += 1;
            assert_eq!((waiting(), completed), (0, false));
        }
        while end.cq.pop().is_some() {}
    }
    assert!(empty_polls > 50, "{empty_polls}");
    // Timers get their turns, and so do the sockets of a shard that receives through memory.
    end.post_send(Time::ZERO.after_nanos(200_000), 200);
    packets.runs.borrow_mut().clear();
    let late = Time::ZERO.after_nanos(10_000_000_000);
    assert!(!end.core.finds_nothing(late), "a timer has expired");
}
