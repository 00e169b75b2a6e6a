//! Looks at the sockets by a thread that receives through memory.

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
