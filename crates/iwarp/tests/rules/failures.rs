//! Streams that end by a TERMINATE of the peer, or by a failure of this end.

use ferroce_iwarp::mpa::Params;
use ferroce_iwarp::opcode::Opcode;
use ferroce_iwarp::terminate::{Code, Terminate};
use ferroce_iwarp::{CloseCause, StreamEvent};
use ferroce_objects::{Access, Event, MemRef, QpState, SendData, SendFlags, SendOp, Sge, WcStatus};

use crate::host::{BASE, Host, PARAMS, SIZE, exchange, fpdu, pair, send};

const FLUSHED: WcStatus = WcStatus::WrFlush;

// RFC 5040 5.4: a TERMINATE ends the stream; it is not answered.
#[test]
fn terminate_of_the_peer_flushes_and_is_not_answered() {
    let mut host = Host::new();
    host.stream_events();
    host.post_recv(1, 0, 100);
    let op = SendOp::Read {
        remote_addr: 0,
        rkey: 1,
    };
    host.post(2, op, 0x1000, 100);
    host.send_all();
    let mut bytes = Vec::new();
    Terminate::new(Code::RDMAP_ACCESS, None).encode(&mut bytes);
    bytes.extend([0; 4]);
    host.receive(&bytes);
    assert_eq!(host.state(), QpState::Err);
    assert_eq!(
        (host.sends(), host.receives()),
        (vec![(2, FLUSHED)], vec![(1, FLUSHED)])
    );
    let closed = StreamEvent::Closed {
        qpn: host.qpn,
        abort: false,
        cause: CloseCause::Terminated,
    };
    assert_eq!(host.stream_events(), [closed]);
    assert!(host.sent().is_empty());
    let failures: Vec<String> = host
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Failure(failure) => Some(failure.reason.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(
        failures,
        ["the peer terminated the connection: RDMAP: access rights violation"]
    );
}

// siw: a TERMINATE is sent only if no message is half sent; else the connection is reset.
#[test]
fn terminate_is_not_sent_in_the_middle_of_a_message() {
    let mut host = Host::new();
    host.stream_events();
    host.post(1, SendOp::Send { imm: None }, 0, 5000);
    host.send_up_to(1448);
    host.receive(&[0, 5, 0x41, 0x43]);
    let closed = StreamEvent::Closed {
        qpn: host.qpn,
        abort: true,
        cause: CloseCause::Failed,
    };
    assert_eq!(host.stream_events(), [closed]);
    assert_eq!(host.sends(), [(1, FLUSHED)]);
}

// A message of which nothing has been sent is dropped for the TERMINATE.
#[test]
fn unsent_messages_are_dropped_for_the_terminate() {
    let mut host = Host::new();
    host.stream_events();
    host.post(1, SendOp::Send { imm: None }, 0, 5000);
    let output = host.engine.output(host.now, &host.ram, host.qpn, 1 << 20);
    assert!(output.is_some_and(|output| output.len() > 5000));
    host.receive(&[0, 5, 0x41, 0x43]);
    assert_eq!(host.terminated().code, Code::MPA_LENGTH);
    assert_eq!(host.sends(), [(1, FLUSHED)]);
}

// A work request with an invalid key fails; those before it are sent, those behind flushed.
#[test]
fn send_from_an_invalid_lkey() {
    let (mut a, mut b) = pair(false);
    b.post_recv(1, 0x1000, 100);
    b.post_recv(2, 0x1000, 100);
    a.post(1, SendOp::Send { imm: None }, 0, 50);
    let sges = [Sge {
        lkey: 0x77,
        ..a.sge(0, 50)
    }];
    a.try_post(
        2,
        SendOp::Send { imm: None },
        SendFlags::empty(),
        SendData::Sges(&sges),
    )
    .unwrap();
    a.post(3, SendOp::Send { imm: None }, 0, 50);
    exchange(&mut a, &mut b);
    assert_eq!(
        a.sends(),
        [
            (1, WcStatus::Success),
            (2, WcStatus::LocalProtection),
            (3, FLUSHED)
        ]
    );
    assert_eq!(b.receives(), [(1, WcStatus::Success), (2, FLUSHED)]);
}

// The receive of a SEND is flushed with the stream: the rest of its payload has no place.
#[test]
fn failed_stream_places_no_more_payload() {
    let mut host = Host::new();
    host.post_recv(1, 0x1000, 1000);
    let bytes = fpdu(&send(Opcode::Send, 1, 0, true, 1000), &[7; 1000], false);
    host.receive(&bytes[..100]);
    let sges = [Sge {
        lkey: 0x77,
        ..host.sge(0, 50)
    }];
    let op = SendOp::Send { imm: None };
    host.try_post(2, op, SendFlags::empty(), SendData::Sges(&sges))
        .unwrap();
    host.send_all();
    assert_eq!(host.receives(), [(1, FLUSHED)]);
    let before = host.ram.get(BASE, SIZE);
    let mut places = vec![(MemRef::host(0), 1)];
    host.engine.direct_places(host.qpn, &mut places);
    assert_eq!(places, []);
    host.receive(&bytes[100..]);
    assert_eq!(host.ram.get(BASE, SIZE), before);
}

// Memory of the output that the kernel cannot read fails the work request it belongs to.
#[test]
fn send_from_memory_that_cannot_be_read() {
    let mut host = Host::new();
    host.post(1, SendOp::Send { imm: None }, 0, 500);
    host.post(2, SendOp::Send { imm: None }, 0x2000, 500);
    let output = host.engine.output(host.now, &host.ram, host.qpn, 1 << 20);
    assert_eq!(output.map(ferroce_iwarp::Output::len), Some(2 * 524));
    host.engine.accepted(host.now, host.qpn, 524 + 20);
    host.engine.output_fault(host.now, host.qpn);
    assert_eq!(
        host.sends(),
        [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]
    );
    let mut host = Host::with(Params {
        crc: true,
        ..PARAMS
    });
    host.ram.holes.borrow_mut().push(BASE..BASE + 10);
    host.post(1, SendOp::Send { imm: None }, 0, 500);
    host.send_all();
    assert_eq!(host.sends(), [(1, WcStatus::LocalProtection)]);
}

// A sender that copies sends what it can read before, and then reports the same fault as one that gathers.
#[test]
fn messages_before_memory_that_cannot_be_read_are_copied() {
    let mut host = Host::new();
    host.ram
        .holes
        .borrow_mut()
        .push(BASE + 0x2000..BASE + 0x2001);
    host.post(1, SendOp::Send { imm: None }, 0, 500);
    host.post(2, SendOp::Send { imm: None }, 0x2000, 500);
    let mut copied = Vec::new();
    let output = host
        .engine
        .output(host.now, &host.ram, host.qpn, 1 << 20)
        .unwrap();
    output.copy_to(&host.ram, 1 << 20, &mut copied).unwrap();
    assert_eq!(copied.len(), 524 + 20, "up to the header of the second");
    host.engine.accepted(host.now, host.qpn, copied.len());
    let output = host
        .engine
        .output(host.now, &host.ram, host.qpn, 1 << 20)
        .unwrap();
    assert!(output.copy_to(&host.ram, 1 << 20, &mut copied).is_err());
    host.engine.output_fault(host.now, host.qpn);
    assert_eq!(
        host.sends(),
        [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]
    );
}

// The rest of a Read Response is copied when its region ends: the peer reads nothing after.
#[test]
fn read_response_is_copied_when_its_region_ends() {
    for taken in [0, 300] {
        let (mut a, mut b) = pair(false);
        let memory = MemRef::host(BASE + 0x4000);
        let mr = b
            .regions
            .register(&b.pd, memory, 0x1000, BASE + 0x4000, Access::REMOTE_READ)
            .unwrap();
        let op = SendOp::Read {
            remote_addr: BASE + 0x4000,
            rkey: mr.rkey(),
        };
        a.post(1, op, 0x9000, 1000);
        let request = a.send_all();
        b.receive(&request);
        let expected = b.ram.get(BASE + 0x4000, 1000);
        let first = b.send_up_to(taken);
        b.regions.deregister(&mr).unwrap();
        b.engine.own_outputs(b.now, &b.ram);
        b.ram.put(BASE + 0x4000, &[0; 1000]);
        let second = b.send_all();
        a.receive(&first);
        a.receive(&second);
        assert_eq!(a.sends(), [(1, WcStatus::Success)]);
        assert_eq!(a.ram.get(BASE + 0x9000, 1000), expected);
    }
}
