//! Packets captured from the Linux kernel: they are parsed, re-encoded byte for byte, their
//! ICRC is correct, and it detects each flipped bit.

#[path = "common/captures.rs"]
mod captures;
#[path = "common/reencode.rs"]
mod reencode;
#[path = "common/reference.rs"]
mod reference;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use captures::ip_packets;
use ferroce_wire::ip::{Frame, FrameError, ipv4_checksum, ipv4_header, ipv6_header};
use ferroce_wire::{Packet, icrc, padding, rc_source_port, ud_source_port};
use reencode::{reencode, without_reserved_bits};

/// Each capture with its number of RoCEv2 packets, counted by another tool.
const CAPTURES: &[(&str, usize)] = &[
    ("atomic-cas-v4", 10),
    ("atomic-faa-v4", 10),
    ("cm-reject-v4", 2),
    ("cmatose-v4", 17),
    ("mckey-v4", 3),
    ("nvme-discover-v4", 85),
    ("nvme-rw-v4", 255),
    ("rc-atomic-v4", 6),
    ("rc-badread-v4", 2),
    ("rc-badrkey-v4", 2),
    ("rc-duplicate-v4", 201),
    ("rc-loss-v4", 167),
    ("rc-pingpong-ll", 20),
    ("rc-pingpong-v4", 58),
    ("rc-pingpong-v6", 50),
    ("rc-psnwrap-v4", 19),
    ("rc-read-v4", 30),
    ("rc-read-v6", 30),
    ("rc-reorder-v4", 210),
    ("rc-rnr-v4", 16),
    ("rc-send-v4", 30),
    ("rc-sendinv-v4", 8),
    ("rc-timeout-v4", 4),
    ("rc-toolong-v4", 2),
    ("rc-write-v4", 24),
    ("rc-write-v6", 26),
    ("read-bw-v4", 45),
    ("rping-v4", 47),
    ("rping-v6", 47),
    ("rsocket-v4", 34),
    ("siw-cmatose-v4", 0),
    ("siw-read-bw-v4", 0),
    ("siw-rping-v4", 0),
    ("siw-rping-v6", 0),
    ("siw-send-bw-v4", 0),
    ("siw-write-bw-v4", 0),
    ("srq-pingpong-v4", 48),
    ("uc-pingpong-v4", 40),
    ("uc-write-bw-v4", 40),
    ("ud-pingpong-v4", 10),
    ("ud-pingpong-v6", 10),
    ("udaddy-v4", 8),
    ("write-bw-v4", 45),
];

/// Calls `check` for each RoCEv2 packet, with the name of its capture, the packet from the
/// IP header on, and the parsed frame.
fn for_each_roce_packet(mut check: impl FnMut(&str, &[u8], Frame<'_>)) {
    for (name, _) in CAPTURES {
        for ip in ip_packets(name) {
            if let Ok(frame) = Frame::parse(&ip) {
                check(name, &ip, frame);
            }
        }
    }
}

#[test]
fn the_list_names_every_capture_file() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/captures");
    let files: HashSet<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let listed = CAPTURES
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(files, listed);
}

#[test]
fn all_and_only_roce_packets_are_recognised() {
    for (name, expected) in CAPTURES {
        let mut found = 0;
        for ip in ip_packets(name) {
            match Frame::parse(&ip) {
                Ok(frame) => {
                    found += 1;
                    if let Err(error) = Packet::parse(frame.udp_payload) {
                        panic!("{name}: {error}");
                    }
                }
                Err(FrameError::Protocol(_) | FrameError::NotPlain | FrameError::Port(_)) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
        assert_eq!(found, *expected, "{name}");
    }
}

#[test]
fn captures_contain_the_expected_opcodes() {
    let mut seen = BTreeMap::<u8, usize>::new();
    for_each_roce_packet(|_, _, frame| *seen.entry(frame.udp_payload[0]).or_default() += 1);
    let expected = [
        (0x00, 71),
        (0x01, 45),
        (0x02, 71),
        (0x03, 1),
        (0x04, 124),
        (0x05, 2),
        (0x06, 75),
        (0x07, 167),
        (0x08, 73),
        (0x09, 8),
        (0x0a, 18),
        (0x0b, 10),
        (0x0c, 84),
        (0x0d, 61),
        (0x0e, 135),
        (0x0f, 73),
        (0x10, 11),
        (0x11, 360),
        (0x12, 51),
        (0x13, 7),
        (0x14, 42),
        (0x17, 24),
        (0x20, 10),
        (0x21, 20),
        (0x22, 10),
        (0x26, 5),
        (0x27, 30),
        (0x28, 5),
        (0x64, 59),
        (0x65, 9),
    ];
    assert_eq!(seen, BTreeMap::from(expected));
}

#[test]
fn packets_are_reencoded_byte_for_byte() {
    for_each_roce_packet(|name, _, frame| {
        let packet = Packet::parse(frame.udp_payload).unwrap();
        assert_eq!(
            reencode(&packet),
            frame.udp_payload,
            "{name} {}",
            packet.opcode()
        );
        assert_eq!(without_reserved_bits(&packet), frame.udp_payload, "{name}");
        assert_eq!(packet.pad(), padding(packet.payload().len()), "{name}");
        assert!(packet.opcode().has_payload() || packet.payload().is_empty());
    });
}

#[test]
fn ip_headers_are_reencoded_byte_for_byte() {
    use std::net::IpAddr;
    for_each_roce_packet(|name, ip, frame| {
        let udp_len = frame.udp_payload.len() as u16 + 8;
        match (frame.flow.source, frame.flow.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = ipv4_header(
                    source,
                    destination,
                    frame.tos,
                    frame.ttl,
                    frame.ip_id,
                    udp_len + 20,
                );
                assert_eq!(header, ip[..20], "{name}");
                assert_eq!(ipv4_checksum(&header), 0);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = ipv6_header(source, destination, frame.tos, 0, frame.ttl, udp_len);
                assert_eq!(header, ip[..40], "{name}");
            }
            _ => unreachable!(),
        }
    });
}

#[test]
fn icrc_is_verified_with_a_known_identification() {
    for_each_roce_packet(|name, ip, frame| {
        assert!(
            icrc::verify(&frame.flow, frame.ip_id, frame.udp_payload),
            "{name}"
        );
        let packet = Packet::parse(frame.udp_payload).unwrap();
        assert_eq!(
            packet.icrc().to_le_bytes(),
            reference::icrc(&ip[..ip.len() - 4]),
            "{name}"
        );
    });
}

#[test]
fn icrc_is_verified_with_an_unknown_identification() {
    let mut unlikely_ids = 0;
    for_each_roce_packet(|name, _, frame| {
        let id = frame.ip_id;
        let recover =
            |expected| icrc::recover_id(&frame.flow, expected, frame.udp_payload).expect(name);
        let unlikely = recover(id.wrapping_add(1000));
        assert_eq!(unlikely.id, id, "{name}");
        assert_eq!(unlikely.likely, id < 64, "{name}");
        for expected in [id, id.wrapping_add(1)] {
            let recovered = recover(expected);
            assert_eq!((recovered.id, recovered.likely), (id, true), "{name}");
        }
        unlikely_ids += (id >= 64) as usize;
    });
    assert!(unlikely_ids > 1000, "rxe sends arbitrary identifications");
}

/// rxe derives the source port from the QPNs of both ends for the pingpongs, which have no
/// flow label, and from the sender's QPN for datagrams.
#[test]
fn source_ports_are_derived_as_rxe_does() {
    let mut qpns = BTreeMap::<(String, u16), BTreeSet<u32>>::new();
    let mut datagrams = 0;
    for_each_roce_packet(|name, _, frame| {
        let packet = Packet::parse(frame.udp_payload).unwrap();
        let port = frame.flow.source_port;
        if let Some(deth) = packet.deth() {
            assert_eq!(port, ud_source_port(deth.source_qpn), "{name}");
            datagrams += 1;
        } else if name.contains("c-pingpong") {
            let seen = qpns.entry((name.to_owned(), port)).or_default();
            seen.insert(packet.dest_qpn());
        }
    });
    assert_eq!(datagrams, 68);
    assert_eq!(qpns.len(), 4);
    for ((name, port), pair) in qpns {
        // Each host numbers its own queue pairs, so both ends may have the same QPN.
        let (a, b) = (*pair.first().unwrap(), *pair.last().unwrap());
        assert!(pair.len() <= 2, "{name}");
        assert_eq!(port, rc_source_port(0, a, b), "{name}");
    }
}

/// Returns the offsets from the IP header of the bytes that the ICRC does not cover, and
/// the offset of the BTH.
fn masked_bytes(ip: &[u8]) -> (Vec<usize>, usize) {
    if ip[0] >> 4 == 4 {
        (vec![1, 8, 10, 11, 26, 27, 32], 28)
    } else {
        (vec![1, 2, 3, 7, 46, 47, 52], 48)
    }
}

fn accepted(ip: &[u8]) -> bool {
    Frame::parse(ip).is_ok_and(|frame| icrc::verify(&frame.flow, frame.ip_id, frame.udp_payload))
}

/// Flips each bit in turn, in the first packet of each opcode of each capture.
#[test]
fn icrc_detects_each_flipped_bit_that_it_covers() {
    let mut seen = HashSet::new();
    let mut packets = 0;
    for_each_roce_packet(|name, ip, frame| {
        if !seen.insert((name.to_owned(), frame.udp_payload[0])) {
            return;
        }
        packets += 1;
        let (masked, _) = masked_bytes(ip);
        let mut flipped = ip.to_vec();
        for bit in 0..ip.len() * 8 {
            let (byte, mask) = (bit / 8, 1 << (bit % 8));
            flipped[byte] ^= mask;
            // The first byte of IPv6 holds the version and half of the masked traffic class.
            let covered = if byte == 0 && ip[0] >> 4 == 6 {
                mask >= 0x10
            } else {
                !masked.contains(&byte)
            };
            assert_eq!(
                accepted(&flipped),
                !covered,
                "{name}, byte {byte}, mask {mask:#x}"
            );
            flipped[byte] ^= mask;
        }
    });
    assert!(packets > 150);
}

/// The identification and the fragmentation flag are unknown: 17 of the 32 bits. So a
/// flipped bit may look like another identification, but like a likely identification only
/// about once in 2^24.
#[test]
fn a_flipped_bit_never_yields_a_likely_identification() {
    let mut seen = HashSet::new();
    let (mut flips, mut unlikely) = (0, 0);
    for_each_roce_packet(|name, ip, frame| {
        let (_, start) = masked_bytes(ip);
        if start != 28 || !seen.insert((name.to_owned(), frame.udp_payload[0])) {
            return;
        }
        let mut flipped = frame.udp_payload.to_vec();
        for bit in (0..flipped.len() * 8).filter(|bit| bit / 8 != 4) {
            flipped[bit / 8] ^= 1 << (bit % 8);
            flips += 1;
            if let Some(recovered) = icrc::recover_id(&frame.flow, frame.ip_id, &flipped) {
                assert!(!recovered.likely, "{name}, bit {bit}");
                unlikely += 1;
            }
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    });
    assert!(flips > 100_000);
    assert!(unlikely < flips / 5_000, "{unlikely} of {flips}");
}
