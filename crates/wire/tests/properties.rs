//! Properties of all packets and of arbitrary bytes.

#[path = "common/reencode.rs"]
mod reencode;
#[path = "common/reference.rs"]
mod reference;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroce_wire::ip::{Frame, ipv4_header, ipv6_header, udp_header};
use ferroce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Flow, FlowIcrc, HeaderBuf, Icrc, Ieth, ImmDt,
    Opcode, Packet, ParseError, Psn, Rdeth, Recovered, Reth, Syndrome, XrcEth, icrc, padding,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use reencode::{reencode, without_reserved_bits};

fn opcode() -> impl Strategy<Value = Opcode> {
    let all: Vec<Opcode> = (0..=255).filter_map(Opcode::from_byte).collect();
    prop::sample::select(all)
}

fn flow() -> impl Strategy<Value = Flow> {
    prop_oneof![flow_v4(), flow_v6()]
}

fn flow_v4() -> impl Strategy<Value = Flow> {
    any::<(u32, u32, u16)>().prop_map(|(s, d, source_port)| Flow {
        source: v4(s),
        destination: v4(d),
        source_port,
    })
}

fn flow_v6() -> impl Strategy<Value = Flow> {
    // The top bit avoids IPv4-mapped addresses, which count as IPv4.
    let v6 = |bits| IpAddr::V6(Ipv6Addr::from_bits(bits | 1 << 127));
    any::<(u128, u128, u16)>().prop_map(move |(s, d, source_port)| Flow {
        source: v6(s),
        destination: v6(d),
        source_port,
    })
}

fn v4(bits: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(bits))
}

prop_compose! {
    fn bth()(
        opcode in opcode(),
        flags: [bool; 5],
        pad in 0u8..4,
        pkey: u16,
        dest_qpn in 0u32..1 << 24,
        psn: u32,
    ) -> Bth {
        let [solicited, migrated, fecn, becn, ack_req] = flags;
        let psn = Psn::new(psn);
        Bth { opcode, solicited, migrated, pad, version: 0, pkey, fecn, becn, dest_qpn, ack_req, psn }
    }
}

/// Returns the IP and UDP headers for a UDP payload of this length.
fn ip_udp(flow: &Flow, ip_id: u16, udp_payload_len: usize) -> Vec<u8> {
    let len = udp_payload_len as u16;
    let udp = udp_header(flow.source_port, len);
    match (flow.source, flow.destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            [&ipv4_header(s, d, 2, 64, ip_id, len + 28)[..], &udp].concat()
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            [&ipv6_header(s, d, 2, 7, 64, len + 8)[..], &udp].concat()
        }
        _ => unreachable!(),
    }
}

fn with_icrc(flow: &Flow, ip_id: u16, mut body: Vec<u8>) -> Vec<u8> {
    let icrc = icrc::compute(flow, ip_id, &body);
    body.extend_from_slice(&icrc);
    body
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in vec(any::<u8>(), 0..200),
        flow in flow(),
        id: u16,
    ) {
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert_eq!(reencode(&packet), without_reserved_bits(&packet));
        }
        prop_assert!(!icrc::verify(&flow, id, &bytes));
        icrc::recover_id(&flow, id, &bytes);
        icrc::recover_id_flush_quirk(&flow, id, &bytes);
        icrc::verify_flush_quirk(&flow, id, &bytes);
        icrc::compute(&flow, id, &bytes);
        icrc::compute_flush_quirk(&flow, id, &bytes);
        let _ = Frame::parse(&bytes);
        let _ = Bth::parse(&bytes);
    }

    #[test]
    fn arbitrary_bytes_after_a_valid_opcode_never_panic(
        opcode in opcode(),
        flags in 0u8..16,
        rest in vec(any::<u8>(), 0..120),
    ) {
        let bytes = [&[opcode.byte(), flags << 4][..], &rest].concat();
        let need = opcode.header_len() + (flags & 3) as usize + 4;
        match Packet::parse(&bytes) {
            Ok(packet) => {
                prop_assert!(bytes.len() >= need);
                prop_assert_eq!(packet.opcode(), opcode);
                prop_assert_eq!(packet.header().len() + packet.payload().len() + packet.pad() + 4, bytes.len());
                prop_assert_eq!(Ok(packet.bth()), Bth::parse(&bytes));
                prop_assert_eq!(reencode(&packet), without_reserved_bits(&packet));
            }
            Err(ParseError::Truncated { len, need: claimed }) => {
                prop_assert_eq!(len, bytes.len());
                prop_assert!(len < need);
                prop_assert!(claimed == need || len < 12);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn parse_errors_name_the_unknown_opcode_or_version(first: u8, second: u8, rest in vec(any::<u8>(), 62)) {
        let bytes = [&[first, second][..], &rest].concat();
        let expected = match (Opcode::from_byte(first), second & 0x0f) {
            (None, _) => Some(ParseError::UnknownOpcode(first)),
            (_, 0) => None,
            (_, version) => Some(ParseError::Version(version)),
        };
        prop_assert_eq!(Packet::parse(&bytes).err(), expected);
    }

    #[test]
    fn parsing_returns_the_headers_that_were_written(
        bth in bth(),
        words: [u64; 4],
        small: [u32; 6],
        syndrome: u8,
        payload in vec(any::<u8>(), 0..64),
    ) {
        let opcode = bth.opcode;
        let low24 = small.map(|n| n & 0xff_ffff);
        let rdeth = opcode.has_rdeth().then_some(Rdeth { ee_context: low24[0] });
        let deth = opcode.has_deth().then_some(Deth { qkey: small[1], source_qpn: low24[2] });
        let xrceth = opcode.has_xrceth().then_some(XrcEth { srq_number: low24[3] });
        let feth = opcode.has_feth().then_some(Feth {
            placement: (small[4] & 15) as u8,
            selectivity: (small[5] & 3) as u8,
        });
        let reth = opcode.has_reth().then_some(Reth { va: words[0], rkey: small[0], length: small[1] });
        let atomic_eth = opcode.has_atomic_eth().then_some(AtomicEth {
            va: words[0],
            rkey: small[0],
            swap_or_add: words[1],
            compare: words[2],
        });
        let aeth = opcode.has_aeth().then_some(Aeth {
            syndrome: Syndrome::from_byte(syndrome),
            msn: low24[4],
        });
        let atomic_ack = opcode.has_atomic_ack().then_some(AtomicAckEth { original: words[3] });
        let immediate = opcode.has_immediate().then_some(ImmDt(small[2]));
        let ieth = opcode.has_invalidate().then_some(Ieth { rkey: small[3] });

        let mut header = HeaderBuf::new(&bth);
        macro_rules! push {
            ($($name:ident)*) => { $(if let Some(value) = &$name { header.$name(value); })* };
        }
        push!(rdeth deth xrceth feth reth atomic_eth aeth atomic_ack immediate ieth);
        let header = header.finish();
        let bytes = [header.as_bytes(), &payload, &vec![0; bth.pad as usize], &[1, 2, 3, 4]].concat();

        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(packet.bth(), bth);
        prop_assert_eq!(packet.psn(), bth.psn);
        prop_assert_eq!(packet.dest_qpn(), bth.dest_qpn);
        prop_assert_eq!(packet.ack_req(), bth.ack_req);
        prop_assert_eq!(packet.solicited(), bth.solicited);
        prop_assert_eq!(packet.pkey(), bth.pkey);
        macro_rules! compare {
            ($($name:ident)*) => { $(prop_assert_eq!(packet.$name(), $name);)* };
        }
        compare!(rdeth deth xrceth feth reth atomic_eth aeth atomic_ack immediate ieth);
        prop_assert_eq!(packet.header(), header.as_bytes());
        prop_assert_eq!(packet.payload(), payload);
        prop_assert_eq!(packet.icrc(), 0x0403_0201);
    }

    #[test]
    fn icrc_agrees_with_the_reference(
        flow in flow(),
        id: u16,
        body in vec(any::<u8>(), 12..600),
        cuts: [prop::sample::Index; 3],
    ) {
        let ip = [ip_udp(&flow, id, body.len() + 4), body.clone()].concat();
        let expected = reference::icrc(&ip);
        prop_assert_eq!(icrc::compute(&flow, id, &body), expected);

        let mut cuts = cuts.map(|cut| 12 + cut.index(body.len() - 11));
        cuts.sort();
        let prepared = FlowIcrc::new(&flow);
        for mut pieces in [
            Icrc::begin(&flow, id, body.len() + 4, &body[..cuts[0]]),
            prepared.begin(id, body.len() + 4, &body[..cuts[0]]),
        ] {
            pieces.update(&body[cuts[0]..cuts[1]]);
            pieces.update(&body[cuts[1]..cuts[2]]);
            pieces.update(&body[cuts[2]..]);
            prop_assert_eq!(pieces.finish(), expected);
        }
        prop_assert_eq!(prepared.compute(id, &body), expected);

        let whole = [&ip[..], &expected].concat();
        let frame = Frame::parse(&whole).unwrap();
        prop_assert_eq!(frame.flow, flow);
        prop_assert!(icrc::verify(&frame.flow, frame.ip_id, frame.udp_payload));
    }

    #[test]
    fn recover_id_finds_any_identification(
        flow in flow_v4(),
        id: u16,
        expected: u16,
        body in vec(any::<u8>(), 12..9100),
    ) {
        let packet = with_icrc(&flow, id, body);
        let likely = id < 64 || id == expected || id.wrapping_add(1) == expected;
        prop_assert_eq!(icrc::recover_id(&flow, expected, &packet), Some(Recovered { id, likely }));
        prop_assert!(icrc::verify(&flow, id, &packet));
        prop_assert!(!icrc::verify(&flow, id ^ 1, &packet));
    }

    #[test]
    fn recover_id_marks_expected_and_small_identifications_likely(
        flow in flow_v4(),
        expected: u16,
        small in 0u16..64,
        body in vec(any::<u8>(), 12..100),
    ) {
        for id in [0, small, expected, expected.wrapping_sub(1)] {
            let packet = with_icrc(&flow, id, body.clone());
            let found = Recovered { id, likely: true };
            prop_assert_eq!(icrc::recover_id(&flow, expected, &packet), Some(found));
        }
    }

    #[test]
    fn packets_that_allow_fragmentation_are_accepted(
        flow in flow_v4(),
        id: u16,
        expected: u16,
        body in vec(any::<u8>(), 12..100),
    ) {
        let mut ip = [ip_udp(&flow, id, body.len() + 4), body.clone()].concat();
        ip[6] = 0;
        let mut packet = [&body[..], &reference::icrc(&ip)].concat();
        prop_assert_eq!(icrc::recover_id(&flow, expected, &packet).map(|found| found.id), Some(id));
        packet[5] ^= 1;
        let damaged = icrc::recover_id(&flow, expected, &packet);
        prop_assert!(damaged.is_none_or(|found| !found.likely && found.id != id));
    }

    #[test]
    fn ipv6_has_no_identification(flow in flow_v6(), expected: u16, body in vec(any::<u8>(), 12..100)) {
        let mut packet = with_icrc(&flow, expected, body);
        let found = Recovered { id: 0, likely: true };
        prop_assert_eq!(icrc::recover_id(&flow, expected, &packet), Some(found));
        packet[5] ^= 1;
        prop_assert_eq!(icrc::recover_id(&flow, expected, &packet), None);
    }

    #[test]
    fn flush_quirk_hashes_the_headers_twice_as_rxe_does(flow in flow(), id: u16, expected: u16, rest in vec(any::<u8>(), 31)) {
        let header = [&[0x1c][..], &rest].concat();
        let ip = [ip_udp(&flow, id, 36), header.clone()].concat();
        let twice = [reference::masked(&ip), header.clone()].concat();
        let quirk = reference::crc32(&twice).to_le_bytes();
        prop_assert_eq!(icrc::compute_flush_quirk(&flow, id, &header), quirk);

        let mut packet = [&header[..], &quirk].concat();
        prop_assert!(icrc::verify_flush_quirk(&flow, id, &packet));
        prop_assert!(!icrc::verify(&flow, id, &packet));
        let recovered = icrc::recover_id_flush_quirk(&flow, expected, &packet).unwrap();
        prop_assert_eq!(recovered.id, if flow.is_ipv4() { id } else { 0 });
        packet[9] ^= 1;
        prop_assert!(!icrc::verify_flush_quirk(&flow, id, &packet));
    }

    #[test]
    fn changed_id_keeps_the_kind_of_icrc(flow in flow(), from: u16, to: u16, flush: bool, rest in vec(any::<u8>(), 31)) {
        let body = [&[if flush { 0x1c } else { 0x07 }][..], &rest].concat();
        let packet = with_icrc(&flow, from, body.clone());
        let changed = icrc::change_id(&flow, from, to, &packet);
        prop_assert_eq!(changed, Some((&body[..], icrc::compute(&flow, to, &body))));

        let packet = [&body[..], &icrc::compute_flush_quirk(&flow, from, &body)].concat();
        let changed = icrc::change_id(&flow, from, to, &packet);
        let expected = match flush {
            true => icrc::compute_flush_quirk(&flow, to, &body),
            false => icrc::compute(&flow, to, &body),
        };
        prop_assert_eq!(changed, Some((&body[..], expected)));
        prop_assert_eq!(icrc::change_id(&flow, from, to, &packet[..15]), None);
    }
}

#[test]
fn packets_too_long_or_too_short_for_udp_fail_the_icrc_check() {
    let flow = Flow {
        source: v4(1),
        destination: v4(2),
        source_port: 3,
    };
    let longest = with_icrc(&flow, 9, vec![0; 65535 - 28 - 4]);
    assert!(icrc::verify(&flow, 9, &longest));
    assert_eq!(icrc::recover_id(&flow, 0, &longest).unwrap().id, 9);
    let longer = with_icrc(&flow, 9, vec![0; 65535 - 28 - 3]);
    assert!(!icrc::verify(&flow, 9, &longer));
    assert_eq!(icrc::recover_id(&flow, 0, &longer), None);
    assert!(!icrc::verify(&flow, 9, &longest[..15]));
}

#[test]
fn identifications_below_64_are_always_likely() {
    let flow = Flow {
        source: v4(1),
        destination: v4(2),
        source_port: 3,
    };
    for id in 0..70 {
        let packet = with_icrc(&flow, id, vec![0; 12]);
        let likely = icrc::recover_id(&flow, 1000, &packet).unwrap().likely;
        assert_eq!(likely, id < 64);
    }
}

/// Of 2^20 damaged packets, about 16 look like a packet with an unlikely identification, and
/// none looks like a packet with a likely identification.
#[test]
fn damage_looks_like_another_identification_once_in_65536() {
    let flow = Flow {
        source: v4(0xc000_0201),
        destination: v4(0xc000_0202),
        source_port: 0xc132,
    };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let good = with_icrc(&flow, 0x1234, vec![0x5a; 12 + 16]);
    assert_eq!(padding(16), 0);
    let (mut unlikely, mut likely) = (0, 0);
    for _ in 0..1 << 20 {
        let mut bad = good.clone();
        let at = 8 + next() as usize % (bad.len() - 16);
        let damage = (next() | 1).to_le_bytes();
        for (byte, error) in bad[at..at + 8].iter_mut().zip(damage) {
            *byte ^= error;
        }
        match icrc::recover_id(&flow, 0x1233, &bad) {
            Some(Recovered { likely: true, .. }) => likely += 1,
            Some(_) => unlikely += 1,
            None => {}
        }
    }
    assert_eq!(likely, 0);
    assert!(
        (4..=36).contains(&unlikely),
        "{unlikely} of 2^20, expected about 16"
    );
}
