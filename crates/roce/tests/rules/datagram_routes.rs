//! Routes of datagrams to queue pairs of the same host.

use ferroce_roce::{AddressHandle, AttrMask, QpAttr, QpState, QpType, UdTarget, WcStatus};

use crate::pair::{Knobs, Pair, av};

const OK: WcStatus = WcStatus::Success;

fn ud() -> Pair {
    Pair::new(&Knobs {
        qp_type: QpType::Ud,
        ..Knobs::default()
    })
}

/// Returns the target of a datagram to host 1, as if that were a process of the same host.
fn local(pair: &Pair, remote_qpn: u32) -> UdTarget {
    let (ours, theirs) = (&pair.hosts[0], &pair.hosts[1]);
    let av = av(ours.address, theirs.address);
    UdTarget {
        ah: AddressHandle::with_locality(ours.pd.clone(), av, true),
        remote_qpn,
        remote_qkey: 0x1111,
    }
}

/// Posts a datagram as a program does, and looks for its route if there is none.
fn post(pair: &mut Pair, wr_id: u64, target: &UdTarget) {
    let engine = &mut pair.hosts[0].engine;
    if engine.lacks_datagram_route(target) {
        engine.seek_datagram_route(target.remote_qpn);
    }
    pair.datagram_to(wr_id, 100, target.clone());
}

/// Returns the wires of the packets that host 0 sends: true for shared memory.
fn wires(pair: &mut Pair) -> Vec<bool> {
    let sent = pair.take(0);
    sent.iter().map(|packet| packet.path.in_memory).collect()
}

#[test]
fn datagrams_wait_for_their_route_and_keep_their_order() {
    for in_memory in [true, false] {
        let mut pair = ud();
        let there = local(&pair, pair.hosts[1].qpn);
        for id in 1..=3 {
            post(&mut pair, id, &there);
        }
        assert_eq!(wires(&mut pair), []);
        let host = &mut pair.hosts[0];
        assert!(host.engine.awaits_datagram_route(host.qpn));
        assert!(!host.engine.lacks_datagram_route(&there), "it is sought");
        let (now, qpn) = (pair.now, there.remote_qpn);
        host.engine.set_datagram_route(now, qpn, in_memory);
        post(&mut pair, 4, &there);
        assert_eq!(wires(&mut pair), [in_memory; 4]);
        let host = &pair.hosts[0];
        assert_eq!(host.engine.sends_in_memory(host.qpn), in_memory);
        assert_eq!(pair.done(0), [(1, OK), (2, OK), (3, OK), (4, OK)]);
    }
}

#[test]
fn datagrams_behind_one_without_route_wait_too() {
    let mut pair = ud();
    let there = local(&pair, pair.hosts[1].qpn);
    post(&mut pair, 1, &there);
    pair.datagram(2, 100);
    assert_eq!(wires(&mut pair), [], "a send queue is in order");
    let (now, qpn) = (pair.now, there.remote_qpn);
    let host = &mut pair.hosts[0];
    host.engine.set_datagram_route(now, qpn, true);
    assert_eq!(wires(&mut pair), [true, false]);
}

#[test]
fn same_qpn_on_another_host_is_reached_by_udp() {
    let mut pair = ud();
    let there = local(&pair, pair.hosts[1].qpn);
    let (now, qpn) = (pair.now, there.remote_qpn);
    pair.hosts[0].engine.set_datagram_route(now, qpn, true);
    pair.datagram(1, 100);
    post(&mut pair, 2, &there);
    assert_eq!(wires(&mut pair), [false, true]);
}

#[test]
fn routes_to_a_process_that_has_ended_are_sought_again() {
    let mut pair = ud();
    let (dead, alive) = (local(&pair, 0x05_0011), local(&pair, 0x06_0011));
    let remote = local(&pair, 0x07_0011);
    let (now, engine) = (pair.now, &mut pair.hosts[0].engine);
    for (target, in_memory) in [(&dead, true), (&alive, true), (&remote, false)] {
        engine.set_datagram_route(now, target.remote_qpn, in_memory);
    }
    engine.forget_datagram_routes(|qpn| qpn >> 16 == 6);
    assert!(engine.lacks_datagram_route(&dead));
    assert!(!engine.lacks_datagram_route(&alive));
    assert!(
        !engine.lacks_datagram_route(&remote),
        "UDP needs no channel"
    );
}

/// A program that posts and ends at once has its datagram sent, as without the wait.
#[test]
fn datagrams_without_route_leave_by_udp_at_the_end() {
    let mut pair = ud();
    let there = local(&pair, pair.hosts[1].qpn);
    let now = pair.now;
    assert!(!pair.hosts[0].engine.stop_seeking_routes(now));
    post(&mut pair, 1, &there);
    assert!(pair.hosts[0].engine.stop_seeking_routes(now));
    assert_eq!(wires(&mut pair), [false]);
}

#[test]
fn waiting_datagrams_are_flushed_in_the_error_state() {
    let mut pair = ud();
    let there = local(&pair, pair.hosts[1].qpn);
    post(&mut pair, 1, &there);
    let (now, host) = (pair.now, &mut pair.hosts[0]);
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    let modified = host.engine.modify_qp(now, host.qpn, &attr, AttrMask::STATE);
    modified.unwrap();
    host.engine.set_datagram_route(now, there.remote_qpn, true);
    assert_eq!(wires(&mut pair), []);
    assert_eq!(pair.done(0), [(1, WcStatus::WrFlush)]);
}

/// Nothing that a program does makes the table of routes grow without end.
#[test]
fn oldest_routes_are_sought_again_if_there_are_too_many() {
    let mut pair = ud();
    let first = local(&pair, 0x05_0000);
    let (now, engine) = (pair.now, &mut pair.hosts[0].engine);
    for qpn in 0..(1 << 14) {
        engine.set_datagram_route(now, 0x05_0000 + qpn, false);
    }
    assert!(!engine.lacks_datagram_route(&first));
    engine.seek_datagram_route(0x06_0000);
    assert!(engine.lacks_datagram_route(&first));
}
