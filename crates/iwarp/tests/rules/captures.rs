//! Streams captured from the kernel's siw: they are parsed, and re-encoded byte for byte.

use std::collections::BTreeMap;

use ferroce_iwarp::Time;
use ferroce_iwarp::fpdu::{FpduError, FpduReader, Sink, max_fpdu, padding};
use ferroce_iwarp::header::{Header, Place};
use ferroce_iwarp::mpa::{Frame, FrameKind, Initiator, Offer, Replied, Responder};
use ferroce_iwarp::opcode::Opcode;
use ferroce_objects::SendOp;

use crate::host::{BASE, Host, fpdus};
use crate::tcp_streams::connections;

/// Each capture with its number of TCP connections and of FPDUs, counted by another tool.
const CAPTURES: &[(&str, usize, usize)] = &[
    ("siw-cmatose-v4", 1, 6),
    ("siw-read-bw-v4", 2, 67),
    ("siw-rping-v4", 1, 27),
    ("siw-rping-v6", 1, 27),
    ("siw-send-bw-v4", 2, 54),
    ("siw-write-bw-v4", 2, 62),
];

/// A sink that encodes FPDUs again, and checks the sequence of segments.
#[derive(Default)]
struct Reencoder {
    /// The captured bytes. Pad bytes are copied from them: siw leaves old bytes there.
    captured: Vec<u8>,
    bytes: Vec<u8>,
    headers: Vec<Header>,
}

impl Sink for Reencoder {
    type Error = FpduError;

    fn begin(&mut self, header: &Header) -> Result<(), FpduError> {
        header.encode(&mut self.bytes);
        self.headers.push(*header);
        Ok(())
    }

    fn place(&mut self, payload: &[u8]) -> Result<(), FpduError> {
        self.bytes.extend(payload);
        Ok(())
    }

    fn end(&mut self) -> Result<(), FpduError> {
        let header = self.headers.last().expect("begun");
        let pad = padding(header.ulpdu_len().into());
        let at = self.bytes.len();
        self.bytes.extend(&self.captured[at..at + pad]);
        // siw sends a CRC field of zero if CRCs are not used.
        self.bytes.extend([0; 4]);
        Ok(())
    }
}

/// Returns the length of the MPA frame at the start of a stream.
fn mpa_frame(bytes: &[u8], kind: FrameKind) -> usize {
    let header = bytes.first_chunk().expect("a frame");
    Frame::length(header, kind).expect("an MPA frame")
}

#[test]
fn captured_streams_are_reencoded_byte_for_byte() {
    for &(name, count, fpdus) in CAPTURES {
        let connections = connections(name);
        assert_eq!(connections.len(), count, "{name}");
        let mut seen = 0;
        for (client, server) in connections {
            for (stream, kind) in [(client, FrameKind::Request), (server, FrameKind::Reply)] {
                let start = mpa_frame(&stream.bytes, kind);
                let frame = Frame::decode(&stream.bytes[..start], kind).unwrap();
                assert_eq!(frame.encode(), stream.bytes[..start], "{name}");
                let mut sink = Reencoder {
                    captured: stream.bytes[start..].to_vec(),
                    ..Reencoder::default()
                };
                let mut reader = FpduReader::new(false);
                reader.read(&stream.bytes[start..], &mut sink).unwrap();
                assert!(reader.is_between_fpdus(), "{name}");
                assert_eq!(sink.bytes, stream.bytes[start..], "{name}");
                check_sequence(&sink.headers);
                seen += sink.headers.len();
            }
        }
        assert_eq!(seen, fpdus, "{name}");
    }
}

// RFC 5041 4.3 and 5.2: MSNs count messages from 1 in each queue; MO and offset count bytes.
fn check_sequence(headers: &[Header]) {
    let mut msn: BTreeMap<u32, u32> = BTreeMap::new();
    let mut sent = 0;
    let mut previous: Option<(u32, u64)> = None;
    for header in headers {
        match header.place {
            Place::Untagged {
                queue,
                msn: got,
                mo,
                ..
            } => {
                assert_eq!(Some(queue), header.opcode.queue());
                let expected = msn.entry(queue).or_insert(1);
                assert_eq!((got, mo), (*expected, sent));
                sent = if header.last {
                    0
                } else {
                    sent + header.payload
                };
                *expected += u32::from(header.last);
            }
            Place::Tagged { stag, offset } => {
                if let Some(expected) = previous {
                    assert_eq!((stag, offset), expected);
                }
                let next = (stag, offset + u64::from(header.payload));
                previous = (!header.last).then_some(next);
            }
        }
    }
}

#[test]
fn captured_setups_are_what_our_ends_say() {
    for &(name, ..) in CAPTURES {
        for (client, server) in connections(name) {
            let request = &client.bytes[..mpa_frame(&client.bytes, FrameKind::Request)];
            let reply = &server.bytes[..mpa_frame(&server.bytes, FrameKind::Reply)];
            let frame = Frame::decode(request, FrameKind::Request).unwrap();
            let words = frame.enhanced.expect("siw's Requests are enhanced");
            let offer = Offer {
                ird: words.ird,
                ord: words.ord,
                ..Offer::default()
            };
            let mut initiator = Initiator::new(Time::ZERO, &offer).unwrap();
            assert_eq!(initiator.request(), request, "{name}");
            let mut responder = Responder::new(Time::ZERO);
            let asked = responder.receive(request).unwrap().unwrap();
            let answer = ferroce_iwarp::mpa::Answer {
                ird: asked.ird,
                ord: asked.ord,
                ..ferroce_iwarp::mpa::Answer::default()
            };
            let (ours, passive) = responder.accept(&answer).unwrap();
            assert_eq!(ours, reply, "{name}");
            let Ok(Replied::Accepted { params, .. }) = initiator.receive(reply) else {
                panic!("{name}: refused");
            };
            assert_eq!((params.ird, params.ord), (passive.ord, passive.ird));
            assert!(!params.crc);
        }
    }
}

// RFC 5044 4.5: siw fills TCP segments of 1448 bytes (IPv6: 1428) with one FPDU each.
#[test]
fn captured_fpdus_have_the_length_that_we_would_choose() {
    for (name, mss) in [("siw-rping-v4", 1448), ("siw-rping-v6", 1428)] {
        for (client, _) in connections(name) {
            let longest = client.segments.iter().max();
            assert_eq!(longest, Some(&max_fpdu(mss)), "{name}");
        }
    }
}

#[test]
fn captures_contain_all_operations_but_invalidates() {
    let mut seen = std::collections::HashSet::new();
    for &(name, ..) in CAPTURES {
        for (client, server) in connections(name) {
            for (stream, kind) in [(client, FrameKind::Request), (server, FrameKind::Reply)] {
                let start = mpa_frame(&stream.bytes, kind);
                let mut sink = Reencoder {
                    captured: stream.bytes[start..].to_vec(),
                    ..Reencoder::default()
                };
                let mut reader = FpduReader::new(false);
                reader.read(&stream.bytes[start..], &mut sink).unwrap();
                seen.extend(sink.headers.iter().map(|header| header.opcode));
            }
        }
    }
    for opcode in [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
    ] {
        assert!(seen.contains(&opcode), "{opcode:?}");
    }
}

/// Returns the messages of a stream: the first header, and the payload of all segments.
fn messages(fpdus: &[(Header, Vec<u8>)]) -> Vec<(Header, Vec<u8>)> {
    let mut messages: Vec<(Header, Vec<u8>)> = Vec::new();
    let mut open = false;
    for (header, payload) in fpdus {
        match messages.last_mut().filter(|_| open) {
            Some((_, message)) => message.extend(payload),
            None => messages.push((*header, payload.clone())),
        }
        open = !header.last;
    }
    messages
}

// The engine divides the messages of siw into the same segments, with the same headers.
#[test]
fn engine_sends_captured_sends_and_writes_as_siw_sent_them() {
    let mut compared = 0;
    for &(name, ..) in CAPTURES {
        for (client, server) in connections(name) {
            for (stream, kind) in [(client, FrameKind::Request), (server, FrameKind::Reply)] {
                let start = mpa_frame(&stream.bytes, kind);
                let captured = fpdus(&stream.bytes[start..]);
                let can_repeat = |(header, _): &(Header, Vec<u8>)| {
                    matches!(header.opcode, Opcode::Send | Opcode::Write)
                };
                if !captured.iter().all(can_repeat) {
                    // Read Requests name keys of the sender, which the engine chooses.
                    continue;
                }
                let mut host = Host::new();
                let mut sent = Vec::new();
                for (wr_id, (header, payload)) in messages(&captured).into_iter().enumerate() {
                    let op = match header.place {
                        Place::Tagged { stag, offset } => SendOp::Write {
                            remote_addr: offset,
                            rkey: stag,
                            imm: None,
                        },
                        Place::Untagged { .. } => SendOp::Send { imm: None },
                    };
                    host.ram.put(BASE, &payload);
                    host.post(wr_id as u64, op, 0, payload.len() as u32);
                    sent.extend(host.send_all());
                }
                assert_eq!(fpdus(&sent), captured, "{name}");
                compared += captured.len();
            }
        }
    }
    assert!(compared > 100, "only {compared} FPDUs were compared");
}

// The engine receives siw's stream, cut as TCP cut it, and delivers the messages.
#[test]
fn engine_receives_captured_sends() {
    for (client, server) in connections("siw-cmatose-v4") {
        for (stream, kind) in [(client, FrameKind::Request), (server, FrameKind::Reply)] {
            let start = mpa_frame(&stream.bytes, kind);
            let mut host = Host::new();
            for wr_id in 0..3 {
                host.post_recv(wr_id, 0x1000 * wr_id, 0x1000);
            }
            let bytes = &stream.bytes[start..];
            for part in bytes.chunks(stream.segments[1]) {
                host.receive(part);
            }
            let success = ferroce_objects::WcStatus::Success;
            assert_eq!(host.receives(), [(0, success), (1, success), (2, success)]);
            for (number, (_, payload)) in messages(&fpdus(bytes)).iter().enumerate() {
                let at = BASE + 0x1000 * number as u64;
                assert_eq!(host.ram.get(at, payload.len()), *payload);
            }
        }
    }
}
