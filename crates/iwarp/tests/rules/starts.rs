//! The first messages of a stream, with siw at the other end.

use ferroce_iwarp::mpa::{Params, Role};
use ferroce_iwarp::opcode::Opcode;
use ferroce_iwarp::{CLOSE_TIMEOUT, HOLD, NUDGES, SILENCE, StreamEvent};
use ferroce_objects::{QpState, SendOp, WcStatus};

use crate::host::{Host, MSS, PARAMS, pair};

const SEND: SendOp = SendOp::Send { imm: None };

/// Returns a connected host whose engine starts streams carefully.
fn careful(role: Role) -> Host {
    let mut host = Host::unconnected_with(true);
    let params = Params { role, ..PARAMS };
    host.engine
        .connect(host.now, host.qpn, params, MSS)
        .unwrap();
    host
}

fn expire(host: &mut Host) {
    host.now = host.engine.next_timeout().expect("a timer runs");
    host.engine.handle_timeout(host.now);
}

// siw: an FPDU that arrives between its Reply and the start of RDMA mode is read only when more
// bytes arrive.
#[test]
fn first_message_without_an_answer_is_followed_by_empty_writes() {
    let mut host = Host::new();
    assert_eq!(host.engine.next_timeout(), None, "nothing was sent yet");
    host.post(1, SEND, 0, 10);
    assert_eq!(host.sent().len(), 1);
    let mut sent = host.now;
    for delay in NUDGES {
        assert_eq!(host.engine.next_timeout(), Some(sent + delay));
        expire(&mut host);
        sent = host.now;
        let nudge = host.sent();
        assert_eq!(nudge.len(), 1);
        assert_eq!((nudge[0].0.opcode, nudge[0].0.payload), (Opcode::Write, 0));
        assert!(nudge[0].0.last);
    }
    assert_eq!(host.engine.next_timeout(), None, "the number is limited");
    assert_eq!(host.state(), QpState::Rts);
    assert_eq!(host.sends(), [(1, WcStatus::Success)]);
}

#[test]
fn received_bytes_end_the_nudges() {
    let (mut a, mut b) = pair(false);
    a.post(1, SEND, 0, 10);
    let sent = a.send_all();
    assert!(a.engine.next_timeout().is_some());
    b.post_recv(2, 0, 10);
    b.receive(&sent);
    b.post(3, SEND, 0, 10);
    a.post_recv(4, 0, 10);
    let answer = b.send_all();
    // One byte shows that the peer notices what comes from now on.
    a.receive(&answer[..1]);
    assert_eq!(a.engine.next_timeout(), Some(a.now + SILENCE));
    a.receive(&answer[1..]);
    assert_eq!(a.receives(), [(4, WcStatus::Success)]);
    a.post(5, SEND, 0, 10);
    assert_eq!(a.sent().len(), 1);
    assert_eq!(a.engine.next_timeout(), None);
}

/// Returns an initiator that has sent a message, and received one that was sent before the peer
/// read anything.
fn initiator_that_heard() -> (Host, Host) {
    let (mut a, mut b) = pair(false);
    a.post(1, SEND, 0, 10);
    assert_eq!(a.sent().len(), 1);
    b.post(3, SEND, 0, 10);
    a.post_recv(4, 0, 10);
    a.receive(&b.send_all());
    assert_eq!(a.receives(), [(4, WcStatus::Success)]);
    (a, b)
}

// siw's program may speak before siw has read what arrived before: both ends of rsockets send
// their credits first, and wait for those of the peer.
#[test]
fn silence_after_the_first_bytes_of_the_peer_is_ended_by_one_nudge() {
    let (mut a, _b) = initiator_that_heard();
    expire(&mut a);
    let nudge = a.sent();
    assert_eq!(nudge.len(), 1);
    assert_eq!((nudge[0].0.opcode, nudge[0].0.payload), (Opcode::Write, 0));
    assert_eq!(a.engine.next_timeout(), None, "there is one");
    assert_eq!(a.state(), QpState::Rts);
}

#[test]
fn peer_that_goes_on_sending_is_not_nudged() {
    let (mut a, mut b) = initiator_that_heard();
    for message in 0..3 {
        b.post(message, SEND, 0, 10);
        a.post_recv(message, 0, 10);
        a.receive(&b.send_all());
        expire(&mut a);
        assert_eq!(a.sent(), []);
        assert_eq!(a.engine.next_timeout(), Some(a.now + SILENCE));
    }
}

// Bytes that arrive at a closed socket reset the connection, and TCP drops the part of the answer
// that is still under way.
#[test]
fn peer_that_answers_and_closes_is_not_nudged() {
    let (mut a, _b) = initiator_that_heard();
    a.engine.end_of_stream(a.now, a.qpn);
    assert_eq!(a.sent(), []);
    assert_eq!(a.engine.next_timeout(), None);
}

#[test]
fn responders_do_not_nudge() {
    let mut host = Host::with(Params {
        role: Role::Responder,
        ..PARAMS
    });
    host.post(1, SEND, 0, 10);
    host.send_all();
    assert_eq!(host.engine.next_timeout(), None);
}

#[test]
fn nudges_change_nothing_at_the_peer() {
    let (mut a, mut b) = pair(true);
    b.post_recv(1, 0, 100);
    b.post_recv(2, 0, 100);
    a.post(3, SEND, 0, 10);
    let mut stream = a.send_all();
    expire(&mut a);
    stream.extend(a.send_all());
    a.post(4, SEND, 0, 20);
    stream.extend(a.send_all());
    b.receive(&stream);
    let ok = WcStatus::Success;
    assert_eq!(b.receives(), [(1, ok), (2, ok)]);
    assert_eq!(b.state(), QpState::Rts);
}

// RFC 5044: the responder sends after the initiator's first FPDU. siw's initiator resets a
// connection on which a message arrives with the Reply.
#[test]
fn careful_responder_sends_after_the_first_byte_of_the_initiator() {
    let mut responder = careful(Role::Responder);
    responder.post(1, SEND, 0, 10);
    assert_eq!(responder.sent(), []);
    let mut initiator = careful(Role::Initiator);
    let announcement = initiator.send_all();
    assert!(!announcement.is_empty());
    responder.receive(&announcement);
    assert_eq!(responder.engine.poll_ready(), Some(responder.qpn));
    assert_eq!(responder.sent().len(), 1);
    assert_eq!(responder.engine.next_timeout(), None);
}

// siw's initiator may have nothing to send.
#[test]
fn careful_responder_sends_after_the_hold_at_the_latest() {
    let mut responder = careful(Role::Responder);
    responder.post(1, SEND, 0, 10);
    assert_eq!(responder.sent(), []);
    assert_eq!(responder.engine.next_timeout(), Some(responder.now + HOLD));
    expire(&mut responder);
    assert_eq!(responder.engine.poll_ready(), Some(responder.qpn));
    assert_eq!(responder.sent().len(), 1);
    assert_eq!(responder.state(), QpState::Rts);
}

#[test]
fn careful_initiator_announces_itself_by_an_empty_write() {
    let mut initiator = careful(Role::Initiator);
    let sent = initiator.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].0.opcode, sent[0].0.payload), (Opcode::Write, 0));
}

// siw's initiator would lose a message that comes with the Reply, and the end of the stream
// with it.
#[test]
fn disconnect_during_the_hold_waits_for_the_initiator_and_then_sends() {
    let mut responder = careful(Role::Responder);
    responder.post(1, SEND, 0, 10);
    responder
        .engine
        .disconnect(responder.now, responder.qpn)
        .unwrap();
    assert_eq!(responder.sent(), []);
    assert_eq!(responder.stream_events(), []);
    let mut initiator = careful(Role::Initiator);
    initiator.post_recv(2, 0, 10);
    responder.receive(&initiator.send_all());
    assert_eq!(responder.engine.poll_ready(), Some(responder.qpn));
    initiator.receive(&responder.send_all());
    assert_eq!(initiator.receives(), [(2, WcStatus::Success)]);
    assert_eq!(responder.sends(), [(1, WcStatus::Success)]);
    let qpn = responder.qpn;
    assert_eq!(responder.stream_events(), [StreamEvent::Shutdown { qpn }]);
    let close = responder.now + CLOSE_TIMEOUT;
    assert_eq!(responder.engine.next_timeout(), Some(close));
}

#[test]
fn disconnect_during_the_hold_sends_after_the_hold_at_the_latest() {
    let mut responder = careful(Role::Responder);
    responder.post(1, SEND, 0, 10);
    responder
        .engine
        .disconnect(responder.now, responder.qpn)
        .unwrap();
    assert_eq!(responder.engine.next_timeout(), Some(responder.now + HOLD));
    expire(&mut responder);
    assert_eq!(responder.engine.poll_ready(), Some(responder.qpn));
    assert_eq!(responder.sent().len(), 1);
    assert_eq!(responder.sends(), [(1, WcStatus::Success)]);
    let close = responder.now + CLOSE_TIMEOUT;
    assert_eq!(responder.engine.next_timeout(), Some(close));
}

#[test]
fn disconnect_without_messages_does_not_wait_for_the_hold() {
    let mut responder = careful(Role::Responder);
    responder
        .engine
        .disconnect(responder.now, responder.qpn)
        .unwrap();
    let qpn = responder.qpn;
    assert_eq!(responder.stream_events(), [StreamEvent::Shutdown { qpn }]);
}
