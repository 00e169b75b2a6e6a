//! Links follow their netdevs.

mod common;

use std::net::SocketAddrV6;

use common::{Ferroced, add, await_event, counter, delete, gids, link, next_event, subscribe};
use ferroce_control::{Error, LinkEventKind, LinkInfo, PhysicalState, PortState};
use ferroce_testnet::{deadline, isolated, netdev};

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

/// Returns a veth pair whose end `near` has an IPv4 address. Duplicate address detection of its
/// link-local address takes 2 to 3 s.
fn slow_cable() {
    netdev::add_veth("near", "far");
    netdev::add_address("near", "10.0.0.1/24");
    netdev::set_detection_time("near", 2);
}

fn set_both_up() {
    for name in ["near", "far"] {
        netdev::set_up(name);
    }
}

/// Waits until `is_so` returns true for link rxe0, and returns its state.
fn await_state(is_so: impl Fn(&LinkInfo) -> bool) -> LinkInfo {
    let mut now = link("rxe0");
    deadline::until("a change of the link", || {
        now = link("rxe0");
        is_so(&now)
    });
    now
}

fn is_tentative(link: &LinkInfo) -> bool {
    link.gid(0).is_some_and(|gid| gid.tentative)
}

/// Programs that start before and after the end of duplicate address detection must find the
/// same address at index 0, as ranks of an MPI job do that exchange indices.
#[test]
fn index_0_is_the_same_during_and_after_duplicate_address_detection() {
    let name = "index_0_is_the_same_during_and_after_duplicate_address_detection";
    isolated(name, || {
        slow_cable();
        let _ferroced = Ferroced::start();
        set_both_up();
        let address = netdev::await_tentative_link_local("near");
        add("rxe0", "near").unwrap();
        let during = link("rxe0");
        let expected = [format!("0 {address}"), "1 10.0.0.1".into()];
        assert_eq!(gids(&during), expected);
        assert!(is_tentative(&during));
        let after = await_state(|link| !is_tentative(link));
        assert_eq!(gids(&after), expected);
        let address = SocketAddrV6::new(address, 0, 0, netdev::index("near"));
        #[allow(clippy::disallowed_methods, reason = "an ordinary socket will do")]
        let bound = std::net::UdpSocket::bind(address);
        bound.expect("it can be sent from");
    });
}

/// The kernel reports the address to ferroced only when detection ends.
#[test]
fn netdev_that_starts_gets_its_link_local_address_at_index_0() {
    let name = "netdev_that_starts_gets_its_link_local_address_at_index_0";
    isolated(name, || {
        slow_cable();
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let before = gids(&link("rxe0"));
        assert_eq!(before, ["1 10.0.0.1"], "no substitute while it is down");
        set_both_up();
        let now = await_state(|link| link.gid(0).is_some());
        assert!(is_tentative(&now));
        let expected = [
            format!("0 {}", netdev::await_tentative_link_local("near")),
            "1 10.0.0.1".into(),
        ];
        assert_eq!(gids(&now), expected);

        netdev::set_down("near");
        await_state(|link| gids(link) == before);
        netdev::set_up("near");
        let now = await_state(|link| link.gid(0).is_some());
        assert_eq!(gids(&now), expected, "as before");
    });
}

#[test]
fn address_of_another_host_leaves_the_table() {
    isolated("address_of_another_host_leaves_the_table", || {
        netdev::add_veth("near", "far");
        netdev::set_mac("near", [2, 0, 0, 0, 0, 1]);
        netdev::add_address("near", "10.0.0.1/24");
        // The last probe leaves at least 2 s after the start: this test adds the address at `far` before.
        netdev::set_detection_time("near", 3);
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        set_both_up();
        let now = await_state(|link| link.gid(0).is_some());
        assert_eq!(gids(&now), ["0 fe80::ff:fe00:1", "1 10.0.0.1"]);
        netdev::add_address("far", "fe80::ff:fe00:1/64");
        let now = await_state(|link| link.gid(0).is_some_and(|gid| !gid.tentative));
        assert_eq!(gids(&now), ["0 10.0.0.1", "1 10.0.0.1"]);
    });
}

/// `ip address flush` deletes the link-local address, too. The kernel adds it again only when the netdev
/// is set down and up.
#[test]
fn deleted_link_local_address_is_not_awaited_for_long() {
    let name = "deleted_link_local_address_is_not_awaited_for_long";
    isolated(name, || {
        cable();
        let link_local = netdev::await_tentative_link_local("near");
        netdev::delete_address("near", &format!("{link_local}/64"));
        let mut ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let expected = ["0 10.0.0.1", "1 10.0.0.1", "2 fd00::1"];
        assert_eq!(gids(&link("rxe0")), expected, "as soon as it is added");
        ferroced.kill();
        let _ferroced = Ferroced::start();
        assert_eq!(gids(&link("rxe0")), expected, "after a restart, too");
    });
}

#[test]
fn loopback_that_starts_again_keeps_its_indices() {
    isolated("loopback_that_starts_again_keeps_its_indices", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        for _ in 0..5 {
            netdev::set_down("lo");
            netdev::set_up("lo");
            let now = await_state(|link| link.gids.len() == 2);
            assert_eq!(gids(&now), ["0 ::1", "1 127.0.0.1"]);
        }
    });
}

/// An administrator corrects a netmask: the address exists all the time.
#[test]
fn address_with_another_prefix_length_keeps_its_index() {
    let name = "address_with_another_prefix_length_keeps_its_index";
    isolated(name, || {
        cable();
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let before = gids(&link("rxe0"));
        assert_eq!(before[1], "1 10.0.0.1");
        netdev::add_address("near", "10.0.0.1/16");
        assert_eq!(gids(&link("rxe0")), before);
        netdev::delete_address("near", "10.0.0.1/24");
        assert_eq!(gids(&link("rxe0")), before);
        netdev::delete_address("near", "10.0.0.1/16");
        assert!(link("rxe0").gid(1).is_none(), "no other IPv4 address");
    });
}

#[test]
fn substitute_stays_at_index_0_if_no_program_uses_the_link() {
    let name = "substitute_stays_at_index_0_if_no_program_uses_the_link";
    isolated(name, || {
        netdev::add_veth("near", "far");
        netdev::disable_link_local("near");
        netdev::add_address("near", "10.0.0.1/24");
        set_both_up();
        let mut ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        assert_eq!(gids(&link("rxe0")), ["0 10.0.0.1", "1 10.0.0.1"]);
        let mut events = subscribe();
        netdev::add_address("near", "fe80::7/64");
        let now = await_event(&mut events, LinkEventKind::GidChange);
        let expected = ["0 10.0.0.1", "1 10.0.0.1", "2 fe80::7"];
        assert_eq!(gids(&now), expected);
        ferroced.kill();
        let _ferroced = Ferroced::start();
        assert_eq!(gids(&link("rxe0")), expected, "after a restart, too");
    });
}

/// A DHCP server may answer after the link was added, and after the first program has started.
#[test]
fn late_ipv4_address_gets_index_1() {
    isolated("late_ipv4_address_gets_index_1", || {
        netdev::add_veth("near", "far");
        set_both_up();
        let link_local = netdev::await_tentative_link_local("near");
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut events = subscribe();
        let _program = ferroce_control::attach("rxe0", 1).expect("attached");
        let zero = format!("0 {link_local}");
        assert_eq!(gids(&link("rxe0")), [zero.as_str()]);
        netdev::add_address("near", "10.0.0.1/24");
        let now = await_event(&mut events, LinkEventKind::GidChange);
        assert_eq!(gids(&now), [zero.as_str(), "1 10.0.0.1"]);
    });
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
