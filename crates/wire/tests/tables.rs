//! The tables of the protocol, written a second time as literals.

use ferroce_wire::{
    Mtu, NakCode, Opcode, Operation, Psn, Syndrome, Transport, credit_code, credits, padding,
    rc_source_port, rnr_delay_ns, ud_source_port,
};

use Operation::*;

const NONE: i32 = -1;

/// Each operation, its opcode in RC, UC, RD, UD and XRC, and the length of its headers
/// without those that a transport other than RC adds.
const OPCODES: &[(Operation, [i32; 5], usize)] = &[
    (SendFirst, [0x00, 0x20, 0x40, NONE, 0xa0], 12),
    (SendMiddle, [0x01, 0x21, 0x41, NONE, 0xa1], 12),
    (SendLast, [0x02, 0x22, 0x42, NONE, 0xa2], 12),
    (SendLastImm, [0x03, 0x23, 0x43, NONE, 0xa3], 16),
    (SendOnly, [0x04, 0x24, 0x44, 0x64, 0xa4], 12),
    (SendOnlyImm, [0x05, 0x25, 0x45, 0x65, 0xa5], 16),
    (WriteFirst, [0x06, 0x26, 0x46, NONE, 0xa6], 28),
    (WriteMiddle, [0x07, 0x27, 0x47, NONE, 0xa7], 12),
    (WriteLast, [0x08, 0x28, 0x48, NONE, 0xa8], 12),
    (WriteLastImm, [0x09, 0x29, 0x49, NONE, 0xa9], 16),
    (WriteOnly, [0x0a, 0x2a, 0x4a, NONE, 0xaa], 28),
    (WriteOnlyImm, [0x0b, 0x2b, 0x4b, NONE, 0xab], 32),
    (ReadRequest, [0x0c, NONE, 0x4c, NONE, 0xac], 28),
    (ReadResponseFirst, [0x0d, NONE, 0x4d, NONE, 0xad], 16),
    (ReadResponseMiddle, [0x0e, NONE, 0x4e, NONE, 0xae], 12),
    (ReadResponseLast, [0x0f, NONE, 0x4f, NONE, 0xaf], 16),
    (ReadResponseOnly, [0x10, NONE, 0x50, NONE, 0xb0], 16),
    (Acknowledge, [0x11, NONE, 0x51, NONE, 0xb1], 16),
    (AtomicAcknowledge, [0x12, NONE, 0x52, NONE, 0xb2], 24),
    (CompareSwap, [0x13, NONE, 0x53, NONE, 0xb3], 40),
    (FetchAdd, [0x14, NONE, 0x54, NONE, 0xb4], 40),
    (Resync, [NONE, NONE, 0x55, NONE, NONE], 12),
    (SendLastInvalidate, [0x16, NONE, NONE, NONE, 0xb6], 16),
    (SendOnlyInvalidate, [0x17, NONE, NONE, NONE, 0xb7], 16),
    (Flush, [0x1c, NONE, 0x5c, NONE, NONE], 32),
    (AtomicWrite, [0x1d, NONE, NONE, NONE, NONE], 28),
];

const TRANSPORTS: [Transport; 5] = [
    Transport::Rc,
    Transport::Uc,
    Transport::Rd,
    Transport::Ud,
    Transport::Xrc,
];

fn rc(operation: Operation) -> Opcode {
    Opcode::new(Transport::Rc, operation).unwrap()
}

#[test]
fn opcodes_have_the_values_of_the_table() {
    let mut legal = [false; 256];
    for (operation, bytes, _) in OPCODES {
        for (transport, byte) in TRANSPORTS.into_iter().zip(bytes) {
            let opcode = Opcode::new(transport, *operation);
            let Ok(byte) = u8::try_from(*byte) else {
                assert_eq!(opcode, None, "{transport:?} {operation:?}");
                continue;
            };
            let opcode = opcode.unwrap();
            assert_eq!(opcode.byte(), byte);
            assert_eq!(opcode.transport(), transport);
            assert_eq!(opcode.operation(), *operation);
            legal[byte as usize] = true;
        }
    }
    legal[0x81] = true;
    for byte in 0..=255 {
        let opcode = Opcode::from_byte(byte);
        assert_eq!(opcode.is_some(), legal[byte as usize], "{byte:#x}");
        assert!(opcode.is_none_or(|opcode| opcode.byte() == byte));
    }
}

#[test]
fn each_transport_adds_its_headers_to_the_length() {
    for (operation, _, rc_len) in OPCODES {
        for transport in TRANSPORTS {
            let Some(opcode) = Opcode::new(transport, *operation) else {
                continue;
            };
            let added = match (transport, opcode.is_request()) {
                (Transport::Rd, true) => 12,
                (Transport::Rd, false) => 4,
                (Transport::Ud, _) => 8,
                (Transport::Xrc, true) => 4,
                _ => 0,
            };
            assert_eq!(opcode.header_len(), rc_len + added, "{opcode}");
        }
    }
    assert_eq!(Opcode::from_byte(0x81).unwrap().header_len(), 12);
}

#[test]
fn congestion_notification_exists_in_its_own_transport_only() {
    let cnp = Opcode::new(Transport::Cnp, CongestionNotification).unwrap();
    assert_eq!(cnp.byte(), 0x81);
    assert_eq!(cnp.operation(), CongestionNotification);
    assert_eq!(cnp.to_string(), "CNP");
    assert!(!cnp.is_request() && !cnp.is_response());
    assert_eq!(Opcode::new(Transport::Cnp, SendMiddle), None);
    assert_eq!(Opcode::new(Transport::Rc, CongestionNotification), None);
}

#[test]
fn opcodes_print_as_transport_and_operation() {
    assert_eq!(rc(SendOnly).to_string(), "RC SEND_ONLY");
    assert_eq!(
        format!("{:?}", Opcode::from_byte(0xac).unwrap()),
        "XRC READ_REQUEST"
    );
}

#[test]
fn operations_have_their_extension_headers() {
    let with = |predicate: fn(Opcode) -> bool| -> Vec<Operation> {
        let all = OPCODES.iter().map(|(operation, ..)| *operation);
        all.filter(|o| Opcode::new(Transport::Rc, *o).is_some_and(predicate))
            .collect()
    };
    assert_eq!(
        with(Opcode::has_reth),
        [
            WriteFirst,
            WriteOnly,
            WriteOnlyImm,
            ReadRequest,
            Flush,
            AtomicWrite
        ]
    );
    assert_eq!(
        with(Opcode::has_aeth),
        [
            ReadResponseFirst,
            ReadResponseLast,
            ReadResponseOnly,
            Acknowledge,
            AtomicAcknowledge
        ]
    );
    assert_eq!(
        with(Opcode::has_immediate),
        [SendLastImm, SendOnlyImm, WriteLastImm, WriteOnlyImm]
    );
    assert_eq!(
        with(Opcode::has_invalidate),
        [SendLastInvalidate, SendOnlyInvalidate]
    );
    assert_eq!(with(Opcode::has_atomic_eth), [CompareSwap, FetchAdd]);
    assert_eq!(with(Opcode::is_atomic), [CompareSwap, FetchAdd]);
    assert_eq!(with(Opcode::has_atomic_ack), [AtomicAcknowledge]);
    assert_eq!(with(Opcode::has_feth), [Flush]);
    assert_eq!(with(Opcode::has_deth), []);
    assert_eq!(with(Opcode::has_rdeth), []);
    assert_eq!(with(Opcode::has_xrceth), []);
    assert_eq!(
        with(|o| !o.has_payload()),
        [
            ReadRequest,
            Acknowledge,
            AtomicAcknowledge,
            CompareSwap,
            FetchAdd,
            Flush
        ]
    );
    assert_eq!(
        with(Opcode::is_response),
        [
            ReadResponseFirst,
            ReadResponseMiddle,
            ReadResponseLast,
            ReadResponseOnly,
            Acknowledge,
            AtomicAcknowledge
        ]
    );
    assert_eq!(with(|o| o.is_response() == o.is_request()), []);
    assert_eq!(
        with(Opcode::is_read_response),
        [
            ReadResponseFirst,
            ReadResponseMiddle,
            ReadResponseLast,
            ReadResponseOnly
        ]
    );
    assert_eq!(with(Opcode::is_send).len(), 8);
    assert_eq!(with(Opcode::is_write).len(), 6);
}

#[test]
fn operation_names_tell_the_position_in_the_message() {
    for byte in 0..=255 {
        let Some(opcode) = Opcode::from_byte(byte) else {
            continue;
        };
        let name = opcode.operation().name();
        let positions = [
            name.ends_with("_FIRST"),
            name.ends_with("_MIDDLE"),
            name.contains("_LAST"),
        ];
        assert_eq!(
            [opcode.is_first(), opcode.is_middle(), opcode.is_last()],
            positions
        );
        assert_eq!(opcode.is_only(), positions == [false; 3], "{opcode}");
        assert_eq!(
            opcode.starts_message(),
            opcode.is_first() || opcode.is_only()
        );
        assert_eq!(opcode.ends_message(), opcode.is_last() || opcode.is_only());
    }
}

#[test]
fn rnr_timer_codes_have_the_delays_of_the_table() {
    let milliseconds = [
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
        1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88,
        163.84, 245.76, 327.68, 491.52,
    ];
    for (code, ms) in milliseconds.into_iter().enumerate() {
        assert_eq!(
            rnr_delay_ns(code as u8),
            (ms * 1e6_f64).round() as u64,
            "code {code}"
        );
    }
}

#[test]
fn credit_codes_round_down_to_the_counts_of_the_table() {
    let counts = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];
    for (code, count) in (0..).zip(counts) {
        assert_eq!(credits(code), Some(count));
        assert_eq!(credit_code(count), code);
        if count > 0 {
            assert_eq!(credit_code(count - 1), code - 1);
        }
    }
    assert_eq!(credits(31), None);
    assert_eq!(credit_code(u32::MAX), 30);
}

#[test]
fn every_syndrome_byte_survives_decoding() {
    for byte in 0..=255 {
        assert_eq!(Syndrome::from_byte(byte).byte(), byte);
    }
    assert_eq!(Syndrome::from_byte(0x1f), Syndrome::ACK_UNLIMITED);
    assert_eq!(Syndrome::from_byte(0x2e), Syndrome::RnrNak { timer: 14 });
    assert_eq!(Syndrome::from_byte(0x40), Syndrome::Reserved(0x40));
    let naks = [
        NakCode::PsnSequence,
        NakCode::InvalidRequest,
        NakCode::RemoteAccess,
        NakCode::RemoteOperational,
        NakCode::InvalidRdRequest,
        NakCode::Unknown(5),
    ];
    for (byte, code) in (0x60..).zip(naks) {
        assert_eq!(Syndrome::from_byte(byte), Syndrome::Nak(code));
    }
}

#[test]
fn source_ports_match_worked_examples() {
    assert_eq!(rc_source_port(0, 0x11, 0x12), 0xc132);
    assert_eq!(rc_source_port(0, 0x12, 0x11), 0xc132);
    assert_eq!(rc_source_port(0xabcde, 0x11, 0x12), 0xfcf4);
    assert_eq!(ud_source_port(16), 0xc722);
    assert_eq!(ud_source_port(1), 0xd872);
    assert_eq!(rc_source_port(0, 0xffffff, 0xfffffe), 0xff12);
    assert_eq!(rc_source_port(0, 0x12345, 0xabcdef), 0xd9d9);
    assert_eq!(rc_source_port(0, 0x800001, 0x7fffff), 0xc03f);
}

#[test]
fn mtus_convert_between_bytes_and_enum_values() {
    for (value, mtu) in (1..).zip(Mtu::ALL) {
        assert_eq!(mtu.bytes(), 128 << value);
        assert_eq!(mtu.to_enum(), value);
        assert_eq!(Mtu::from_enum(value), Some(mtu));
        assert_eq!(Mtu::from_bytes(mtu.bytes()), Some(mtu));
    }
    assert_eq!((Mtu::from_enum(0), Mtu::from_enum(6)), (None, None));
    assert_eq!((Mtu::from_bytes(1500), Mtu::from_bytes(128)), (None, None));
    for (netdev, expected) in [
        (0, Mtu::Mtu256),
        (335, Mtu::Mtu256),
        (591, Mtu::Mtu256),
        (592, Mtu::Mtu512),
        (1500, Mtu::Mtu1024),
        (4175, Mtu::Mtu2048),
        (4176, Mtu::Mtu4096),
        (9000, Mtu::Mtu4096),
        (65536, Mtu::Mtu4096),
    ] {
        assert_eq!(Mtu::largest_fitting(netdev), expected, "{netdev}");
    }
}

#[test]
fn padding_fills_up_to_four_bytes() {
    assert_eq!(
        [0, 1, 2, 3, 4, 5, 1023, 1024].map(padding),
        [0, 3, 2, 1, 0, 3, 1, 0]
    );
}

#[test]
fn sequence_numbers_wrap() {
    let last = Psn::new(0xff_ffff);
    assert_eq!(last.next(), Psn::new(0));
    assert_eq!(Psn::new(0).prev(), last);
    assert_eq!(Psn::new(0x100_0005), Psn::new(5));
    assert_eq!(last.add(3).sub(3), last);
    assert_eq!(Psn::new(2).distance(last), 3);
    assert_eq!(last.distance(Psn::new(2)), -3);
    assert!(last.is_before(Psn::new(2)) && Psn::new(2).is_after(last));
    assert!(!last.is_before(last) && !last.is_after(last));
    assert_eq!(Psn::new(0x7f_ffff).distance(Psn::new(0)), 0x7f_ffff);
    assert_eq!(Psn::new(0x80_0000).distance(Psn::new(0)), -0x80_0000);
    assert_eq!(Psn::new(0x12).to_string(), "0x000012");
}
