//! Arbitrary bytes as a UDP payload. Checks that nothing panics, that a parsed packet is
//! rebuilt byte for byte, and that a computed ICRC verifies with a known and with an unknown
//! IPv4 identification.

#![no_main]

#[path = "../../crates/wire/tests/common/reencode.rs"]
mod reencode;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroce_wire::ip::Frame;
use ferroce_wire::{Flow, Opcode, Packet, ParseError, icrc};
use libfuzzer_sys::fuzz_target;
use reencode::{reencode, without_reserved_bits};

fuzz_target!(|data: &[u8]| {
    parse(data);
    check_icrc(data);
    let _ = Frame::parse(data);
});

fn parse(data: &[u8]) {
    match Packet::parse(data) {
        Ok(packet) => {
            assert_eq!(reencode(&packet), without_reserved_bits(&packet));
            let parts = [
                packet.header().len(),
                packet.payload().len(),
                packet.pad(),
                4,
            ];
            assert_eq!(parts.iter().sum::<usize>(), data.len());
        }
        Err(ParseError::Truncated { len, need }) => {
            assert_eq!(len, data.len());
            assert!(len < need);
        }
        Err(ParseError::UnknownOpcode(byte)) => assert_eq!(Opcode::from_byte(byte), None),
        Err(ParseError::Version(version)) => assert_ne!(version, 0),
    }
}

fn check_icrc(data: &[u8]) {
    let id = data
        .iter()
        .fold(0_u16, |sum, byte| sum.rotate_left(5) ^ *byte as u16);
    let hint = !id;
    for flow in [FLOW_V4, FLOW_V6] {
        icrc::verify(&flow, id, data);
        icrc::recover_id(&flow, hint, data);
        icrc::recover_id_flush_quirk(&flow, hint, data);

        let fits = (12..=65_503).contains(&data.len());
        let expected = fits.then_some(if flow.is_ipv4() { id } else { 0 });
        let packet = [data, &icrc::compute(&flow, id, data)].concat();
        assert_eq!(icrc::verify(&flow, id, &packet), fits);
        let recovered = icrc::recover_id(&flow, hint, &packet);
        assert_eq!(recovered.map(|recovered| recovered.id), expected);

        let packet = [data, &icrc::compute_flush_quirk(&flow, id, data)].concat();
        assert_eq!(icrc::verify_flush_quirk(&flow, id, &packet), fits);
        let recovered = icrc::recover_id_flush_quirk(&flow, hint, &packet);
        assert_eq!(recovered.map(|recovered| recovered.id), expected);
    }
}

const FLOW_V4: Flow = Flow {
    source: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    destination: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
    source_port: 0xc132,
};

const FLOW_V6: Flow = Flow {
    source: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    destination: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
    source_port: 0xc132,
};
