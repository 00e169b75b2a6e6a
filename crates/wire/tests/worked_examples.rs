//! Packets whose ICRC comes from an independent source. Scripts computed A, B and C, D was
//! captured from a ConnectX-4 Lx, and E is from scapy's tests.

#[path = "common/reference.rs"]
mod reference;

use std::net::{Ipv4Addr, Ipv6Addr};

use ferroce_wire::ip::{Frame, ipv4_header, ipv6_header, udp_header};
use ferroce_wire::{
    Aeth, Bth, Flow, HeaderBuf, Icrc, Opcode, Operation, Packet, Psn, Syndrome, Transport, icrc,
    padding,
};

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits
        .bytes()
        .filter(|b| !b.is_ascii_whitespace())
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Checks that an IP packet, given without its ICRC, has the expected ICRC. Returns the
/// packet with the ICRC.
fn check(ip: &[u8], expected: [u8; 4]) -> Vec<u8> {
    let whole = [ip, &expected].concat();
    let frame = Frame::parse(&whole).unwrap();
    let body = &frame.udp_payload[..frame.udp_payload.len() - 4];
    assert_eq!(icrc::compute(&frame.flow, frame.ip_id, body), expected);
    assert_eq!(reference::icrc(ip), expected);
    assert!(icrc::verify(&frame.flow, frame.ip_id, frame.udp_payload));
    let recovered = icrc::recover_id(&frame.flow, 0, frame.udp_payload).unwrap();
    assert_eq!(recovered.id, frame.ip_id);
    Packet::parse(frame.udp_payload).unwrap();
    whole
}

const A_TRANSPORT: &str = "0430ffff0000001180000001 68656c6c6f000000";

fn hello() -> Bth {
    let opcode = Opcode::new(Transport::Rc, Operation::SendOnly).unwrap();
    Bth {
        pad: padding(5) as u8,
        ack_req: true,
        ..Bth::new(opcode, 0x11, Psn::new(1))
    }
}

#[test]
fn a_ipv4_send() {
    let ip = hex(&format!(
        "45000034000040004011b6b5c0000201c0000202 c00012b700200000 {A_TRANSPORT}"
    ));
    let whole = check(&ip, [0xc7, 0x50, 0xcf, 0xc1]);

    let (source, destination) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let flow = Flow {
        source: source.into(),
        destination: destination.into(),
        source_port: 0xc000,
    };
    let header = HeaderBuf::new(&hello()).finish();
    let mut icrc = Icrc::begin(&flow, 0, 24, header.as_bytes());
    icrc.update(b"hello");
    icrc.update(&[0; 3]);
    let built = [
        &ipv4_header(source, destination, 0, 64, 0, 52)[..],
        &udp_header(0xc000, 24),
        header.as_bytes(),
        b"hello\0\0\0",
        &icrc.finish(),
    ]
    .concat();
    assert_eq!(built, whole);

    let mapped = Flow {
        source: source.to_ipv6_mapped().into(),
        destination: destination.to_ipv6_mapped().into(),
        ..flow
    };
    assert!(icrc::verify(&mapped, 0, &built[28..]));
}

#[test]
fn a_with_masked_bytes_written_out() {
    let masked = hex("ffffffffffffffff 45ff003400004000ff11ffffc0000201c0000202 \
         c00012b70020ffff 0430ffffff00001180000001 68656c6c6f000000");
    assert_eq!(reference::crc32(&masked), 0xc1cf_50c7);
}

#[test]
fn b_ipv4_acknowledge() {
    let ip = hex("45000030000040004011b6b9c0000201c0000202 c00012b7001c0000 \
                  1100ffff0000001200000001 1f000001");
    let whole = check(&ip, [0x22, 0xba, 0x02, 0xa4]);
    let packet = Packet::parse(&whole[28..]).unwrap();
    assert_eq!(packet.opcode().to_string(), "RC ACKNOWLEDGE");
    let aeth = Aeth {
        syndrome: Syndrome::Ack { credits: 0x1f },
        msn: 1,
    };
    assert_eq!(packet.aeth(), Some(aeth));
    assert_eq!((packet.dest_qpn(), packet.psn()), (0x12, Psn::new(1)));
}

#[test]
fn c_ipv6_send() {
    let ip = hex(&format!(
        "6000000000201140 20010db8000000000000000000000001 \
         20010db8000000000000000000000002 c00012b700200000 {A_TRANSPORT}"
    ));
    let whole = check(&ip, [0x13, 0x30, 0xf6, 0x02]);
    let address = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
    assert_eq!(
        ipv6_header(address(1), address(2), 0, 0, 64, 32),
        whole[..40]
    );
    assert_eq!(Packet::parse(&whole[48..]).unwrap().bth(), hello());
}

#[test]
fn d_congestion_notification_from_hardware() {
    let ip = hex("45c2003c718c4000401191610a0011010a001201 000012b700280000 \
                  8100ffff4000011800000000 00000000000000000000000000000000");
    let whole = check(&ip, [0x82, 0xfd, 0x00, 0x2a]);
    let packet = Packet::parse(&whole[28..]).unwrap();
    let opcode = Opcode::new(Transport::Cnp, Operation::CongestionNotification).unwrap();
    let expected = Bth {
        becn: true,
        ..Bth::new(opcode, 0x118, Psn::new(0))
    };
    assert_eq!(packet.bth(), expected);
    assert_eq!(packet.payload(), [0; 16]);
    let frame = Frame::parse(&whole).unwrap();
    assert_eq!(
        (frame.tos, frame.ip_id, frame.flow.source_port),
        (0xc2, 0x718c, 0)
    );
}

#[test]
fn e_uc_send_with_pad() {
    let address = Ipv4Addr::new(192, 168, 0, 7);
    let ip = [
        &ipv4_header(address, address, 1, 64, 1144, 64)[..],
        &hex("c00012b7002caca2 2460ffff000000d300cf1710"),
        &hex("4630818be28935d90e9a95505401be885e50 0000"),
    ]
    .concat();
    let whole = check(&ip, [0x78, 0xf3, 0x53, 0xf3]);
    let packet = Packet::parse(&whole[28..]).unwrap();
    assert!(packet.bth().migrated);
    assert_eq!((packet.pad(), packet.payload().len()), (2, 18));
}
