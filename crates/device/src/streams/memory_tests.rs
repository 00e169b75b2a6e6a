//! A core whose peer shares memory with it: both ends of the channel are in the test.

#![allow(clippy::disallowed_methods, reason = "the peer has a socket, too")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use ferroce_iwarp::HOLD;
use ferroce_iwarp::mpa::Role;
use ferroce_net::local::{End, MAX_STREAM_RECORD, Readiness, StreamEnd};
use ferroce_roce::{Cq, Time, WcStatus};
use ferroce_shard::Caller;

use super::tests::{EMPTY_SEND, NOW, Quiet, completions, connected, post_receive, post_send};
use super::{Addresses, MemoryStream, StreamCore, Wire};
use crate::fork;
use crate::local::Channel;

/// An FPDU with a WRITE of no bytes, by which an initiator announces itself.
const EMPTY_WRITE: [u8; 20] = [
    0, 14, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

fn addresses() -> Addresses {
    let here = |port| SocketAddr::from(([127, 0, 0, 1], port));
    (here(1), here(2))
}

/// A core with a stream, and its peer.
struct Fixture {
    process: Quiet,
    core: StreamCore,
    qpn: u32,
    cq: Arc<Cq>,
    socket: TcpStream,
    ring: StreamEnd,
    end: Arc<End>,
}

impl Fixture {
    fn new(role: Role, wire: impl FnOnce(&mut Option<Channel>) -> Wire) -> Fixture {
        let mut process = Quiet::new();
        let [ours, theirs] = End::pair([1, 2]).unwrap();
        let mut channel = Some(Channel::new(ours));
        let wire = wire(&mut channel);
        let (mut core, qpn, cq, socket) = connected(&mut process, role, wire);
        if let Some(channel) = channel {
            core.introduced(addresses(), channel);
        }
        socket.set_nonblocking(true).unwrap();
        let end = Arc::new(theirs);
        let ring = StreamEnd::new(Arc::clone(&end), fork::counter());
        Fixture {
            process,
            core,
            qpn,
            cq,
            socket,
            ring,
            end,
        }
    }

    /// A responder that has offered memory, and has a channel.
    fn responder() -> Fixture {
        Fixture::new(Role::Responder, |_| Wire::Offered(addresses()))
    }

    /// A responder whose initiator has chosen memory.
    fn in_memory() -> Fixture {
        let mut fixture = Fixture::responder();
        assert!(fixture.ring.write(&EMPTY_WRITE).unwrap());
        fixture.turn(NOW);
        assert_eq!(fixture.core.wire_of(fixture.qpn), "local");
        fixture
    }

    /// Does a turn that looks at the socket, too.
    fn turn(&mut self, now: Time) -> usize {
        self.core.sockets_due = now;
        let (core, process) = (&mut self.core, &mut self.process);
        core.turn(now, process, Caller::ProgressThread)
    }

    /// Returns the bytes that the core has sent through memory.
    fn ring_bytes(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; MAX_STREAM_RECORD];
        let length = self.ring.read(&mut buffer).unwrap().unwrap_or(0);
        buffer.truncate(length);
        buffer
    }

    /// Returns the bytes that the core has sent over TCP; none if there are none.
    fn socket_bytes(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(length) => Some(buffer[..length].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn has_stream(&self) -> bool {
        self.core.streams.contains_key(&self.qpn)
    }
}

#[test]
fn initiator_sends_through_memory_at_once() {
    let mut fixture = Fixture::new(Role::Initiator, |channel| {
        Wire::Memory(Box::new(MemoryStream::new(channel.take().unwrap())))
    });
    fixture.turn(NOW);
    assert_eq!(fixture.ring_bytes(), EMPTY_WRITE);
    assert_eq!(fixture.socket_bytes(), None);
}

#[test]
fn responder_follows_the_initiator_to_memory() {
    let mut fixture = Fixture::in_memory();
    post_send(&mut fixture.core, fixture.qpn);
    fixture.turn(NOW);
    assert_eq!(fixture.ring_bytes(), EMPTY_SEND);
    assert_eq!(fixture.socket_bytes(), None);
}

#[test]
fn responder_follows_the_initiator_to_tcp() {
    let mut fixture = Fixture::responder();
    fixture.socket.write_all(&EMPTY_WRITE).unwrap();
    fixture.turn(NOW);
    assert_eq!(fixture.core.wire_of(fixture.qpn), "tcp");
    assert_eq!(fixture.end.readiness(), Readiness::Closed);
    post_send(&mut fixture.core, fixture.qpn);
    fixture.turn(NOW);
    assert_eq!(fixture.socket_bytes().unwrap(), EMPTY_SEND);
    assert!(fixture.core.in_memory.is_empty());
}

#[test]
fn responder_with_a_channel_waits_for_the_choice() {
    for chooses_memory in [true, false] {
        let mut fixture = Fixture::responder();
        post_send(&mut fixture.core, fixture.qpn);
        let later = NOW + HOLD;
        fixture.turn(later);
        assert!(fixture.ring_bytes().is_empty());
        assert_eq!(fixture.socket_bytes(), None);
        match chooses_memory {
            true => assert!(fixture.ring.write(&EMPTY_WRITE).unwrap()),
            false => fixture.socket.write_all(&EMPTY_WRITE).unwrap(),
        }
        fixture.turn(later);
        let sent = match chooses_memory {
            true => fixture.ring_bytes(),
            false => fixture.socket_bytes().unwrap(),
        };
        assert_eq!(sent, EMPTY_SEND);
    }
}

#[test]
fn responder_that_ends_before_the_choice_sends_through_memory() {
    let mut fixture = Fixture::responder();
    post_send(&mut fixture.core, fixture.qpn);
    let Fixture {
        core, process, qpn, ..
    } = &mut fixture;
    core.destroy_qp(NOW, process, *qpn).unwrap();
    core.transmit(NOW, process);
    assert_eq!(fixture.ring_bytes(), EMPTY_SEND);
    assert_eq!(fixture.socket_bytes(), Some(Vec::new()), "the end");
}

/// The initiator did not wait: it uses TCP.
#[test]
fn responder_that_ends_after_the_initiator_has_closed_the_channel_sends_over_tcp() {
    let mut fixture = Fixture::responder();
    post_send(&mut fixture.core, fixture.qpn);
    fixture.end.close();
    let Fixture {
        core, process, qpn, ..
    } = &mut fixture;
    core.destroy_qp(NOW, process, *qpn).unwrap();
    core.transmit(NOW, process);
    assert!(fixture.ring_bytes().is_empty());
    assert_eq!(fixture.socket_bytes().unwrap(), EMPTY_SEND);
}

#[test]
fn channel_beyond_the_limit_is_closed() {
    let mut offered = None;
    let mut fixture = Fixture::new(Role::Responder, |channel| {
        offered = channel.take();
        Wire::Offered(addresses())
    });
    fixture.core.in_memory = (0..super::memory::MOST_IN_MEMORY as u32).collect();
    fixture.core.introduced(addresses(), offered.unwrap());
    assert_eq!(fixture.end.readiness(), Readiness::Closed);
    assert_eq!(fixture.core.wire_of(fixture.qpn), "tcp");
}

/// Room is of no use any more. A thread would find it again and again, and never sleep.
#[test]
fn stream_whose_output_is_discarded_does_not_wait_for_room() {
    let mut fixture = Fixture::in_memory();
    let mut buffer = vec![7; MAX_STREAM_RECORD];
    let stream = fixture.core.streams.get_mut(&fixture.qpn).unwrap();
    stream.is_blocked = true;
    let Wire::Memory(memory) = &mut stream.wire else {
        panic!("it is in memory");
    };
    while memory.fill(&buffer) {}
    fixture.ring.read(&mut buffer).unwrap();
    fixture.ring.end_read();
    assert!(fixture.core.doorbell.has_packet(), "there is room");
    fixture.turn(NOW);
    assert!(!fixture.core.doorbell.has_packet());
}

#[test]
fn ring_of_a_stream_returns_its_memory() {
    let mut fixture = Fixture::in_memory();
    let mut buffer = vec![7; MAX_STREAM_RECORD];
    let stream = fixture.core.streams.get_mut(&fixture.qpn).unwrap();
    let Wire::Memory(memory) = &mut stream.wire else {
        panic!("it is in memory");
    };
    while memory.fill(&buffer) {}
    assert!(fixture.core.doorbell.has_extended_ring());
    assert!(fixture.core.shrink_rings() && fixture.core.shrink_rings());
    while fixture.ring.read(&mut buffer).unwrap().is_some() {}
    assert!(!fixture.core.shrink_rings());
    assert!(!fixture.core.doorbell.has_extended_ring());
    post_send(&mut fixture.core, fixture.qpn);
    fixture.turn(NOW);
    assert_eq!(fixture.ring_bytes(), EMPTY_SEND);
}

#[test]
fn channel_that_comes_after_the_first_byte_is_closed() {
    let mut fixture = Fixture::new(Role::Responder, |_| Wire::Tcp);
    assert_eq!(fixture.end.readiness(), Readiness::Closed);
    fixture.socket.write_all(&EMPTY_WRITE).unwrap();
    fixture.turn(NOW);
    assert!(fixture.has_stream());
}

#[test]
fn last_bytes_are_received_before_the_end() {
    for resets in [false, true] {
        let mut fixture = Fixture::in_memory();
        post_receive(&mut fixture.core, fixture.qpn);
        assert!(fixture.ring.write(&EMPTY_SEND).unwrap());
        fixture.ring.close();
        if resets {
            let linger = Some(core::time::Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&fixture.socket, linger).unwrap();
        }
        drop(core::mem::replace(&mut fixture.socket, unconnected()));
        fixture.turn(NOW);
        assert_eq!(completions(&fixture.cq), [(1, WcStatus::Success)]);
        assert!(!fixture.has_stream(), "the connection has ended");
        assert!(fixture.core.in_memory.is_empty());
    }
}

/// Returns a socket in place of one that is dropped.
fn unconnected() -> TcpStream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap()
}

#[test]
fn bytes_over_tcp_after_the_choice_of_memory_reset_the_connection() {
    let mut fixture = Fixture::in_memory();
    fixture.socket.write_all(&EMPTY_WRITE).unwrap();
    fixture.turn(NOW);
    assert!(!fixture.has_stream());
}

#[test]
fn broken_memory_resets_the_connection() {
    let mut fixture = Fixture::in_memory();
    assert!(fixture.ring.write(&EMPTY_SEND[..3]).unwrap());
    let mut second = StreamEnd::new(Arc::clone(&fixture.end), fork::counter());
    // A second writer begins at the front again, with another position.
    assert!(second.write(&[0; 1000]).unwrap());
    fixture.turn(NOW);
    assert!(second.write(&[0xff; 64]).unwrap());
    fixture.turn(NOW);
    assert!(!fixture.has_stream());
}

#[test]
fn polls_look_at_the_socket_now_and_then() {
    let mut fixture = Fixture::in_memory();
    assert!(fixture.core.is_memory_quiet());
    assert!(fixture.core.finds_nothing(NOW));
    drop(core::mem::replace(&mut fixture.socket, unconnected()));
    let Fixture {
        core, process, qpn, ..
    } = &mut fixture;
    core.turn(NOW, process, Caller::Poller);
    assert!(core.streams.contains_key(qpn), "not looked at yet");
    let later = NOW.after_nanos(1_000_000);
    assert!(!core.finds_nothing(later));
    core.turn(later, process, Caller::Poller);
    assert!(!core.streams.contains_key(qpn));
}
