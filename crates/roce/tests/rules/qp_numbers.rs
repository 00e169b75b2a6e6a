//! Creation and destruction of queue pairs, and the assignment of their numbers.

use std::net::{IpAddr, Ipv4Addr};

use ferroce_roce::{Drop, QpType, Received, VerbsError};

use crate::pair::{Knobs, Pair};

#[test]
fn a_queue_pair_in_a_multicast_group_cannot_be_destroyed() {
    let mut pair = Pair::with(|knobs| knobs.qp_type = QpType::Ud);
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let host = &mut pair.hosts[0];
    assert!(host.engine.attach_multicast(host.qpn, group).unwrap());
    assert!(matches!(
        host.engine.destroy_qp(host.qpn),
        Err(VerbsError::Busy(_))
    ));
    assert!(host.engine.detach_multicast(host.qpn, group).unwrap());
    host.engine.destroy_qp(host.qpn).unwrap();
    assert!(matches!(
        host.engine.destroy_qp(host.qpn),
        Err(VerbsError::NotFound(_))
    ));
}

#[test]
fn packets_and_timers_of_a_destroyed_queue_pair_are_dropped() {
    let mut pair = Pair::rc();
    pair.write(1, 5000);
    pair.read(2, 5000);
    let packets = pair.take(0);
    pair.hosts[1].engine.destroy_qp(pair.hosts[1].qpn).unwrap();
    pair.hosts[0].engine.destroy_qp(pair.hosts[0].qpn).unwrap();
    assert_eq!(
        pair.deliver(&packets[0]),
        Received::Dropped(Drop::UnknownQp)
    );
    pair.run_until_idle();
    assert!(pair.wire.is_empty());
    assert_eq!(pair.done(0), []);
}

#[test]
fn qpns_are_assigned_round_robin_within_their_range() {
    let knobs = {
        let mut knobs = Knobs::default();
        knobs.config.qpns = 20..24;
        knobs
    };
    let mut pair = Pair::unconnected(&knobs);
    let host = &mut pair.hosts[0];
    let init = host.qp_init(&knobs);
    assert_eq!(host.qpn, 20);
    let mut next = || host.engine.create_qp(&init).map(|(qpn, _)| qpn);
    assert_eq!(
        [next().unwrap(), next().unwrap(), next().unwrap()],
        [21, 22, 23]
    );
    assert!(matches!(next(), Err(VerbsError::NoMemory(_))));
    for qpn in [22, 20] {
        host.engine.destroy_qp(qpn).unwrap();
    }
    let mut next = || host.engine.create_qp(&init).map(|(qpn, _)| qpn);
    assert_eq!([next().unwrap(), next().unwrap()], [20, 22]);
    host.engine.destroy_qp(20).unwrap();
    host.engine.destroy_qp(23).unwrap();
    assert_eq!(
        host.engine.create_qp(&init).unwrap().0,
        23,
        "the number that is unused for longest"
    );
    assert_eq!(host.engine.qpns().collect::<Vec<_>>(), [21, 22, 23]);
}

#[test]
fn first_qpn_is_offset_by_skip_qpns() {
    let knobs = {
        let mut knobs = Knobs::default();
        knobs.config.qpns = 20..24;
        knobs.config.skip_qpns = 4 * 7 + 2;
        knobs
    };
    let mut pair = Pair::unconnected(&knobs);
    let host = &mut pair.hosts[0];
    let init = host.qp_init(&knobs);
    assert_eq!(host.qpn, 22);
    let mut next = || host.engine.create_qp(&init).map(|(qpn, _)| qpn);
    let others = [next().unwrap(), next().unwrap(), next().unwrap()];
    assert_eq!(others, [23, 20, 21]);
    assert!(matches!(next(), Err(VerbsError::NoMemory(_))));
    host.engine.destroy_qp(20).unwrap();
    assert_eq!(host.engine.create_qp(&init).unwrap().0, 20);
    for unknown in [19, 24] {
        assert!(matches!(
            host.engine.destroy_qp(unknown),
            Err(VerbsError::NotFound(_))
        ));
    }
    let all: Vec<u32> = host.engine.qpns().collect();
    assert_eq!(all, [22, 23, 20, 21]);
}
