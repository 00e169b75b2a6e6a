//! Links follow their netdevs.

mod common;

use common::{Ferroced, add, await_event, counter, delete, gids, link, next_event, subscribe};
use ferroce_control::{Error, LinkEventKind, PhysicalState, PortState};
use ferroce_testnet::{isolated, netdev};

/// Creates a veth pair with both ends up, and addresses at one.
fn cable() {
    netdev::add_veth("near", "far");
    netdev::add_address("near", "10.0.0.1/24");
    netdev::add_address("near", "fd00::1/64");
    netdev::set_up("near");
    netdev::set_up("far");
    netdev::await_link_local("near");
}

fn without_link_local(mut gids: Vec<String>) -> Vec<String> {
    gids.retain(|gid| !gid.contains("fe80"));
    gids
}

#[test]
fn loopback_has_two_addresses() {
    isolated("loopback_has_two_addresses", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let link = link("rxe0");
        assert_eq!(gids(&link), ["0 ::1", "1 127.0.0.1"]);
        assert_eq!(link.active_mtu, 4096);
        assert_eq!(link.guid(), [2, 0, 0, 0xff, 0xfe, 0, 0, 0]);
        assert_eq!(link.state(), PortState::Active);
        assert_eq!(link.speed_mbps, Some(25_000), "not the kernel's 2.5 Gb/s");
    });
}

/// An address during duplicate address detection does not work yet, so the first IPv4
/// address is the substitute for it.
#[test]
fn address_is_listed_when_it_can_be_used() {
    let name = "address_is_listed_when_it_can_be_used";
    isolated(name, || {
        netdev::add_veth("near", "far");
        netdev::add_address("near", "10.0.0.1/24");
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut events = subscribe();
        netdev::set_up("near");
        netdev::set_up("far");
        let mut now = link("rxe0");
        while !now.gid(0).expect("index 0").address.is_ipv6() {
            assert_eq!(gids(&now), ["0 10.0.0.1", "1 10.0.0.1"]);
            now = await_event(&mut events, LinkEventKind::GidChange);
        }
        let found = now.gid(0).expect("index 0").address;
        let address = std::net::SocketAddrV6::new(
            match found {
                std::net::IpAddr::V6(v6) => v6,
                std::net::IpAddr::V4(v4) => panic!("{v4}"),
            },
            0,
            0,
            netdev::index("near"),
        );
        #[allow(clippy::disallowed_methods, reason = "an ordinary socket will do")]
        let bound = std::net::UdpSocket::bind(address);
        bound.expect("it can be sent from");
    });
}

/// Programs that start before and after the end of duplicate address detection must find the
/// same address at index 0, as ranks of an MPI job do that exchange indices.
#[test]
fn index_keeps_its_address_while_a_program_uses_the_link() {
    let name = "index_keeps_its_address_while_a_program_uses_the_link";
    isolated(name, || {
        netdev::add_veth("near", "far");
        netdev::add_address("near", "10.0.0.1/24");
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut events = subscribe();
        let program = ferroce_control::attach("rxe0", 1).expect("attached");
        netdev::set_up("near");
        netdev::set_up("far");
        let mut now = await_event(&mut events, LinkEventKind::GidChange);
        assert_eq!(gids(&now)[..2], ["0 10.0.0.1", "1 10.0.0.1"]);
        assert!(now.gid(2).expect("index 2").address.is_ipv6());
        drop(program);
        while !now.gid(0).expect("index 0").address.is_ipv6() {
            now = await_event(&mut events, LinkEventKind::GidChange);
        }
        assert_eq!(now.gid(0).unwrap().address, now.gid(2).unwrap().address);
    });
}

/// A DHCP server may answer after the first program has started. The IPv4 address then gets an
/// index of its own at once, and index 1 when no program uses the link.
#[test]
fn late_ipv4_address_gets_its_own_index_and_then_index_1() {
    isolated(
        "late_ipv4_address_gets_its_own_index_and_then_index_1",
        || {
            netdev::add_veth("near", "far");
            for name in ["near", "far"] {
                netdev::set_up(name);
            }
            netdev::await_link_local("near");
            let _ferroced = Ferroced::start();
            add("rxe0", "near").unwrap();
            let mut events = subscribe();
            let program = ferroce_control::attach("rxe0", 1).expect("attached");
            let before = link("rxe0");
            let link_local = before.gid(0).expect("index 0").address;
            assert_eq!(before.gid(1).expect("index 1").address, link_local);

            netdev::add_address("near", "10.0.0.1/24");
            let now = await_event(&mut events, LinkEventKind::GidChange);
            let (zero, one) = (format!("0 {link_local}"), format!("1 {link_local}"));
            let expected = [&zero, &one, "2 10.0.0.1"];
            assert_eq!(gids(&now), expected, "indices 0 and 1 are in use");

            drop(program);
            let now = await_event(&mut events, LinkEventKind::GidChange);
            assert_eq!(gids(&now), [&zero, "1 10.0.0.1", "2 10.0.0.1"]);
        },
    );
}

#[test]
fn addresses_keep_their_indices() {
    isolated("addresses_keep_their_indices", || {
        cable();
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut events = subscribe();
        let before = link("rxe0");
        let link_local = before.gid(0).expect("index 0").address;
        assert!(link_local.to_string().starts_with("fe80"), "{link_local}");
        let expected = ["1 10.0.0.1", "2 fd00::1"];
        assert_eq!(without_link_local(gids(&before)), expected);

        netdev::add_address("near", "10.0.0.2/24");
        let now = await_event(&mut events, LinkEventKind::GidChange);
        let expected = ["1 10.0.0.1", "2 fd00::1", "3 10.0.0.2"];
        assert_eq!(without_link_local(gids(&now)), expected);

        netdev::delete_address("near", "fd00::1/64");
        let now = await_event(&mut events, LinkEventKind::GidChange);
        let expected = ["1 10.0.0.1", "3 10.0.0.2"];
        assert_eq!(without_link_local(gids(&now)), expected);

        netdev::add_address("near", "fd00::2/64");
        let now = await_event(&mut events, LinkEventKind::GidChange);
        let expected = ["1 10.0.0.1", "2 fd00::2", "3 10.0.0.2"];
        assert_eq!(without_link_local(gids(&now)), expected);
        assert_eq!(now.gid(0).unwrap().address, link_local);
    });
}

#[test]
fn carrier_and_state_changes_become_events() {
    isolated("carrier_and_state_changes_become_events", || {
        cable();
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut events = subscribe();
        netdev::set_down("far");
        let now = await_event(&mut events, LinkEventKind::PortErr);
        assert_eq!(now.physical_state(), PhysicalState::Polling);
        netdev::set_up("far");
        let now = await_event(&mut events, LinkEventKind::PortActive);
        assert_eq!(now.physical_state(), PhysicalState::LinkUp);
        netdev::set_down("near");
        let now = await_event(&mut events, LinkEventKind::PortErr);
        assert_eq!(now.physical_state(), PhysicalState::Disabled);
        assert_eq!(counter("rxe0", "link_downed"), 2);
    });
}

#[test]
fn mtu_follows_the_netdev() {
    isolated("mtu_follows_the_netdev", || {
        cable();
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut events = subscribe();
        assert_eq!(link("rxe0").active_mtu, 1024);
        for (netdev, active) in [(4200, 4096), (9000, 4096), (2200, 2048), (1500, 1024)] {
            netdev::set_mtu("near", netdev);
            loop {
                let now = next_event(&mut events).link;
                if now.netdev_mtu == netdev {
                    assert_eq!(now.active_mtu, active, "netdev MTU {netdev}");
                    break;
                }
            }
        }
        assert!(link("rxe0").speed_mbps.is_some(), "a veth says 10 Gb/s");
    });
}

#[test]
fn addresses_of_netdevs_above_are_listed() {
    isolated("addresses_of_netdevs_above_are_listed", || {
        cable();
        assert!(
            netdev::add_macvlan("above", "near"),
            "kernel without macvlan"
        );
        netdev::add_address("above", "10.1.0.1/24");
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut events = subscribe();
        let gids_of = |link: &ferroce_control::LinkInfo| {
            let gids = link.gids.iter().filter(|g| g.netdev != "near");
            gids.map(|g| format!("{} {} {}", g.index, g.address, g.netdev))
                .collect::<Vec<_>>()
        };
        assert_eq!(gids_of(&link("rxe0")), ["3 10.1.0.1 above"]);
        netdev::delete("above");
        let now = await_event(&mut events, LinkEventKind::GidChange);
        assert_eq!(gids_of(&now), [""; 0]);

        assert!(netdev::add_bridge("bridge"), "kernel without bridges");
        netdev::add_address("bridge", "10.2.0.1/24");
        netdev::set_master("near", "bridge");
        let now = await_event(&mut events, LinkEventKind::GidChange);
        assert_eq!(gids_of(&now), ["3 10.2.0.1 bridge"]);
    });
}

#[test]
fn link_is_removed_with_its_netdev() {
    isolated("link_is_removed_with_its_netdev", || {
        cable();
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        add("rxe1", "lo").unwrap();
        let mut events = subscribe();
        netdev::delete("near");
        let gone = await_event(&mut events, LinkEventKind::Removed);
        assert_eq!(gone.name, "rxe0");
        let left = common::connect().links().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].name.as_str(), left[0].index), ("rxe1", 1));
    });
}

#[test]
fn subscribers_receive_events_of_links() {
    isolated("subscribers_receive_events_of_links", || {
        let _ferroced = Ferroced::start();
        let mut events = subscribe();
        add("rxe0", "lo").unwrap();
        assert_eq!(next_event(&mut events).kind, LinkEventKind::Added);
        delete("rxe0", false).unwrap();
        assert_eq!(next_event(&mut events).kind, LinkEventKind::Removed);
        let again = delete("rxe0", false).unwrap_err();
        assert!(matches!(again, Error::Refused { .. }), "{again}");
    });
}

/// Addresses that ferroced knew before a restart keep their indices.
#[test]
fn restart_keeps_indices() {
    isolated("restart_keeps_indices", || {
        cable();
        let mut ferroced = Ferroced::start();
        netdev::add_address("near", "10.0.0.2/24");
        add("rxe0", "near").unwrap();
        let mut events = subscribe();
        netdev::delete_address("near", "10.0.0.1/24");
        netdev::add_address("near", "10.0.0.3/24");
        loop {
            let now = await_event(&mut events, LinkEventKind::GidChange);
            if gids(&now).iter().any(|gid| gid.ends_with("10.0.0.3")) {
                break;
            }
        }
        let before = gids(&link("rxe0"));
        ferroced.kill();
        netdev::add_address("near", "10.0.0.4/24");
        let _ferroced = Ferroced::start();
        let after = gids(&link("rxe0"));
        for gid in &before {
            assert!(after.contains(gid), "{gid} moved: {after:?}");
        }
        assert_eq!(after.len(), before.len() + 1);
        assert_eq!(link("rxe0").index, 0);
    });
}
