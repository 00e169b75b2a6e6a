//! DDP and RDMAP headers, and TERMINATE.

use ferroce_iwarp::fpdu::FpduError;
use ferroce_iwarp::header::{Header, Place, ReadRequest};
use ferroce_iwarp::opcode::{Control, Opcode};
use ferroce_iwarp::terminate::{Code, Terminate};
use proptest::prelude::*;

fn word(opcode: Opcode, last: bool) -> u16 {
    Control { opcode, last }.encode()
}

// RFC 5041 4.1 and RFC 5040 4.1: T, L, versions 1 and 1, opcode.
#[test]
fn control_words_are_those_of_the_table() {
    let table = [
        0xc140, 0x4141, 0xc142, 0x4143, 0x4144, 0x4145, 0x4146, 0x4147,
    ];
    for (opcode, expected) in Opcode::ALL.into_iter().zip(table) {
        assert_eq!(word(opcode, true), expected);
        assert_eq!(word(opcode, false), expected & !0x4000);
        let control = Control { opcode, last: true };
        assert_eq!(Control::decode(expected), Ok(control));
        assert_eq!(Control::decode(expected | 0x3c30), Ok(control), "reserved");
    }
}

// RFC 5040 4.1: each opcode has its queue and its headers.
#[test]
fn opcodes_have_the_queues_and_headers_of_the_table() {
    let table = [
        (None, 16),
        (Some(1), 48),
        (None, 16),
        (Some(0), 20),
        (Some(0), 20),
        (Some(0), 20),
        (Some(0), 20),
        (Some(2), 20),
    ];
    for (opcode, row) in Opcode::ALL.into_iter().zip(table) {
        assert_eq!((opcode.queue(), opcode.header_len()), row, "{opcode:?}");
    }
}

// RFC 5041 section 7: a wrong DDP version has a code in each buffer model.
#[test]
fn wrong_ddp_version_is_refused() {
    assert_eq!(Control::decode(0xc040), Err(Code::DDP_TAGGED_VERSION));
    assert_eq!(Control::decode(0x4243), Err(Code::DDP_UNTAGGED_VERSION));
}

// RFC 5040 section 7: a wrong RDMAP version.
#[test]
fn wrong_rdmap_version_is_refused() {
    assert_eq!(Control::decode(0xc100), Err(Code::RDMAP_VERSION));
    assert_eq!(Control::decode(0x4183), Err(Code::RDMAP_VERSION));
}

// RFC 5040 section 7: opcodes from 8 on do not exist.
#[test]
fn unknown_opcode_is_refused() {
    for opcode in 8..16 {
        let error = Err(Code::RDMAP_UNEXPECTED_OPCODE);
        assert_eq!(Control::decode(0x4140 | opcode), error);
        assert_eq!(Control::decode(0xc140 | opcode), error);
    }
}

// RFC 5040 4.1: an opcode belongs to one buffer model.
#[test]
fn opcode_in_the_wrong_buffer_model_is_refused() {
    let error = Err(Code::RDMAP_UNEXPECTED_OPCODE);
    assert_eq!(Control::decode(0x4140), error, "untagged Write");
    assert_eq!(Control::decode(0xc143), error, "tagged SEND");
}

// RFC 5040 4.4: the fields of a Read Request.
#[test]
fn read_request_is_encoded_as_in_the_worked_example() {
    let read = ReadRequest {
        sink_stag: 0x100,
        sink_offset: 0x1000,
        size: 64,
        source_stag: 0x200,
        source_offset: 0x2000,
    };
    let header = Header {
        opcode: Opcode::ReadRequest,
        last: true,
        place: Place::Untagged {
            invalidate: 0,
            queue: 1,
            msn: 1,
            mo: 0,
            read: Some(read),
        },
        payload: 0,
    };
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    let expected = "002e4141000000000000000100000001000000000000010000000000000010000000004000000200\
                    0000000000002000";
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, expected);
    assert_eq!(Header::decode(&bytes), Ok(header));
}

fn write() -> Header {
    Header::tagged(Opcode::Write, false, 0x1234, 0x5678, 100)
}

// RFC 5040 4.8: layer, type and code, then the copied headers that M, D and R announce.
#[test]
fn terminate_copies_the_headers_of_the_cause() {
    let mut bytes = Vec::new();
    let terminate = Terminate::new(Code::DDP_BOUNDS, Some(&write()));
    terminate.encode(&mut bytes);
    assert_eq!(bytes[..4], [0, 18 + 4 + 16, 0x41, 0x47]);
    assert_eq!(bytes[8..20], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(bytes[20..24], [0x11, 0x01, 0xc0, 0x00]);
    let mut copy = Vec::new();
    write().encode(&mut copy);
    assert_eq!(bytes[24..], copy);
    assert_eq!(Terminate::decode(&bytes[20..]), Some(terminate));
}

// RFC 5040 4.8: the headers of a Read Request are copied with flag R.
#[test]
fn terminate_of_a_read_request_has_flag_r() {
    let cause = Header {
        opcode: Opcode::ReadRequest,
        last: true,
        place: Place::Untagged {
            invalidate: 0,
            queue: 1,
            msn: 3,
            mo: 0,
            read: Some(ReadRequest::default()),
        },
        payload: 0,
    };
    let mut bytes = Vec::new();
    let terminate = Terminate::new(Code::RDMAP_ACCESS, Some(&cause));
    terminate.encode(&mut bytes);
    assert_eq!(bytes[20..24], [0x01, 0x02, 0xe0, 0x00]);
    assert_eq!(bytes.len(), 24 + 48);
    assert_eq!(Terminate::decode(&bytes[20..]), Some(terminate));
}

// RFC 5040 4.8: errors of the layer below copy no headers.
#[test]
fn terminate_of_mpa_copies_no_headers() {
    let terminate = Terminate::new(Code::MPA_CRC, Some(&write()));
    let mut bytes = Vec::new();
    terminate.encode(&mut bytes);
    assert_eq!(bytes[20..], [0x20, 0x02, 0x00, 0x00]);
}

// RFC 5044 4.4: a TERMINATE is an FPDU like others, with a CRC if the stream has CRCs.
#[test]
fn terminate_is_sent_as_a_padded_fpdu() {
    let terminate = Terminate::new(Code::MPA_NO_MATCHING_RTR, None);
    let plain = terminate.to_fpdu(false);
    assert_eq!(plain.len(), 28);
    assert_eq!(plain[..2], [0, 22]);
    assert_eq!(plain[24..], [0; 4]);
    let checked = terminate.to_fpdu(true);
    assert_eq!(checked[..24], plain[..24]);
    assert_eq!(checked[24..], ferroce_iwarp::crc::of(&plain[..24]));
    for cause in [Some(write()), None] {
        let fpdu = Terminate::new(Code::DDP_BOUNDS, cause.as_ref()).to_fpdu(true);
        assert_eq!(fpdu.len() % 4, 0);
    }
}

#[test]
fn every_error_code_has_its_own_numbers_and_a_name() {
    let mut seen = std::collections::HashSet::new();
    for code in Code::ALL {
        assert!(seen.insert(*code), "{code}");
        let text = code.to_string();
        assert!(!text.contains("error 0") && text.contains(": "), "{text}");
    }
    let other = Code {
        layer: 0,
        etype: 0,
        code: 0xff,
    };
    assert_eq!(other.to_string(), "RDMAP: error 0/0xff", "siw sends it");
}

#[test]
fn terminate_without_an_error_is_ignored() {
    assert_eq!(Terminate::decode(&[1, 2, 3]), None);
    let cut = Terminate::decode(&[0x11, 0x01, 0xc0, 0, 0, 14]).unwrap();
    assert_eq!(cut.cause, None);
}

#[test]
fn short_headers_are_refused() {
    assert_eq!(
        Header::length([0, 17, 0x41, 0x43]),
        Err(FpduError::Short {
            ulpdu: 17,
            opcode: Opcode::Send
        })
    );
}

proptest! {
    #[test]
    fn headers_are_reencoded_byte_for_byte(
        opcode in 0..8usize, last: bool, fields: [u8; 44], payload in 0..1000u16
    ) {
        let opcode = Opcode::ALL[opcode];
        let length = opcode.header_len();
        let ulpdu = length as u16 - 2 + payload;
        let control = word(opcode, last).to_be_bytes();
        let bytes = [&ulpdu.to_be_bytes(), &control, &fields[..length - 4]].concat();
        let header = Header::decode(&bytes).unwrap();
        prop_assert_eq!(header.payload, u32::from(payload));
        let mut again = Vec::new();
        header.encode(&mut again);
        prop_assert_eq!(again, bytes);
    }
}
