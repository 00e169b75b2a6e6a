//! Refusals with their messages, and the events of changes.

use ferroce_control::PhysicalState;

use super::*;
use crate::gids::Entry;
use crate::netdevs::{Assigned, Change};

fn netdev(ifindex: u32, name: &str, mtu: u32) -> Netdev {
    Netdev {
        ifindex,
        name: name.into(),
        up: true,
        carrier: true,
        running: true,
        mtu,
        mac: [0x52, 0x54, 0, 0xd5, 0xe0, 0xfb],
        ..Netdev::default()
    }
}

fn assigned(ifindex: u32, text: &str) -> Assigned {
    let address = text.parse().unwrap();
    Assigned {
        entry: Entry { address, ifindex },
        prefix_length: 64,
        peer: address,
    }
}

fn address(ifindex: u32, text: &str) -> Change {
    Change::Address {
        address: assigned(ifindex, text),
        tentative: false,
    }
}

/// Returns eth0 (MTU 1500) with an address, and eth1 (MTU 9000) without.
fn netdevs() -> Netdevs {
    let mut all = Netdevs::default();
    all.apply(Change::Netdev(netdev(2, "eth0", 1500)));
    all.apply(Change::Netdev(netdev(3, "eth1", 9000)));
    all.apply(address(2, "10.0.0.1"));
    all
}

fn config(name: &str, netdev: &str) -> LinkConfig {
    LinkConfig {
        name: name.into(),
        kind: "rxe".into(),
        netdev: netdev.into(),
        mtu: None,
        crc: true,
        lids: false,
        patience: 0,
        speed: None,
        local: true,
        strict: String::new(),
        profile: String::new(),
    }
}

/// Returns no links yet. The kernel gives their netdevs link-local addresses.
fn links_at(speed: fn(&str) -> Option<u32>) -> Links {
    Links::new(Queries {
        speed,
        allow_link_local: |_| true,
    })
}

fn refused(config: LinkConfig) -> (i32, String) {
    let mut links = links_at(|_| None);
    links
        .add(self::config("there", "eth0"), &netdevs())
        .unwrap();
    let refusal = links.add(config, &netdevs()).unwrap_err();
    (refusal.errno, refusal.message)
}

#[test]
fn refusals_name_the_value_and_the_remedy() {
    let (errno, words) = refused(config("x", "eth7"));
    assert_eq!(errno, libc::ENODEV);
    assert_eq!(
        words,
        "No such device: netdev eth7 does not exist; existing netdevs: eth0, eth1"
    );

    let (errno, words) = refused(config("x", "eth0"));
    assert_eq!(errno, libc::EEXIST);
    assert_eq!(
        words,
        "File exists: netdev eth0 already has link there (`ferroce link delete there` removes it)"
    );

    let (errno, words) = refused(config("there", "eth1"));
    assert_eq!(errno, libc::EEXIST);
    assert_eq!(
        words,
        "File exists: link there exists already, on netdev eth0; choose another name"
    );

    let (errno, words) = refused(config("x", "eth1"));
    assert_eq!(errno, libc::EADDRNOTAVAIL);
    assert!(
        words.contains("`ip address add ADDRESS/PREFIX dev eth1`"),
        "{words}"
    );

    let (errno, words) = refused(config("a/b", "eth1"));
    assert_eq!(errno, libc::EINVAL);
    assert!(words.contains("`a/b`"), "{words}");

    let other = LinkConfig {
        kind: "irdma".into(),
        ..config("x", "eth1")
    };
    let (errno, words) = refused(other);
    assert_eq!(errno, libc::EINVAL);
    assert!(
        words.contains("use type rxe (RoCE) or siw (iWARP)"),
        "{words}"
    );
}

#[test]
fn netdev_takes_one_link_of_each_type() {
    let mut links = links_at(|_| None);
    let siw = |name| LinkConfig {
        kind: "siw".into(),
        crc: false,
        local: false,
        ..config(name, "eth0")
    };
    links.add(config("rxe0", "eth0"), &netdevs()).unwrap();
    links.add(siw("siw0"), &netdevs()).unwrap();
    let refused = links.add(siw("siw1"), &netdevs()).unwrap_err();
    assert_eq!(refused.errno, libc::EEXIST);
    let kinds: Vec<&str> = links.iter().map(|link| link.info.kind.as_str()).collect();
    assert_eq!(kinds, ["rxe", "siw"]);
    // Packets of RoCE belong to the RoCE link.
    let address = links.iter().next().unwrap().info.gids[0].address;
    let found = links.by_address(address, 0).unwrap();
    assert_eq!(found.info.name, "rxe0");
}

#[test]
fn siw_refuses_options_of_packets() {
    let mut links = links_at(|_| None);
    let siw = LinkConfig {
        kind: "siw".into(),
        local: false,
        ..config("siw0", "eth0")
    };
    for (config, option) in [
        (
            LinkConfig {
                mtu: Some(1024),
                ..siw.clone()
            },
            "mtu",
        ),
        (
            LinkConfig {
                lids: true,
                ..siw.clone()
            },
            "lids",
        ),
        (
            LinkConfig {
                patience: 5,
                ..siw.clone()
            },
            "patience",
        ),
    ] {
        let refused = links.add(config, &netdevs()).unwrap_err();
        assert_eq!(refused.errno, libc::EINVAL);
        assert!(refused.message.contains(option), "{}", refused.message);
    }
    links.add(siw, &netdevs()).unwrap();
}

#[test]
fn mtus_that_do_not_fit_are_refused() {
    let mut links = links_at(|_| None);
    let with = |mtu| LinkConfig {
        mtu: Some(mtu),
        ..config("x", "eth0")
    };
    let odd = links.add(with(1500), &netdevs()).unwrap_err().message;
    assert_eq!(
        odd,
        "Invalid argument: mtu 1500 is not one of 256, 512, 1024, 2048, 4096"
    );
    let large = links.add(with(4096), &netdevs()).unwrap_err().message;
    assert!(large.contains("`ip link set eth0 mtu 4176`"), "{large}");
    let event = links.add(with(512), &netdevs()).unwrap();
    assert_eq!(event.link.active_mtu, 512);
}

#[test]
fn speed_is_the_chosen_one_or_that_of_the_netdev() {
    let speed_of = |speed, netdevs_speed: fn(&str) -> Option<u32>| {
        let mut links = links_at(netdevs_speed);
        let config = LinkConfig {
            speed,
            ..config("x", "eth0")
        };
        links
            .add(config, &netdevs())
            .map(|event| event.link.speed_mbps)
    };
    assert_eq!(speed_of(None, |_| Some(1000)).unwrap(), Some(1000));
    assert_eq!(speed_of(None, |_| None).unwrap(), Some(UNKNOWN_SPEED));
    assert_eq!(
        speed_of(Some(100_000), |_| Some(1000)).unwrap(),
        Some(100_000)
    );
    let refusal = speed_of(Some(400_001), |_| None).unwrap_err();
    let words = "speed 400001 Mb/s is not between 1 and 400000";
    assert!(refusal.message.ends_with(words), "{}", refusal.message);
}

#[test]
fn unknown_link_is_refused_with_the_known_names() {
    let mut links = links_at(|_| None);
    let words = links.find("rxe0").unwrap_err().message;
    assert!(words.contains("`ferroce link add"), "{words}");
    links.add(config("rxe1", "eth0"), &netdevs()).unwrap();
    let words = links.find("rxe0").unwrap_err().message;
    assert_eq!(
        words,
        "No such device: link rxe0 does not exist; existing links: rxe1"
    );
}

#[test]
fn changes_of_netdevs_become_events() {
    let mut all = netdevs();
    let mut links = links_at(|_| Some(10_000));
    let info = links.add(config("rxe0", "eth0"), &all).unwrap().link;
    assert_eq!(info.active_mtu, 1024);
    assert_eq!(
        info.guid(),
        [0x50, 0x54, 0x00, 0xff, 0xfe, 0xd5, 0xe0, 0xfb]
    );
    assert_eq!(info.speed_mbps, Some(10_000));
    assert!(links.refresh(&all).is_empty());

    let mut kinds = |all: &Netdevs| -> Vec<LinkEventKind> {
        links.refresh(all).into_iter().map(|e| e.kind).collect()
    };
    let mut eth0 = netdev(2, "eth0", 1500);
    eth0.carrier = false;
    all.apply(Change::Netdev(eth0.clone()));
    assert_eq!(kinds(&all), [LinkEventKind::PortErr]);
    eth0.carrier = true;
    all.apply(Change::Netdev(eth0.clone()));
    assert_eq!(kinds(&all), [LinkEventKind::PortActive]);
    all.apply(address(2, "fe80::1"));
    assert_eq!(kinds(&all), [LinkEventKind::GidChange]);
    eth0.mtu = 9000;
    all.apply(Change::Netdev(eth0));
    assert_eq!(kinds(&all), [LinkEventKind::Changed]);
    all.apply(address(3, "10.7.7.7"));
    assert_eq!(kinds(&all), [], "not its netdev");
    all.apply(Change::NetdevGone { ifindex: 2 });
    assert_eq!(kinds(&all), [LinkEventKind::Removed]);
    assert!(links.is_empty());
}

#[test]
fn port_that_goes_down_is_counted() {
    let mut all = netdevs();
    let mut links = links_at(|_| None);
    links.add(config("rxe0", "eth0"), &all).unwrap();
    let mut eth0 = netdev(2, "eth0", 1500);
    eth0.up = false;
    all.apply(Change::Netdev(eth0));
    let event = links.refresh(&all).remove(0);
    assert_eq!(event.link.physical_state(), PhysicalState::Disabled);
    let link = links.by_index(0).unwrap();
    assert_eq!(link.totals.0[Counter::LinkDowned as usize], 1);
}

/// The kernel may report that a netdev runs before it has added the link-local address.
#[test]
fn index_0_waits_for_the_link_local_address() {
    let mut all = netdevs();
    let running = Netdev {
        autoconf: true,
        ..netdev(2, "eth0", 1500)
    };
    let down = Netdev {
        running: false,
        ..running.clone()
    };
    all.apply(Change::Netdev(down));
    let mut links = links_at(|_| None);
    links.add(config("rxe0", "eth0"), &all).unwrap();
    let gids = |links: &Links| -> Vec<(u32, String)> {
        let gids = links.by_index(0).unwrap().info.gids.iter();
        gids.map(|gid| (gid.index, gid.address.to_string()))
            .collect()
    };
    assert_eq!(links.awaiting_link_local(), [], "the netdev is down");
    all.apply(Change::Netdev(running));
    links.refresh(&all);
    assert_eq!(gids(&links), [(1, "10.0.0.1".into())]);
    assert_eq!(links.awaiting_link_local(), [(2, 1)]);
    all.apply(address(2, "fe80::1"));
    links.refresh(&all);
    let both = [(0, "fe80::1".into()), (1, "10.0.0.1".into())];
    assert_eq!(gids(&links), both);
    assert_eq!(links.awaiting_link_local(), []);

    all.apply(Change::AddressGone(assigned(2, "fe80::1")));
    links.refresh(&all);
    assert_eq!(links.awaiting_link_local(), [(2, 1)]);
    all.give_up_link_local();
    links.refresh(&all);
    let substitute = [(0, "10.0.0.1".into()), (1, "10.0.0.1".into())];
    assert_eq!(gids(&links), substitute);
    assert_eq!(links.awaiting_link_local(), []);
}

#[test]
fn netdev_without_ipv6_gets_a_substitute_at_once() {
    let mut all = netdevs();
    all.apply(Change::Netdev(Netdev {
        autoconf: true,
        ..netdev(2, "eth0", 1500)
    }));
    let mut links = Links::new(Queries {
        speed: |_| None,
        allow_link_local: |_| false,
    });
    let link = links.add(config("rxe0", "eth0"), &all).unwrap().link;
    let indices: Vec<u32> = link.gids.iter().map(|gid| gid.index).collect();
    assert_eq!(indices, [0, 1]);
}
