use ferroce_roce::{Datagram, IpId};

use super::*;

fn flow() -> Flow {
    Flow {
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        source_port: ud_source_port(QPN),
    }
}

fn incoming(payload: &[u8]) -> Incoming<'_> {
    Incoming {
        datagram: Datagram {
            source: flow().source,
            source_port: flow().source_port,
            destination: flow().destination,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            ip_id: IpId::UNSEEN,
            payload,
        },
        ifindex: 1,
    }
}

/// Appends the ICRC.
fn sealed(mut packet: Vec<u8>) -> Vec<u8> {
    let crc = icrc::compute(&flow(), 0, &packet);
    packet.extend(crc);
    packet
}

fn changed(at: usize, to: u8) -> Vec<u8> {
    let mut packet = build(&flow(), Psn::new(7), &[9; MAD_LEN]).to_vec();
    packet.truncate(PACKET_LEN - ICRC_LEN);
    packet[at] = to;
    sealed(packet)
}

#[test]
fn packet_is_what_rxe_sends() {
    let packet = build(&flow(), Psn::new(7), &[9; MAD_LEN]);
    // 288 bytes with the UDP header.
    assert_eq!(packet.len(), 280);
    // UD SEND_ONLY, P_Key, destination 1, AckReq, PSN; Q_Key, source 1.
    let header = [
        0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0x80, 0, 0, 7, 0x80, 1, 0, 0, 0, 0, 0, 1,
    ];
    assert_eq!(packet[..20], header);
    assert_eq!(packet[20..276], [9; MAD_LEN]);
    assert!(icrc::verify(&flow(), 0, &packet));
    assert_eq!(ud_source_port(QPN), 0xd872);
}

#[test]
fn only_mads_for_queue_pair_1_are_accepted() {
    let good = build(&flow(), Psn::new(7), &[9; MAD_LEN]);
    assert_eq!(check(&incoming(&good), true), Ok(&[9; MAD_LEN][..]));
    let limited = changed(2, 0x7f);
    assert!(check(&incoming(&limited), true).is_ok(), "a limited member");
    for (at, to, why) in [
        (0, 0xff, Drop::Malformed),
        (1, 0x01, Drop::Malformed),
        (7, 0, Drop::UnknownQp),
        (6, 1, Drop::UnknownQp),
        (0, 0x04, Drop::WrongState),
        (0, 0x65, Drop::WrongState),
        (3, 0xfe, Drop::BadPkey),
        (15, 1, Drop::BadQkey),
        (12, 0, Drop::BadQkey),
        (1, 0x10, Drop::Malformed),
    ] {
        let packet = changed(at, to);
        assert_eq!(check(&incoming(&packet), true), Err(why), "{at} {to:#x}");
    }
    for len in [0, 1, 11, 23] {
        let why = Err(Drop::Malformed);
        assert_eq!(check(&incoming(&good[..len]), true), why, "{len}");
    }
}

#[test]
fn mad_of_another_length_is_malformed() {
    for len in [0, 252, 260] {
        let mut packet = build(&flow(), Psn::new(7), &[9; MAD_LEN])[..20].to_vec();
        packet.resize(20 + len, 9);
        let packet = sealed(packet);
        assert_eq!(check(&incoming(&packet), true), Err(Drop::Malformed));
    }
}

#[test]
fn icrc_is_checked_if_the_link_checks_icrcs() {
    let mut packet = build(&flow(), Psn::new(7), &[9; MAD_LEN]);
    packet[40] ^= 1;
    // Another IPv4 identification explains some wrong bits, but not all.
    packet[140] ^= 0x55;
    packet[240] ^= 0xaa;
    assert_eq!(check(&incoming(&packet), true), Err(Drop::BadIcrc));
    assert!(check(&incoming(&packet), false).is_ok());
}
