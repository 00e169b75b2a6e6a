//! Properties of all messages and of arbitrary bytes.

#[path = "common/reencode.rs"]
mod reencode;

use ferroce_cm::message::*;
use ferroce_cm::{DecodeError, Gid, IpHeader, IpHeaderOr, MAD_LEN, Mad, PrivateData, Reason};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const ATTRIBUTES: std::ops::RangeInclusive<u16> = 0x10..=0x1a;

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 512,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    }
}

/// Returns MADs of this attribute with arbitrary contents.
fn bytes(attribute: u16) -> impl Strategy<Value = [u8; MAD_LEN]> {
    prop::collection::vec(any::<u8>(), MAD_LEN).prop_map(move |v| {
        let mut bytes: [u8; MAD_LEN] = v.try_into().unwrap();
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes
    })
}

fn any_bytes() -> impl Strategy<Value = [u8; MAD_LEN]> {
    ATTRIBUTES.prop_flat_map(bytes)
}

fn path() -> impl Strategy<Value = Path> {
    let lids_gids = any::<(u16, u16, [u8; 16], [u8; 16])>();
    let rest = (0..1_u32 << 20, any::<(u8, u8)>(), 0..64_u8, 0..16_u8);
    let end = (any::<bool>(), 0..32_u8);
    (lids_gids, rest, end).prop_map(|(a, b, c)| Path {
        local_lid: a.0,
        remote_lid: a.1,
        local_gid: Gid(a.2),
        remote_gid: Gid(a.3),
        flow_label: b.0,
        traffic_class: b.1.0,
        hop_limit: b.1.1,
        packet_rate: b.2,
        sl: b.3,
        subnet_local: c.0,
        ack_timeout: c.1,
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn reencoding_preserves_a_decoded_message(bytes in any_bytes()) {
        reencode::check(&bytes);
    }

    #[test]
    fn decoding_an_encoded_message_returns_it(bytes in any_bytes(), tid: u64, modifier: u32) {
        // A decoded message has arbitrary values within the range of each field.
        let message = Mad::decode(&bytes).unwrap().message;
        let mad = Mad { tid, modifier, message };
        prop_assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
    }

    #[test]
    fn decoding_an_encoded_path_returns_it(primary in path(), alternate in path(), bytes in bytes(0x10)) {
        let Ok(Mad { message: Message::Req(req), .. }) = Mad::decode(&bytes) else { panic!() };
        let message = Message::Req(Req { primary, alternate, ..req });
        let mad = Mad { tid: 0, modifier: 0, message };
        prop_assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
        let lap = Message::Lap(Lap {
            local_id: 1,
            remote_id: 2,
            remote_qpn: 3,
            remote_response_timeout: 20,
            path: primary,
            private_data: PrivateData::EMPTY,
        });
        let mad = Mad { tid: 0, modifier: 0, message: lap };
        prop_assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        reencode::check(&bytes);
    }

    #[test]
    fn every_bit_of_a_message_is_a_field_or_reserved(bytes in any_bytes(), at in 24..MAD_LEN, bit in 0..8_u8) {
        // Re-encoding keeps a flipped bit of a field and clears a flipped reserved bit.
        let clean = Mad::decode(&bytes).unwrap().encode();
        let mut flipped = clean;
        flipped[at] ^= 1 << bit;
        let again = Mad::decode(&flipped).unwrap().encode();
        prop_assert!(again == flipped || again == clean);
        if clean[at] >> bit & 1 != 0 {
            prop_assert_eq!(again, flipped);
        }
    }

    #[test]
    fn parsing_a_written_ip_header_returns_it(source_port: u16, source: u128, destination: u128, v4: bool) {
        let ip = |bits: u128| match v4 {
            true => std::net::Ipv4Addr::from_bits(bits as u32).into(),
            false => std::net::Ipv6Addr::from_bits(bits).into(),
        };
        let header = IpHeader { source_port, source: ip(source), destination: ip(destination) };
        let mut data = [0xaa; 92];
        header.emit(&mut data);
        prop_assert_eq!(IpHeader::parse(&data), IpHeaderOr::Ip(header));
    }
}

#[test]
fn decode_errors_name_the_wrong_header_field() {
    let drep = Message::Drep(Drep {
        local_id: 1,
        remote_id: 2,
        private_data: PrivateData::EMPTY,
    });
    let good = Mad {
        tid: 1,
        modifier: 0,
        message: drep,
    }
    .encode();
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Mad::decode(&bytes)
    };
    assert!(Mad::decode(&good).is_ok());
    assert_eq!(with(0, 2), Err(DecodeError::BaseVersion(2)));
    assert_eq!(with(1, 3), Err(DecodeError::Class(3)));
    assert_eq!(with(2, 1), Err(DecodeError::ClassVersion(1)));
    assert_eq!(with(3, 0x81), Err(DecodeError::Method(0x81)));
    assert_eq!(with(17, 0x0f), Err(DecodeError::Attribute(0x0f)));
    assert_eq!(with(17, 0x1b), Err(DecodeError::Attribute(0x1b)));
    assert_eq!(Mad::decode(&good[..255]), Err(DecodeError::Length(255)));
    assert_eq!(Mad::decode(&[]), Err(DecodeError::Length(0)));
}

#[test]
fn known_reasons_print_their_description() {
    assert_eq!(Reason(28), Reason::CONSUMER);
    assert_eq!(
        Reason(10).to_string(),
        Reason::STALE_CONNECTION.text().unwrap()
    );
    assert_eq!(Reason(34).to_string(), "reason 34");
}

#[test]
fn additional_reject_information_is_truncated_to_72_bytes() {
    let rej = Rej {
        local_id: 0,
        remote_id: 0,
        subject: Subject::Other,
        ari_len: 100,
        reason: Reason::TIMEOUT,
        ari: [7; 72],
        private_data: PrivateData::EMPTY,
    };
    assert_eq!(rej.ari().len(), 72);
    assert_eq!(rej.with_ari(&[1; 8]).ari(), [1; 8]);
    assert_eq!(rej.with_ari(&[1; 80]).ari().len(), 72);
}
