//! TERMINATE: the right error for each fault of the peer, and nothing else changes.

use ferroce_iwarp::header::{Header, Place, ReadRequest};
use ferroce_iwarp::mpa::Params;
use ferroce_iwarp::opcode::Opcode;
use ferroce_iwarp::terminate::Code;
use ferroce_objects::{Access, Event, MemRef, QpEvent, QpState, SendOp, WcStatus};

use crate::host::{BASE, Host, PARAMS, SIZE, fpdu, send};

const FLUSHED: WcStatus = WcStatus::WrFlush;

fn write(stag: u32, offset: u64, last: bool, payload: usize) -> Header {
    Header::tagged(Opcode::Write, last, stag, offset, payload as u32)
}

fn read_request(msn: u32, read: ReadRequest) -> Header {
    Header {
        opcode: Opcode::ReadRequest,
        last: true,
        place: Place::Untagged {
            invalidate: 0,
            queue: 1,
            msn,
            mo: 0,
            read: Some(read),
        },
        payload: 0,
    }
}

fn source(stag: u32, offset: u64, size: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: 5,
        sink_offset: 0,
        size,
        source_stag: stag,
        source_offset: offset,
    }
}

/// Returns the STag of a region with these permissions, in the same domain or another.
fn region(host: &Host, access: Access, same_domain: bool) -> u32 {
    let pd = match same_domain {
        true => host.pd.clone(),
        false => host.regions.alloc_pd(),
    };
    let memory = MemRef::host(BASE);
    let mr = host.regions.register(&pd, memory, 0x1000, BASE, access);
    mr.unwrap().rkey()
}

const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

// RFC 5041 7.1: errors of tagged buffers.
#[test]
fn write_to_an_unknown_stag() {
    Host::new().refuses(
        &write(0x1234, BASE, true, 4),
        &[1; 4],
        Code::DDP_INVALID_STAG,
    );
}

// RFC 5041 7.1: base or bounds violation. Nothing is placed.
#[test]
fn write_beyond_the_region() {
    let mut host = Host::new();
    let stag = region(&host, WRITABLE, true);
    let before = host.ram.get(BASE, SIZE);
    let header = write(stag, BASE + 0xfff, true, 2);
    host.refuses(&header, &[1; 2], Code::DDP_BOUNDS);
    assert_eq!(host.ram.get(BASE, SIZE), before);
    assert!(host.events().contains(&Event::Qp {
        qpn: host.qpn,
        kind: QpEvent::AccessError
    }));
}

// RFC 5041 7.1: the STag belongs to another stream's domain.
#[test]
fn write_to_another_protection_domain() {
    let mut host = Host::new();
    let stag = region(&host, WRITABLE, false);
    host.refuses(
        &write(stag, BASE, true, 4),
        &[1; 4],
        Code::DDP_NOT_ASSOCIATED,
    );
}

// RFC 5041 7.1: the tagged offset wraps.
#[test]
fn write_whose_offset_wraps() {
    let mut host = Host::new();
    let header = write(host.mr.rkey(), u64::MAX, true, 4);
    host.refuses(&header, &[1; 4], Code::DDP_WRAP);
}

// siw: a missing permission has the code of an invalid STag.
#[test]
fn write_without_permission() {
    let mut host = Host::new();
    let stag = region(&host, Access::REMOTE_READ, true);
    host.refuses(&write(stag, BASE, true, 4), &[1; 4], Code::DDP_INVALID_STAG);
}

// RFC 5041 5.2: a segment without payload accesses no memory.
#[test]
fn write_of_no_bytes_to_an_unknown_stag_is_accepted() {
    let mut host = Host::new();
    host.receive(&fpdu(&write(0x1234, 7, true, 0), &[], false));
    assert_eq!(host.state(), QpState::Rts);
}

// siw: later segments of a Write continue at exactly the STag and offset.
#[test]
fn write_that_jumps() {
    for (stag, offset, code) in [(0, 101, Code::DDP_BOUNDS), (1, 100, Code::DDP_INVALID_STAG)] {
        let mut host = Host::new();
        let key = host.mr.rkey();
        let first = write(key, BASE, false, 100);
        host.receive(&fpdu(&first, &[1; 100], false));
        let second = write(key ^ stag, BASE + offset, true, 4);
        host.refuses(&second, &[1; 4], code);
    }
}

// RFC 5041 7.1: a region that ends between two segments is no longer written.
#[test]
fn write_to_a_region_that_ends_in_the_middle() {
    let mut host = Host::new();
    let memory = MemRef::host(BASE + 0x1000);
    let mr = host
        .regions
        .register(&host.pd, memory, 0x1000, BASE + 0x1000, WRITABLE)
        .unwrap();
    let header = write(mr.rkey(), BASE + 0x1000, true, 1000);
    let bytes = fpdu(&header, &[0xee; 1000], false);
    host.receive(&bytes[..516]);
    assert_eq!(host.ram.get(BASE + 0x1000, 500), [0xee; 500]);
    host.regions.deregister(&mr).unwrap();
    let before = host.ram.get(BASE, SIZE);
    host.receive(&bytes[516..]);
    assert_eq!(host.ram.get(BASE, SIZE), before);
    assert_eq!(host.terminated().code, Code::DDP_INVALID_STAG);
}

// RFC 5041 7.2: errors of untagged buffers.
#[test]
fn send_without_a_receive() {
    let header = send(Opcode::Send, 1, 0, true, 4);
    Host::new().refuses(&header, &[1; 4], Code::DDP_NO_BUFFER);
}

// RFC 5041 7.2: the MSN is the next one of its queue.
#[test]
fn send_with_a_wrong_msn() {
    for msn in [0, 2, u32::MAX] {
        let mut host = Host::new();
        host.post_recv(1, 0, 100);
        host.refuses(
            &send(Opcode::Send, msn, 0, true, 4),
            &[1; 4],
            Code::DDP_MSN_RANGE,
        );
        assert_eq!(host.receives(), [(1, FLUSHED)]);
    }
}

// RFC 5041 7.2: the MO is the next one of its message.
#[test]
fn send_with_a_wrong_offset() {
    let mut host = Host::new();
    host.post_recv(1, 0, 1000);
    host.receive(&fpdu(
        &send(Opcode::Send, 1, 0, false, 100),
        &[1; 100],
        false,
    ));
    let header = send(Opcode::Send, 1, 104, true, 4);
    host.refuses(&header, &[1; 4], Code::DDP_INVALID_MO);
    assert_eq!(host.receives(), [(1, FLUSHED)]);
}

// RFC 5041 7.2: the queue number belongs to the opcode.
#[test]
fn send_to_a_wrong_queue() {
    let mut host = Host::new();
    host.post_recv(1, 0, 100);
    let mut header = send(Opcode::Send, 1, 0, true, 4);
    if let Place::Untagged { queue, .. } = &mut header.place {
        *queue = 1;
    }
    host.refuses(&header, &[1; 4], Code::DDP_INVALID_QUEUE);
}

// siw: a message longer than its receive has the code of a missing buffer.
#[test]
fn send_longer_than_the_receive() {
    let mut host = Host::new();
    host.post_recv(1, 0, 99);
    host.post_recv(2, 0, 99);
    let before = host.ram.get(BASE, SIZE);
    let header = send(Opcode::Send, 1, 0, true, 100);
    host.refuses(&header, &[1; 100], Code::DDP_NO_BUFFER);
    assert_eq!(host.receives(), [(1, WcStatus::LocalLength), (2, FLUSHED)]);
    assert_eq!(host.ram.get(BASE, SIZE), before);
}

// siw: an error of the receive's own memory is a catastrophic one of DDP.
#[test]
fn send_into_memory_that_cannot_be_written() {
    let mut host = Host::new();
    host.post_recv(1, 0x2000, 100);
    host.ram
        .holes
        .borrow_mut()
        .push(BASE + 0x2000..BASE + 0x3000);
    let header = send(Opcode::Send, 1, 0, true, 4);
    host.refuses(&header, &[1; 4], Code::DDP_CATASTROPHIC);
    assert_eq!(host.receives(), [(1, WcStatus::LocalProtection)]);
}

// siw: segments of two untagged messages do not mix ("packet intersection").
#[test]
fn untagged_messages_do_not_intersect() {
    for other in [
        send(Opcode::SendSolicited, 1, 100, true, 4),
        read_request(1, source(0, 0, 0)),
    ] {
        let mut host = Host::new();
        host.post_recv(1, 0, 1000);
        host.receive(&fpdu(
            &send(Opcode::Send, 1, 0, false, 100),
            &[1; 100],
            false,
        ));
        let payload = &[1; 4][..other.payload as usize];
        host.refuses(&other, payload, Code::RDMAP_UNEXPECTED_OPCODE);
    }
}

// siw: segments of two tagged messages do not mix.
#[test]
fn tagged_messages_do_not_intersect() {
    let mut host = Host::new();
    let header = write(host.mr.rkey(), BASE, false, 4);
    host.receive(&fpdu(&header, &[1; 4], false));
    let other = Header::tagged(Opcode::ReadResponse, true, 0, 0, 0);
    host.refuses(&other, &[], Code::RDMAP_UNEXPECTED_OPCODE);
}

// siw: a tagged and an untagged message may mix.
#[test]
fn tagged_and_untagged_messages_may_intersect() {
    let mut host = Host::new();
    host.post_recv(1, 0x1000, 100);
    let key = host.mr.rkey();
    host.receive(&fpdu(&send(Opcode::Send, 1, 0, false, 4), &[1; 4], false));
    host.receive(&fpdu(&write(key, BASE, false, 4), &[2; 4], false));
    host.receive(&fpdu(&send(Opcode::Send, 1, 4, true, 4), &[3; 4], false));
    host.receive(&fpdu(&write(key, BASE + 4, true, 4), &[4; 4], false));
    assert_eq!(host.receives(), [(1, WcStatus::Success)]);
    assert_eq!(host.ram.get(BASE, 8), [2, 2, 2, 2, 4, 4, 4, 4]);
    assert_eq!(host.ram.get(BASE + 0x1000, 8), [1, 1, 1, 1, 3, 3, 3, 3]);
}

// RFC 5040 section 7: errors of a Read's source are remote protection errors of RDMAP.
#[test]
fn read_of_memory_that_the_peer_may_not_read() {
    let host = Host::new();
    let readable = Access::REMOTE_READ;
    let cases = [
        (0x1234, BASE, 4, Code::RDMAP_INVALID_STAG),
        (
            region(&host, readable, true),
            BASE + 0xfff,
            2,
            Code::RDMAP_BOUNDS,
        ),
        (region(&host, WRITABLE, true), BASE, 4, Code::RDMAP_ACCESS),
        (
            region(&host, readable, false),
            BASE,
            4,
            Code::RDMAP_NOT_ASSOCIATED,
        ),
        (region(&host, readable, true), u64::MAX, 4, Code::RDMAP_WRAP),
    ];
    for (stag, offset, size, code) in cases {
        // Keys follow from the seed, so that every host has the same.
        let mut host = Host::new();
        region(&host, readable, true);
        region(&host, WRITABLE, true);
        region(&host, readable, false);
        region(&host, readable, true);
        host.refuses(&read_request(1, source(stag, offset, size)), &[], code);
    }
}

// RFC 5040 5.2.1: a Read of no bytes names no memory.
#[test]
fn read_of_no_bytes_from_an_unknown_stag_is_answered() {
    let mut host = Host::new();
    host.receive(&fpdu(&read_request(1, source(0x1234, 9, 0)), &[], false));
    let expected = Header::tagged(Opcode::ReadResponse, true, 5, 0, 0);
    assert_eq!(host.sent(), [(expected, Vec::new())]);
}

// siw: more Reads than the IRD, rounded up to a power of two, are catastrophic.
#[test]
fn reads_beyond_the_ird() {
    for (ird, room) in [(0, 0), (1, 1), (3, 4), (4, 4)] {
        let mut host = Host::with(Params { ird, ..PARAMS });
        let read = source(host.mr.rkey(), BASE, 4);
        for msn in 1..=room {
            host.receive(&fpdu(&read_request(msn, read), &[], false));
        }
        assert_eq!(host.state(), QpState::Rts, "IRD {ird}");
        let header = read_request(room + 1, read);
        host.refuses(&header, &[], Code::RDMAP_CATASTROPHIC_STREAM);
    }
}

// RFC 5041 7.2: a Read Request has no payload.
#[test]
fn read_request_with_payload() {
    let header = Header {
        payload: 4,
        ..read_request(1, source(1, 0, 0))
    };
    Host::new().refuses(&header, &[1; 4], Code::DDP_TOO_LONG);
}

// RFC 5041 7.2: MSNs of Read Requests are counted in their own queue.
#[test]
fn read_request_with_a_wrong_msn() {
    let header = read_request(2, source(1, 0, 0));
    Host::new().refuses(&header, &[], Code::DDP_MSN_RANGE);
}

// RFC 5040 5.2: a Read Response without a Read.
#[test]
fn read_response_without_an_outstanding_read() {
    let header = Header::tagged(Opcode::ReadResponse, true, 1, 0, 4);
    Host::new().refuses(&header, &[1; 4], Code::RDMAP_UNEXPECTED_OPCODE);
}

// siw: a Read Response matches the oldest outstanding Read exactly.
#[test]
fn read_response_that_does_not_match() {
    for (stag, offset, last, length, code) in [
        (1, 0, true, 100, Code::DDP_INVALID_STAG),
        (0, 4, true, 100, Code::DDP_BOUNDS),
        (0, 0, true, 99, Code::DDP_BOUNDS),
        (0, 0, false, 100, Code::DDP_BOUNDS),
        (0, 0, true, 101, Code::DDP_BOUNDS),
    ] {
        let mut host = Host::new();
        let op = SendOp::Read {
            remote_addr: 0,
            rkey: 1,
        };
        host.post(1, op, 0x1000, 100);
        host.post(2, SendOp::Send { imm: None }, 0, 10);
        host.send_all();
        let stag = host.mr.lkey() ^ stag;
        let before = host.ram.get(BASE, SIZE);
        let offset = BASE + 0x1000 + offset;
        let header = Header::tagged(Opcode::ReadResponse, last, stag, offset, length);
        host.refuses(&header, &vec![0xee; length as usize], code);
        assert_eq!(host.ram.get(BASE, SIZE), before);
        assert_eq!(host.sends(), [(1, WcStatus::BadResponse), (2, FLUSHED)]);
    }
}

// RFC 5040 section 7: an STag that cannot be invalidated.
#[test]
fn invalidate_of_a_region_is_refused() {
    let host = Host::new();
    let cases = [
        (host.mr.rkey(), Code::RDMAP_CANNOT_INVALIDATE),
        (0x1234, Code::RDMAP_CANNOT_INVALIDATE),
    ];
    for (stag, code) in cases {
        let mut host = Host::new();
        host.post_recv(1, 0, 100);
        let mut header = send(Opcode::SendInvalidate, 1, 0, true, 4);
        if let Place::Untagged { invalidate, .. } = &mut header.place {
            *invalidate = stag;
        }
        host.refuses(&header, &[1; 4], code);
        assert_eq!(host.receives(), [(1, WcStatus::RemoteInvalidRequest)]);
    }
}

// RFC 5044 section 8: errors of MPA copy no headers.
#[test]
fn wrong_crc_and_impossible_length() {
    let mut host = Host::with(Params {
        crc: true,
        ..PARAMS
    });
    host.stream_events();
    let before = host.ram.get(BASE, SIZE);
    let mut bytes = fpdu(&write(host.mr.rkey(), BASE, true, 64), &[1; 64], true);
    bytes[30] ^= 1;
    host.receive(&bytes);
    let bytes = host.send_all();
    assert_eq!(&bytes[20..24], &[0x20, 0x02, 0, 0], "MPA, CRC error");
    assert_eq!(host.ram.get(BASE, SIZE), before);

    let mut host = Host::new();
    host.stream_events();
    host.receive(&[0, 5, 0x41, 0x43]);
    assert_eq!(host.terminated().code, Code::MPA_LENGTH);
}

// RFC 5040 section 7 and RFC 5041 section 7: versions and opcodes.
#[test]
fn wrong_versions_and_opcodes() {
    for (word, code) in [
        (0x4043, Code::DDP_UNTAGGED_VERSION),
        (0xc240, Code::DDP_TAGGED_VERSION),
        (0x4103, Code::RDMAP_VERSION),
        (0x4148, Code::RDMAP_UNEXPECTED_OPCODE),
    ] {
        let mut host = Host::new();
        host.stream_events();
        let [high, low] = u16::to_be_bytes(word);
        host.receive(&[0, 100, high, low]);
        assert_eq!(host.terminated().code, code);
    }
}
