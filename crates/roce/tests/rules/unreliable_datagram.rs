//! UD and QP1: each message is one packet; Q_Keys, GRH area and multicast.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroce_roce::{
    AddressHandle, Batch, Counter, Drop, NetworkHeader, QpState, QpType, Received, SendFlags,
    SendOp, VerbsError, WcFlags, WcStatus,
};
use ferroce_wire::ip;

use crate::pair::{BASE, Knobs, Pair, av, wr};
use crate::shorthand::INBOX;

const OK: WcStatus = WcStatus::Success;
const GRH: u64 = 40;

fn knobs(qp_type: QpType) -> Knobs {
    Knobs {
        qp_type,
        ..Knobs::default()
    }
}

fn ud() -> Pair {
    Pair::new(&knobs(QpType::Ud))
}

#[test]
fn datagram_is_written_behind_the_grh_area() {
    let mut pair = ud();
    pair.recv(7, 2000);
    pair.datagram(1, 999);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    let got = pair.hosts[1].completions()[0];
    assert_eq!((got.wr_id, got.status, got.byte_len), (7, OK, 999 + 40));
    assert_eq!((got.flags, got.src_qp), (WcFlags::GRH, pair.hosts[0].qpn));
    assert_eq!(got.network, NetworkHeader::Ipv4);
    let data = pair.hosts[1].ram.get(BASE + INBOX + GRH, 999);
    assert_eq!(data, pair.hosts[0].ram.get(BASE, 999));
}

#[test]
fn grh_area_of_ipv4_has_20_zero_bytes_and_a_valid_ipv4_header() {
    let mut pair = ud();
    pair.recv(7, 2000);
    pair.datagram(1, 100);
    pair.run();
    let grh = pair.hosts[1].ram.get(BASE + INBOX, 40);
    assert_eq!(grh[..20], [0; 20]);
    let header: [u8; 20] = grh[20..].try_into().unwrap();
    assert_eq!(header[0], 0x45);
    let mut bare = header;
    bare[10..12].fill(0);
    assert_eq!(ip::ipv4_checksum(&bare).to_be_bytes(), header[10..12]);
    assert_eq!(header[8], 64, "TTL");
    assert_eq!(header[9], 17, "UDP");
    assert_eq!(header[12..16], [192, 0, 2, 1]);
    assert_eq!(header[16..20], [192, 0, 2, 2]);
    let length = u16::from_be_bytes([header[2], header[3]]);
    assert_eq!(length, 20 + 8 + 20 + 100 + 4);
}

#[test]
fn grh_area_of_ipv6_is_the_ipv6_header() {
    let knobs = knobs(QpType::Ud);
    let mut pair = Pair::unconnected(&knobs);
    for (n, host) in (1..).zip(&mut pair.hosts) {
        host.address = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n));
    }
    pair.connect(&knobs);
    pair.recv(7, 2000);
    pair.datagram(1, 100);
    pair.run();
    assert_eq!(pair.done(1), [(7, OK)]);
    let grh = pair.hosts[1].ram.get(BASE + INBOX, 40);
    assert_eq!(grh[0] >> 4, 6);
    assert_eq!(u16::from_be_bytes([grh[4], grh[5]]), 8 + 20 + 100 + 4);
    assert_eq!((grh[6], grh[7]), (17, 64));
    let IpAddr::V6(source) = pair.hosts[0].address else {
        unreachable!()
    };
    assert_eq!(grh[8..24], source.octets());
}

#[test]
fn datagram_carries_immediate_data_and_solicited_bit() {
    let mut pair = ud();
    pair.recv(7, 2000);
    let mut wr = wr(1, SendOp::Send { imm: Some(9) }, &[]);
    wr.ud = Some(pair.target(pair.hosts[1].address, pair.hosts[1].qpn));
    wr.flags = SendFlags::SOLICITED;
    pair.post(0, wr);
    pair.run();
    assert!(pair.log[0].packet().solicited());
    let got = pair.hosts[1].completions()[0];
    assert_eq!((got.byte_len, got.imm), (40, 9));
    assert_eq!(got.flags, WcFlags::GRH | WcFlags::WITH_IMM);
}

#[test]
fn address_handle_sets_the_path_of_a_datagram() {
    let mut pair = ud();
    let mut target = pair.target(pair.hosts[1].address, pair.hosts[1].qpn);
    let mut av = av(pair.hosts[0].address, pair.hosts[1].address);
    (av.traffic_class, av.hop_limit) = (0x68, 3);
    target.ah = AddressHandle::new(pair.hosts[0].pd.clone(), av);
    pair.datagram_to(1, 10, target);
    pair.flush(0);
    let path = &pair.wire[0].path;
    assert_eq!((path.traffic_class, path.hop_limit), (0x68, 3));
    assert_eq!(path.flow.destination, pair.hosts[1].address);
}

#[test]
fn ud_accepts_only_sends_with_an_address_handle() {
    let mut pair = ud();
    let target = pair.target(pair.hosts[1].address, pair.hosts[1].qpn);
    let host = &mut pair.hosts[0];
    let without_address = wr(1, SendOp::Send { imm: None }, &[]);
    let mut other = wr(2, SendOp::SendInvalidate { rkey: 1 }, &[]);
    other.ud = Some(target);
    for wr in [without_address, other] {
        let refused = host.engine.post_send(pair.now, host.qpn, wr);
        assert!(matches!(refused, Err(VerbsError::Invalid(_))));
    }
}

#[test]
fn datagram_with_a_wrong_q_key_is_dropped() {
    let mut pair = ud();
    pair.recv(7, 2000);
    let mut target = pair.target(pair.hosts[1].address, pair.hosts[1].qpn);
    target.remote_qkey = 0x2222;
    pair.datagram_to(1, 10, target);
    let packet = pair.take(0).remove(0);
    assert_eq!(pair.deliver(&packet), Received::Dropped(Drop::BadQkey));
    assert_eq!(pair.hosts[1].count(Counter::BadQkey), 1);
    assert_eq!(pair.hosts[1].query().receives, 1);
}

#[test]
fn q_key_with_the_top_bit_selects_the_queue_pairs_own() {
    let mut pair = ud();
    pair.recv(7, 2000);
    let mut target = pair.target(pair.hosts[1].address, pair.hosts[1].qpn);
    target.remote_qkey = 0x8000_0000;
    pair.datagram_to(1, 10, target);
    pair.run();
    assert_eq!(pair.log[0].packet().deth().unwrap().qkey, 0x1111);
    assert_eq!(pair.done(1), [(7, OK)]);
}

#[test]
fn qp1_always_uses_the_well_known_q_key() {
    let mut pair = Pair::new(&knobs(QpType::Gsi));
    assert_eq!(pair.hosts[1].qpn, 1);
    pair.recv(7, 2000);
    let mut target = pair.target(pair.hosts[1].address, 1);
    target.remote_qkey = 5;
    pair.datagram_to(1, 256, target);
    pair.run();
    let deth = pair.log[0].packet().deth().unwrap();
    assert_eq!((deth.qkey, deth.source_qpn), (0x8001_0000, 1));
    assert_eq!(pair.done(1), [(7, OK)]);
    let stranger = pair.log[0].edited(|bytes| bytes[12] = 0);
    assert_eq!(pair.deliver(&stranger), Received::Dropped(Drop::BadQkey));
    let init = pair.hosts[0].qp_init(&knobs(QpType::Gsi));
    let second = pair.hosts[0].engine.create_qp(&init);
    assert!(
        matches!(second, Err(VerbsError::Busy(_))),
        "QP1 exists already"
    );
}

#[test]
fn datagram_longer_than_the_port_mtu_is_a_local_length_error() {
    let mut pair = ud();
    pair.recv(7, 2000);
    pair.datagram(1, 1024);
    pair.datagram(2, 1025);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK), (2, WcStatus::LocalLength)]);
    assert_eq!(pair.hosts[0].state(), QpState::Sqe);
    assert_eq!(
        pair.hosts[0].failure_reason(),
        "datagram of 1025 bytes exceeds the port MTU 1024"
    );
    assert_eq!(pair.done(1), [(7, OK)]);
}

#[test]
fn datagram_larger_than_the_receive_is_dropped_and_the_receive_kept() {
    let mut pair = ud();
    pair.recv(7, 139);
    pair.recv(8, 2000);
    pair.datagram(1, 100);
    pair.datagram(2, 99);
    pair.datagram(3, 100);
    let packets = pair.take(0);
    assert_eq!(
        pair.deliver(&packets[0]),
        Received::Dropped(Drop::NoReceive)
    );
    assert_eq!(pair.deliver(&packets[1]), Received::Accepted);
    assert_eq!(pair.deliver(&packets[2]), Received::Accepted);
    let got = pair.hosts[1].completions();
    let seen: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(seen, [(7, 139), (8, 140)]);
    assert_eq!(pair.hosts[1].state(), QpState::Rts);
}

#[test]
fn datagram_without_a_receive_is_dropped() {
    let mut pair = ud();
    pair.datagram(1, 100);
    pair.run();
    assert_eq!(pair.hosts[1].count(Counter::RxNoReceive), 1);
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn reordered_and_duplicated_datagrams_are_delivered() {
    let mut pair = ud();
    for wr_id in 0..4 {
        pair.recv(wr_id, 2000);
    }
    pair.datagram(1, 10);
    pair.datagram(2, 20);
    let packets = pair.take(0);
    for n in [1, 0, 1] {
        pair.deliver(&packets[n]);
    }
    let lengths: Vec<u32> = pair.hosts[1]
        .completions()
        .iter()
        .map(|wc| wc.byte_len)
        .collect();
    assert_eq!(lengths, [60, 50, 60]);
}

#[test]
fn datagrams_complete_when_their_batch_is_sent() {
    let mut pair = ud();
    pair.datagram(1, 10);
    pair.datagram(2, 10);
    let host = &mut pair.hosts[0];
    let mut batch = Batch::new(64, ferroce_roce::RunLimits::NONE);
    host.engine.poll_transmit(pair.now, &mut batch);
    assert_eq!((batch.len(), host.completions().len()), (2, 0));
    host.engine.finish_transmit(pair.now, &mut batch);
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
}

#[test]
fn datagram_from_unmapped_memory_fails_in_order() {
    let mut pair = ud();
    pair.recv(7, 2000);
    pair.datagram(1, 10);
    let hole = BASE + 0x3000;
    pair.hosts[0].ram.holes.borrow_mut().push(hole..hole + 1);
    let sges = [pair.hosts[0].sge(0x3000, 10)];
    let mut bad = wr(2, SendOp::Send { imm: None }, &sges);
    bad.ud = Some(pair.target(pair.hosts[1].address, pair.hosts[1].qpn));
    pair.post(0, bad);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK), (2, WcStatus::LocalProtection)]);
    assert_eq!(pair.hosts[0].state(), QpState::Sqe);
    assert_eq!(pair.done(1), [(7, OK)]);
}

#[test]
fn every_member_of_a_multicast_group_receives_a_copy() {
    let knobs = knobs(QpType::Ud);
    let mut pair = Pair::new(&knobs);
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let first = pair.hosts[1].qpn;
    // Two more queue pairs on host 1; the last one is not a member of the group.
    let init = pair.hosts[1].qp_init(&knobs);
    for n in 0..2 {
        pair.hosts[1].qpn = pair.hosts[1].engine.create_qp(&init).unwrap().0;
        pair.bring_to_rtr(1, &knobs);
        let sge = pair.hosts[1].sge(INBOX + 0x1000 * (n + 1), 2000);
        pair.post_recv(1, 8 + n, &[sge]);
    }
    pair.hosts[1].qpn = first;
    pair.recv(7, 2000);
    let engine = &mut pair.hosts[1].engine;
    assert!(
        engine.attach_multicast(first, group).unwrap(),
        "first member"
    );
    assert!(!engine.attach_multicast(first + 1, group).unwrap());
    let target = pair.target(group, 0xff_ffff);
    pair.datagram_to(1, 100, target);
    pair.run();
    assert_eq!(pair.done(1), [(7, OK), (8, OK)]);
    for offset in [0, 0x1000] {
        let copy = pair.hosts[1].ram.get(BASE + INBOX + offset + GRH, 100);
        assert_eq!(copy, pair.hosts[0].ram.get(BASE, 100));
    }
    let engine = &mut pair.hosts[1].engine;
    assert!(!engine.detach_multicast(first, group).unwrap());
    assert!(
        engine.detach_multicast(first + 1, group).unwrap(),
        "last member"
    );
    let target = pair.target(group, 0xff_ffff);
    pair.datagram_to(2, 100, target);
    let packet = pair.take(0).remove(0);
    assert_eq!(pair.deliver(&packet), Received::Dropped(Drop::UnknownQp));
}

#[test]
fn member_that_cannot_receive_does_not_block_other_members() {
    let knobs = knobs(QpType::Ud);
    let mut pair = Pair::new(&knobs);
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let first = pair.hosts[1].qpn;
    let init = pair.hosts[1].qp_init(&knobs);
    let second = pair.hosts[1].engine.create_qp(&init).unwrap().0; // in RESET
    for qpn in [second, first] {
        pair.hosts[1].engine.attach_multicast(qpn, group).unwrap();
    }
    pair.recv(7, 2000);
    let target = pair.target(group, 0xff_ffff);
    pair.datagram_to(1, 100, target);
    pair.run();
    assert_eq!(pair.done(1), [(7, OK)]);
}
