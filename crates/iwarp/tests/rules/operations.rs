//! SEND, WRITE and READ between two queue pairs.

use std::sync::Arc;

use ferroce_iwarp::header::{Place, ReadRequest};
use ferroce_iwarp::mpa::{Params, Role, Rtr};
use ferroce_iwarp::opcode::Opcode;
use ferroce_iwarp::{Piece, StreamEvent};
use ferroce_objects::{
    Access, Arm, BindMw, Event, MwKind, QpState, RecvWr, SendData, SendFlags, SendOp, Srq, SrqInit,
    WcFlags, WcOpcode, WcStatus,
};

use crate::host::{BASE, Host, MSS, PARAMS, drain, exchange, fpdus, pair, send};

const OK: WcStatus = WcStatus::Success;

fn write(host: &Host, offset: u64) -> SendOp {
    SendOp::Write {
        remote_addr: BASE + offset,
        rkey: host.mr.rkey(),
        imm: None,
    }
}

fn read(host: &Host, offset: u64) -> SendOp {
    SendOp::Read {
        remote_addr: BASE + offset,
        rkey: host.mr.rkey(),
    }
}

const SEND: SendOp = SendOp::Send { imm: None };

// RFC 5040 5.3: a SEND is delivered into the next receive, in any number of segments.
#[test]
fn send_of_every_length_class_is_delivered() {
    for crc in [false, true] {
        for length in [0, 1, 3, 4, 255, 256, 1424, 1425, 5000, 200_000] {
            let (mut a, mut b) = pair(crc);
            b.post_recv(1, 0x40000, 250_000);
            a.post(2, SEND, 0x100, length);
            exchange(&mut a, &mut b);
            let received = drain(&b.recv_cq);
            assert_eq!(received.len(), 1);
            assert_eq!((received[0].wr_id, received[0].byte_len), (1, length));
            assert_eq!(
                (received[0].opcode, received[0].status),
                (WcOpcode::Recv, OK)
            );
            let length = length as usize;
            assert_eq!(
                b.ram.get(BASE + 0x40000, length),
                a.ram.get(BASE + 0x100, length)
            );
            let sent = drain(&a.send_cq);
            assert_eq!((sent[0].wr_id, sent[0].opcode), (2, WcOpcode::Send));
        }
    }
}

// RFC 5041 4.1 and 4.3: MSN counts messages, MO counts bytes, L marks the last segment.
#[test]
fn segments_of_a_send_have_msn_mo_and_last_bit() {
    let mut a = Host::new();
    a.post(1, SEND, 0, 3000);
    a.post(2, SEND, 0, 10);
    let places: Vec<_> = a.sent().into_iter().map(|(header, _)| header).collect();
    assert_eq!(
        places,
        [
            send(Opcode::Send, 1, 0, false, 1424),
            send(Opcode::Send, 1, 1424, false, 1424),
            send(Opcode::Send, 1, 2848, true, 152),
            send(Opcode::Send, 2, 0, true, 10),
        ]
    );
}

// RFC 5041 5.2: the offset of a tagged message advances with its segments.
#[test]
fn write_is_placed_and_completes_when_sent() {
    for crc in [false, true] {
        let (mut a, mut b) = pair(crc);
        let op = write(&b, 0x5000);
        a.post(1, op, 0x100, 4000);
        exchange(&mut a, &mut b);
        assert_eq!(
            b.ram.get(BASE + 0x5000, 4000),
            a.ram.get(BASE + 0x100, 4000)
        );
        assert_eq!(a.sends(), [(1, OK)]);
        assert_eq!(b.receives(), [], "the peer's program is not told");
    }
}

// RFC 5040 5.2: a READ is answered by a tagged message to the sink.
#[test]
fn read_is_placed_and_completes_when_its_data_has_come() {
    for crc in [false, true] {
        for length in [0, 1, 1428, 1429, 100_000] {
            let (mut a, mut b) = pair(crc);
            let op = read(&b, 0x100);
            a.post(1, op, 0x40000, length);
            let request = a.send_all();
            assert_eq!(
                a.sends(),
                [],
                "the request has been sent, the data is missing"
            );
            b.receive(&request);
            exchange(&mut a, &mut b);
            let length = length as usize;
            assert_eq!(
                a.ram.get(BASE + 0x40000, length),
                b.ram.get(BASE + 0x100, length)
            );
            assert_eq!(a.sends(), [(1, OK)]);
        }
    }
}

// RFC 5040 4.4: the sink of a Read Request is the local memory of the READ.
#[test]
fn read_request_names_sink_and_source() {
    let mut a = Host::new();
    let source = SendOp::Read {
        remote_addr: 0x7000,
        rkey: 0x99,
    };
    a.post(1, source, 0x40, 500);
    let sent = a.sent();
    let Place::Untagged {
        queue,
        msn,
        mo,
        read,
        ..
    } = sent[0].0.place
    else {
        panic!("{sent:?}");
    };
    assert_eq!((queue, msn, mo), (1, 1, 0));
    let expected = ReadRequest {
        sink_stag: a.mr.lkey(),
        sink_offset: BASE + 0x40,
        size: 500,
        source_stag: 0x99,
        source_offset: 0x7000,
    };
    assert_eq!(read, Some(expected));
}

// Work requests complete in the order of posting, although a WRITE behind a READ is sent first.
#[test]
fn completions_keep_the_order_of_posts() {
    let (mut a, mut b) = pair(false);
    let (first, second) = (read(&b, 0), write(&b, 0x8000));
    a.post(1, first, 0x100, 10);
    a.post(2, second, 0x100, 10);
    let bytes = a.send_all();
    assert_eq!(
        fpdus(&bytes).len(),
        2,
        "the WRITE does not wait for the READ"
    );
    assert_eq!(a.sends(), []);
    b.receive(&bytes);
    exchange(&mut a, &mut b);
    assert_eq!(a.sends(), [(1, OK), (2, OK)]);
}

// RFC 5040 5.5: a fence waits for the READs before it.
#[test]
fn fence_waits_for_outstanding_reads() {
    let (mut a, mut b) = pair(false);
    let (first, second) = (read(&b, 0), write(&b, 0x8000));
    a.post(1, first, 0x100, 10);
    let sges = [a.sge(0x100, 10)];
    a.try_post(2, second, SendFlags::FENCE, SendData::Sges(&sges))
        .unwrap();
    let request = a.send_all();
    assert_eq!(fpdus(&request).len(), 1);
    b.receive(&request);
    let response = b.send_all();
    a.receive(&response);
    assert_eq!(a.sent()[0].0.opcode, Opcode::Write);
    assert_eq!(a.sends(), [(1, OK), (2, OK)]);
}

// RFC 6581 9.1: no more Reads are outstanding than the ORD.
#[test]
fn reads_beyond_the_ord_wait() {
    let params = Params { ord: 2, ..PARAMS };
    let mut a = Host::with(params);
    let mut b = Host::new();
    for wr_id in 0..5 {
        let op = read(&b, 0);
        a.post(wr_id, op, 0x100, 10);
    }
    let requests = a.send_all();
    assert_eq!(fpdus(&requests).len(), 2);
    b.receive(&requests);
    exchange(&mut a, &mut b);
    assert_eq!(a.sends().len(), 5);
}

// A connection with ORD 0 can never send the READ.
#[test]
fn read_with_ord_0_fails() {
    let mut a = Host::with(Params { ord: 0, ..PARAMS });
    let op = read(&a, 0);
    a.post(1, SEND, 0, 10);
    a.post(2, op, 0x100, 10);
    a.post(3, SEND, 0, 10);
    let opcodes: Vec<_> = a.sent().iter().map(|(h, _)| h.opcode).collect();
    assert_eq!(opcodes, [Opcode::Send, Opcode::Terminate]);
    assert_eq!(
        a.sends(),
        [
            (1, OK),
            (2, WcStatus::LocalQpOperation),
            (3, WcStatus::WrFlush)
        ]
    );
}

#[test]
fn solicited_sends_notify_a_queue_armed_for_them() {
    let (mut a, mut b) = pair(false);
    b.recv_cq.arm(Arm::Solicited);
    for (wr_id, flags) in [(1, SendFlags::empty()), (2, SendFlags::SOLICITED)] {
        b.post_recv(wr_id, 0, 100);
        let sges = [a.sge(0, 10)];
        a.try_post(wr_id, SEND, flags, SendData::Sges(&sges))
            .unwrap();
        exchange(&mut a, &mut b);
        let notified = b.events().contains(&Event::CqNotify { cq: 2 });
        assert_eq!(notified, wr_id == 2);
    }
}

#[test]
fn inline_data_is_copied_when_posted() {
    let (mut a, mut b) = pair(false);
    b.post_recv(1, 0x1000, 80);
    let mut data = *b"copied at once";
    a.try_post(1, SEND, SendFlags::INLINE, SendData::Inline(&data))
        .unwrap();
    data.fill(0);
    exchange(&mut a, &mut b);
    assert_eq!(b.ram.get(BASE + 0x1000, 14), b"copied at once");
}

#[test]
fn gather_and_scatter_lists_are_walked() {
    for crc in [false, true] {
        let (mut a, mut b) = pair(crc);
        let scatter = [b.sge(0x1000, 5), b.sge(0x2000, 0), b.sge(0x3000, 4000)];
        let wr = RecvWr {
            wr_id: 1,
            sges: &scatter,
        };
        b.engine.post_recv(b.now, b.qpn, &wr).unwrap();
        let gather = [a.sge(0, 1000), a.sge(0x9000, 2), a.sge(0x5000, 2000)];
        a.try_post(2, SEND, SendFlags::empty(), SendData::Sges(&gather))
            .unwrap();
        exchange(&mut a, &mut b);
        let get = |offset, length| a.ram.get(BASE + offset, length);
        let message = [get(0, 1000), get(0x9000, 2), get(0x5000, 2000)].concat();
        assert_eq!(b.ram.get(BASE + 0x1000, 5), message[..5]);
        assert_eq!(b.ram.get(BASE + 0x3000, 2997), message[5..]);
        assert_eq!(drain(&b.recv_cq)[0].byte_len, 3002);
    }
}

#[test]
fn unsignaled_sends_have_no_completion() {
    let (mut a, mut b) = (
        Host::unconnected(|init| init.sq_sig_all = false),
        Host::new(),
    );
    a.engine.connect(a.now, a.qpn, PARAMS, MSS).unwrap();
    b.post_recv(1, 0, 100);
    b.post_recv(2, 0, 100);
    a.post(1, SEND, 0, 10);
    let sges = [a.sge(0, 10)];
    a.try_post(2, SEND, SendFlags::SIGNALED, SendData::Sges(&sges))
        .unwrap();
    exchange(&mut a, &mut b);
    assert_eq!(a.sends(), [(2, OK)]);
}

#[test]
fn shared_receive_queue_serves_the_queue_pair_and_reports_its_limit() {
    let mut srq: Option<Arc<Srq>> = None;
    let mut b = Host::unconnected(|init| {
        let sizes = SrqInit {
            max_wr: 4,
            max_sge: 1,
            xrc: None,
        };
        srq = Srq::new(9, init.pd.clone().unwrap(), sizes).ok();
        init.srq = srq.clone();
    });
    let srq = srq.unwrap();
    b.engine.connect(b.now, b.qpn, PARAMS, MSS).unwrap();
    let sges = [b.sge(0x1000, 100)];
    for wr_id in 1..=2 {
        srq.post(&RecvWr { wr_id, sges: &sges }).unwrap();
    }
    srq.set_limit(2).unwrap();
    let mut a = Host::new();
    a.post(1, SEND, 0, 10);
    exchange(&mut a, &mut b);
    assert_eq!(b.receives(), [(1, OK)]);
    assert!(b.events().contains(&Event::SrqLimitReached { srq: 9 }));
    assert!(
        b.engine
            .post_recv(
                b.now,
                b.qpn,
                &RecvWr {
                    wr_id: 1,
                    sges: &[]
                }
            )
            .is_err()
    );
}

// RFC 5040 5.3: SEND with Invalidate ends the receiver's STag before the completion.
#[test]
fn send_with_invalidate_ends_a_window() {
    let (mut a, mut b) = pair(false);
    let mw = b.regions.alloc_mw(&b.pd, MwKind::Type2B).unwrap();
    let bind = BindMw {
        rkey: mw.rkey(),
        mw: mw.clone(),
        mr: Some(b.mr.clone()),
        addr: BASE,
        length: 100,
        access: Access::REMOTE_WRITE,
    };
    let rkey = b.regions.bind(&b.pd, b.qpn, &bind).unwrap();
    let op = SendOp::Write {
        remote_addr: BASE,
        rkey,
        imm: None,
    };
    a.post(1, op.clone(), 0x100, 10);
    b.post_recv(7, 0x1000, 100);
    a.post(2, SendOp::SendInvalidate { rkey }, 0x100, 10);
    exchange(&mut a, &mut b);
    let wc = drain(&b.recv_cq)[0];
    assert_eq!((wc.wr_id, wc.flags, wc.imm), (7, WcFlags::WITH_INV, rkey));
    assert_eq!(b.ram.get(BASE, 10), a.ram.get(BASE + 0x100, 10));
    a.post(3, op, 0x200, 10);
    exchange(&mut a, &mut b);
    assert_eq!(b.state(), QpState::Err, "the window is gone");
}

// RFC 6581 9.2: in peer-to-peer mode the responder is ready after the RTR frame.
#[test]
fn rtr_frame_makes_the_responder_ready() {
    for rtr in [Rtr::Write, Rtr::Read] {
        let params = |role| Params {
            role,
            rtr: Some(rtr),
            ..PARAMS
        };
        let mut a = Host::with(params(Role::Initiator));
        let mut b = Host::with(params(Role::Responder));
        assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rtr));
        assert_eq!(b.engine.poll_stream_event(), None);
        let frame = a.send_all();
        if rtr == Rtr::Write {
            let expected = [0, 14, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(frame[..16], expected);
        }
        b.receive(&frame[..frame.len() - 1]);
        assert_eq!(b.engine.poll_stream_event(), None);
        b.receive(&frame[frame.len() - 1..]);
        let established = StreamEvent::Established { qpn: b.qpn };
        assert_eq!(b.engine.poll_stream_event(), Some(established));
        assert_eq!(b.state(), QpState::Rts);
        a.post_recv(1, 0x1000, 100);
        b.post(2, SEND, 0, 10);
        exchange(&mut a, &mut b);
        assert_eq!(a.receives(), [(1, OK)]);
        assert_eq!(a.sends(), [], "the RTR frame has no completion");
    }
}

// One send call gathers several FPDUs, and long payload is not copied.
#[test]
fn output_refers_to_memory_and_holds_several_fpdus() {
    let mut a = Host::new();
    for wr_id in 0..3 {
        a.post(wr_id, SEND, 0x100, 3000);
    }
    let output = a.engine.output(a.now, &a.ram, a.qpn, 1 << 20).unwrap();
    let pieces: Vec<Piece<'_>> = output.pieces().collect();
    let referred: usize = pieces
        .iter()
        .filter(|piece| matches!(piece, Piece::Memory(..)))
        .map(Piece::len)
        .sum();
    assert_eq!(referred, 3 * 2 * 1424, "all but the short ends");
    assert_eq!(pieces.iter().map(Piece::len).sum::<usize>(), output.len());
    assert!(
        pieces.len() <= 3 * 2 * 2 + 1,
        "one piece between two payloads"
    );
}

// siw and RFC 5040: a SEND completes when TCP has all of it, not when the peer has it.
#[test]
fn send_completes_when_the_socket_has_its_last_byte() {
    let mut a = Host::new();
    a.post(1, SEND, 0, 5000);
    a.post(2, SEND, 0, 10);
    let first: usize = 5000 + 4 * 24;
    let mut sent = a.send_up_to(first - 1);
    assert_eq!(a.sends(), []);
    sent.extend(a.send_up_to(1));
    assert_eq!(a.sends(), [(1, OK)]);
    sent.extend(a.send_all());
    assert_eq!(a.sends(), [(2, OK)]);
    assert_eq!(fpdus(&sent).len(), 5);
}

// The kernel may write payload to its place while it copies from the socket.
#[test]
fn payload_can_be_placed_by_the_caller() {
    let (mut a, mut b) = pair(false);
    let op = write(&b, 0x5000);
    a.post(1, op, 0x100, 1000);
    let bytes = a.send_all();
    let mut places = Vec::new();
    b.engine.direct_places(b.qpn, &mut places);
    assert!(places.is_empty(), "no header has come");
    b.receive(&bytes[..16 + 100]);
    b.engine.direct_places(b.qpn, &mut places);
    let [(at, 900)] = places[..] else {
        panic!("{places:?}");
    };
    assert_eq!(at.addr(), BASE + 0x5000 + 100);
    b.ram.put(at.addr(), &bytes[116..616]);
    b.engine.placed(b.qpn, 500);
    b.receive(&bytes[616..]);
    assert_eq!(
        b.ram.get(BASE + 0x5000, 1000),
        a.ram.get(BASE + 0x100, 1000)
    );
    b.engine.direct_places(b.qpn, &mut places);
    assert!(places.is_empty());
    assert_eq!(b.state(), QpState::Rts);
}

// A peer that reads without pause does not keep the program from sending.
#[test]
fn requests_and_read_responses_take_turns() {
    let (mut a, mut b) = pair(false);
    for wr_id in 0..4 {
        let op = read(&b, 0);
        a.post(wr_id, op, 0x100, 10);
        b.post(wr_id, SEND, 0, 10);
    }
    let requests = a.send_all();
    b.receive(&requests);
    let opcodes: Vec<Opcode> = b.sent().iter().map(|(header, _)| header.opcode).collect();
    let (response, send) = (Opcode::ReadResponse, Opcode::Send);
    assert_eq!(opcodes, [response, send].repeat(4));
}
