//! FPDUs in a byte stream that is cut anywhere.

use ferroce_iwarp::crc;
use ferroce_iwarp::fpdu::{FpduError, FpduReader, Sink, fpdu_len, max_fpdu, padding};
use ferroce_iwarp::header::{Header, Place, ReadRequest};
use ferroce_iwarp::opcode::Opcode;
use ferroce_iwarp::terminate::Code;
use proptest::prelude::*;

use crate::drive;

/// A sink that collects FPDUs.
#[derive(Default)]
struct Collected {
    fpdus: Vec<(Header, Vec<u8>)>,
    open: bool,
}

impl Sink for Collected {
    type Error = FpduError;

    fn begin(&mut self, header: &Header) -> Result<(), FpduError> {
        assert!(!self.open, "begins before the end of another");
        self.open = true;
        self.fpdus.push((*header, Vec::new()));
        Ok(())
    }

    fn place(&mut self, payload: &[u8]) -> Result<(), FpduError> {
        assert!(self.open && !payload.is_empty());
        self.fpdus.last_mut().unwrap().1.extend(payload);
        Ok(())
    }

    fn end(&mut self) -> Result<(), FpduError> {
        assert!(self.open, "ends without a begin");
        self.open = false;
        let (header, payload) = self.fpdus.last().unwrap();
        assert_eq!(payload.len(), header.payload as usize);
        Ok(())
    }
}

/// Returns the FPDU of a header and its payload.
fn fpdu(header: &Header, payload: &[u8], crc: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    bytes.extend(payload);
    bytes.resize(bytes.len() + padding(header.ulpdu_len().into()), 0);
    let crc = if crc { crc::of(&bytes) } else { [0; 4] };
    bytes.extend(crc);
    assert_eq!(bytes.len(), fpdu_len(header.ulpdu_len().into()));
    bytes
}

fn send(msn: u32, mo: u32, last: bool, payload: usize) -> Header {
    Header {
        opcode: Opcode::Send,
        last,
        place: Place::Untagged {
            invalidate: 0,
            queue: 0,
            msn,
            mo,
            read: None,
        },
        payload: payload as u32,
    }
}

/// Returns a stream of FPDUs with all kinds of headers and all pad lengths.
fn stream(crc: bool) -> (Vec<(Header, Vec<u8>)>, Vec<u8>) {
    let mut fpdus = Vec::new();
    for payload in [0, 1, 2, 3, 4, 5, 17] {
        let bytes: Vec<u8> = (0..payload).map(|n| n as u8 ^ 0x5a).collect();
        fpdus.push((send(9, 1000, true, payload), bytes.clone()));
        let write = Header::tagged(Opcode::Write, false, 7, 1 << 40, payload as u32);
        fpdus.push((write, bytes));
    }
    let read = ReadRequest {
        sink_stag: 0x100,
        sink_offset: 0x1000,
        size: 64,
        source_stag: 0x200,
        source_offset: 0x2000,
    };
    let place = Place::Untagged {
        invalidate: 0,
        queue: 1,
        msn: 1,
        mo: 0,
        read: Some(read),
    };
    let request = Header {
        opcode: Opcode::ReadRequest,
        last: true,
        place,
        payload: 0,
    };
    fpdus.push((request, Vec::new()));
    let bytes = fpdus.iter().flat_map(|(h, p)| fpdu(h, p, crc)).collect();
    (fpdus, bytes)
}

fn read(crc: bool, parts: &[&[u8]]) -> Result<Collected, FpduError> {
    let mut reader = FpduReader::new(crc);
    let mut collected = Collected::default();
    for part in parts {
        reader.read(part, &mut collected)?;
    }
    assert_eq!(reader.is_between_fpdus(), !collected.open);
    Ok(collected)
}

// RFC 5044 4.1: length word, ULPDU, pad to a multiple of 4, CRC.
#[test]
fn fpdu_is_padded_to_four_bytes() {
    for ulpdu in 0..100 {
        assert!(padding(ulpdu) < 4);
        assert_eq!(fpdu_len(ulpdu) % 4, 0);
    }
    assert_eq!(
        fpdu_len(0x17),
        32,
        "the SEND of five bytes in the next test"
    );
}

// RFC 5044 4.4: the CRC covers length word, ULPDU and pad; least significant byte first.
#[test]
fn crc_of_worked_examples_is_right() {
    let write = Header::tagged(Opcode::Write, true, 1, 0, 0);
    assert_eq!(fpdu(&write, &[], true)[16..], [0xeb, 0xd3, 0x4c, 0x5f]);
    let hello = fpdu(&send(1, 0, true, 5), b"hello", true);
    assert_eq!(hello[..4], [0, 0x17, 0x41, 0x43]);
    assert_eq!(hello[28..], [0xb9, 0x90, 0xb1, 0x0c]);
    let (_, all) = stream(true);
    let read = &all[all.len() - 52..];
    assert_eq!(read[..4], [0, 0x2e, 0x41, 0x41]);
    assert_eq!(read[48..], [0xf8, 0x77, 0x74, 0x06]);
}

// RFC 5044 5.2: the receiver finds FPDUs however TCP cuts the stream.
#[test]
fn stream_cut_at_every_byte_yields_the_same_fpdus() {
    for crc in [false, true] {
        let (fpdus, bytes) = stream(crc);
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(read(crc, &[a, b]).unwrap().fpdus, fpdus, "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(crc, &single).unwrap().fpdus, fpdus);
    }
}

// RFC 5044 4.4: an FPDU with a wrong CRC is not delivered.
#[test]
fn wrong_bit_anywhere_is_a_crc_error() {
    let (_, bytes) = stream(true);
    let first = fpdu_len(18);
    for at in 2..first {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let error = read(true, &[&bytes[..30], &bytes[30..]]).err();
            assert_eq!(error, Some(FpduError::Crc { length: first }), "byte {at}");
        }
    }
}

// RFC 5044 7.1: without CRCs the field is ignored.
#[test]
fn crc_field_is_ignored_without_crcs() {
    let (fpdus, _) = stream(false);
    let (_, with_crcs) = stream(true);
    assert_eq!(read(false, &[&with_crcs]).unwrap().fpdus, fpdus);
}

// With CRCs, a damaged header must not lead payload anywhere.
#[test]
fn nothing_of_an_fpdu_is_seen_before_its_crc_is_checked() {
    let bytes = fpdu(&send(1, 0, true, 600), &[3; 600], true);
    for cut in 0..bytes.len() {
        let collected = read_partly(&bytes[..cut]);
        assert!(collected.fpdus.is_empty(), "cut at {cut}");
    }
}

fn read_partly(bytes: &[u8]) -> Collected {
    let mut collected = Collected::default();
    FpduReader::new(true).read(bytes, &mut collected).unwrap();
    collected
}

// RFC 5044 4.1: the length must have room for the headers.
#[test]
fn impossible_lengths_are_refused() {
    for crc in [false, true] {
        for (ulpdu, word, error) in [
            (0, 0x4143, FpduError::Empty(0)),
            (1, 0x4143, FpduError::Empty(1)),
            (
                17,
                0x4143,
                FpduError::Short {
                    ulpdu: 17,
                    opcode: Opcode::Send,
                },
            ),
            (
                13,
                0xc140,
                FpduError::Short {
                    ulpdu: 13,
                    opcode: Opcode::Write,
                },
            ),
            (
                45,
                0x4141,
                FpduError::Short {
                    ulpdu: 45,
                    opcode: Opcode::ReadRequest,
                },
            ),
        ] {
            let mut bytes = [u16::to_be_bytes(ulpdu), u16::to_be_bytes(word)].concat();
            bytes.resize(fpdu_len(ulpdu.into()) - 4, 0);
            if crc {
                bytes.extend(crc::of(&bytes));
            } else {
                bytes.resize(bytes.len().max(4), 0);
            }
            assert_eq!(read(crc, &[&bytes]).err(), Some(error));
            assert_eq!(error.code(), Code::MPA_LENGTH);
        }
    }
}

// RFC 5044 4.5 and siw: an FPDU fits into a TCP segment, in multiples of 8 bytes.
#[test]
fn longest_fpdu_is_the_segment_rounded_down_to_eight() {
    assert_eq!(max_fpdu(1448), 1448);
    assert_eq!(max_fpdu(1428), 1424);
    assert_eq!(max_fpdu(65_483), 65_480);
    assert_eq!(max_fpdu(1 << 20), 65_536, "the length word has 16 bits");
    assert!(max_fpdu(1) >= fpdu_len(46), "room for every header");
}

// A caller may let the kernel write payload to its place, without CRCs.
#[test]
fn payload_placed_by_the_caller_is_skipped() {
    let header = send(1, 0, true, 100);
    let bytes = fpdu(&header, &[7; 100], false);
    let mut reader = FpduReader::new(false);
    let mut collected = Collected::default();
    reader.read(&bytes[..20], &mut collected).unwrap();
    assert_eq!(reader.expected_payload(), 100);
    reader.skip(60);
    assert_eq!(reader.expected_payload(), 40);
    reader.skip(40);
    assert_eq!(reader.expected_payload(), 0);
    collected.fpdus[0].1 = vec![7; 100];
    reader.read(&bytes[120..], &mut collected).unwrap();
    assert!(reader.is_between_fpdus() && !collected.open);
}

proptest! {
    #[test]
    fn arbitrary_bytes_have_the_same_result_however_cut(
        crc: bool,
        damage in proptest::collection::vec((0..600usize, any::<u8>()), 0..4),
        cuts in proptest::collection::vec(any::<u8>(), 0..20),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (_, mut bytes) = stream(crc);
        for (at, xor) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= xor;
            }
        }
        bytes.extend(noise);
        drive::fpdus(crc, &bytes, &cuts);
    }

    #[test]
    fn arbitrary_streams_touch_registered_memory_only_and_flush_all(
        data in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        drive::stream(&data);
    }

    #[test]
    fn plausible_streams_touch_registered_memory_only_and_flush_all(
        crc: bool,
        fpdus in proptest::collection::vec(
            (any::<u8>(), proptest::collection::vec(any::<u8>(), 0..80)), 0..12),
    ) {
        let mut data = vec![u8::from(crc)];
        for (how, body) in fpdus {
            data.extend([how & !7, body.len() as u8]);
            data.extend(body);
        }
        drive::stream(&data);
    }
}
