//! Helpers for tests of real sockets. Each test has a network namespace of its own, and
//! so port 4791 for itself.
//!
//! A test runs its program again in a fresh namespace, with only that test. An ordinary
//! user needs a user namespace for that. If the system permits none, the test prints that
//! it was skipped; for root it fails.

#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod namespace;
pub(crate) mod packet;
pub(crate) mod veth;

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use ferroce_net::{Incoming, Receiver};

/// Timeout for an expected packet. Neighbour discovery retransmits after a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// A copy of a received datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    pub(crate) source: std::net::IpAddr,
    pub(crate) source_port: u16,
    pub(crate) destination: std::net::IpAddr,
    pub(crate) ifindex: u32,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) payload: Vec<u8>,
}

impl From<Incoming<'_>> for Kept {
    fn from(i: Incoming<'_>) -> Kept {
        Kept {
            source: i.source,
            source_port: i.source_port,
            destination: i.destination,
            ifindex: i.ifindex,
            traffic_class: i.traffic_class,
            hop_limit: i.hop_limit,
            payload: i.payload.to_vec(),
        }
    }
}

/// Receives `count` datagrams, or those that arrive before the timeout.
pub(crate) fn receive(receiver: &mut Receiver, count: usize) -> Vec<Kept> {
    let mut kept = Vec::new();
    while kept.len() < count {
        let got = receiver.receive(usize::MAX, |run| {
            kept.extend(run.datagrams().map(Kept::from))
        });
        if got.expect("receiving works") == 0 && !readable(receiver, PATIENCE) {
            break;
        }
    }
    kept
}

/// Receives until no datagram has arrived for 100 ms.
pub(crate) fn receive_rest(receiver: &mut Receiver) -> Vec<Kept> {
    let mut kept = Vec::new();
    while readable(receiver, Duration::from_millis(100)) {
        let got = receiver.receive(usize::MAX, |run| {
            kept.extend(run.datagrams().map(Kept::from))
        });
        if got.expect("receiving works") == 0 {
            break;
        }
    }
    kept
}

/// Waits until a socket is readable. Returns false after the timeout.
pub(crate) fn readable(receiver: &Receiver, timeout: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (v4, v6) = receiver.fds();
    let fds: Vec<RawFd> = std::iter::once(v4).chain(v6).collect();
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| {
            // SAFETY: the receiver is borrowed and keeps its sockets open.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            PollFd::from_borrowed_fd(fd, PollFlags::IN)
        })
        .collect();
    let timeout = Timespec::try_from(timeout).expect("short");
    poll(&mut polled, Some(&timeout)).expect("poll works") > 0
}
