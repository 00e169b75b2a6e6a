//! The rules of the port table, one test per rule.

use std::net::IpAddr;

use ferroce_cm::PortSpace::{Tcp, Udp};
use ferroce_cm::ports::{Bind, BindError, BindId, Host, PortTable};

fn host(ip: &str) -> Host {
    Host::new(ip.parse::<IpAddr>().unwrap())
}

fn tcp(ip: &str, port: u16) -> Bind {
    Bind::new(Tcp, host(ip), port)
}

fn table() -> PortTable {
    PortTable::new(32_768..=60_999)
}

fn id(result: Result<(BindId, u16), BindError>) -> Result<BindId, BindError> {
    result.map(|(id, _)| id)
}

#[test]
fn an_address_and_port_has_one_owner() {
    let mut table = table();
    let first = id(table.bind(&tcp("192.0.2.1", 7174), 0)).unwrap();
    let second = table.bind(&tcp("192.0.2.1", 7174), 0);
    assert_eq!(second, Err(BindError::InUse));
    assert!(table.bind(&tcp("192.0.2.2", 7174), 0).is_ok());
    table.release(first).unwrap();
    assert!(table.bind(&tcp("192.0.2.1", 7174), 0).is_ok());
}

#[test]
fn each_port_space_has_its_own_ports() {
    let mut table = table();
    table.bind(&tcp("192.0.2.1", 7174), 0).unwrap();
    let udp = Bind::new(Udp, host("192.0.2.1"), 7174);
    assert!(table.bind(&udp, 0).is_ok());
}

#[test]
fn a_wildcard_conflicts_with_every_other_bind_of_its_port() {
    for (first, second) in [
        ("0.0.0.0", "192.0.2.1"),
        ("192.0.2.1", "0.0.0.0"),
        ("0.0.0.0", "0.0.0.0"),
        ("::", "192.0.2.1"),
        ("0.0.0.0", "::"),
    ] {
        let mut table = table();
        table.bind(&tcp(first, 7174), 0).unwrap();
        let result = table.bind(&tcp(second, 7174), 0);
        assert_eq!(result, Err(BindError::NotAvailable), "{first} {second}");
    }
}

#[test]
fn wildcards_of_both_ip_versions_share_a_port_if_both_set_afonly() {
    let afonly = |ip| Bind {
        af_only: true,
        ..tcp(ip, 7174)
    };
    let mut both = table();
    both.bind(&afonly("0.0.0.0"), 0).unwrap();
    assert!(both.bind(&afonly("::"), 0).is_ok());
    let mut one = table();
    one.bind(&tcp("0.0.0.0", 7174), 0).unwrap();
    let result = one.bind(&afonly("::"), 0);
    assert_eq!(result, Err(BindError::NotAvailable));
}

#[test]
fn binds_that_all_set_reuse_share_a_port() {
    let reuse = Bind {
        reuse: true,
        ..tcp("192.0.2.1", 7174)
    };
    let mut table = table();
    table.bind(&reuse, 0).unwrap();
    assert!(table.bind(&reuse, 0).is_ok());
    let plain = table.bind(&tcp("192.0.2.1", 7174), 0);
    assert_eq!(plain, Err(BindError::InUse));
}

#[test]
fn a_listener_does_not_share_its_port() {
    let reuse = Bind {
        reuse: true,
        ..tcp("192.0.2.1", 7174)
    };
    let mut table = table();
    let listener = id(table.bind(&reuse, 0)).unwrap();
    table.listen(listener).unwrap();
    assert_eq!(table.bind(&reuse, 0), Err(BindError::InUse));
}

#[test]
fn listening_on_a_shared_port_fails() {
    let reuse = Bind {
        reuse: true,
        ..tcp("192.0.2.1", 7174)
    };
    let mut table = table();
    let first = id(table.bind(&reuse, 0)).unwrap();
    let second = id(table.bind(&reuse, 0)).unwrap();
    assert_eq!(table.listen(first), Err(BindError::InUse));
    table.release(second).unwrap();
    assert_eq!(table.listen(first), Ok(()));
}

#[test]
fn listeners_at_different_addresses_share_a_port() {
    let mut table = table();
    let first = id(table.bind(&tcp("192.0.2.1", 7174), 0)).unwrap();
    let second = id(table.bind(&tcp("3fff::1", 7174), 0)).unwrap();
    assert_eq!(table.listen(first), Ok(()));
    assert_eq!(table.listen(second), Ok(()));
}

#[test]
fn ports_below_1024_need_a_privilege() {
    let mut table = table();
    let low = tcp("192.0.2.1", 1023);
    assert_eq!(table.bind(&low, 0), Err(BindError::Denied));
    assert!(table.bind(&tcp("192.0.2.1", 1024), 0).is_ok());
    let privileged = Bind {
        privileged: true,
        ..low
    };
    assert!(table.bind(&privileged, 0).is_ok());
}

#[test]
fn the_search_for_an_ephemeral_port_starts_at_a_random_port() {
    let mut table = table();
    let any = tcp("192.0.2.1", 0);
    assert_eq!(table.bind(&any, 100).unwrap().1, 32_868);
    assert_eq!(table.bind(&any, 28_232).unwrap().1, 32_768, "wraps around");
    for random in [0, 28_231, 0xffff_ffff] {
        let port = table.bind(&any, random).unwrap().1;
        assert!((32_768..=60_999).contains(&port));
    }
}

#[test]
fn the_search_for_an_ephemeral_port_skips_ports_in_use() {
    let mut table = PortTable::new(40_000..=40_002);
    let any = tcp("192.0.2.1", 0);
    let ports: Vec<u16> = (0..3).map(|_| table.bind(&any, 0).unwrap().1).collect();
    assert_eq!(ports, [40_000, 40_001, 40_002]);
    assert_eq!(table.bind(&any, 0), Err(BindError::NotAvailable));
}

#[test]
fn the_last_ephemeral_port_is_not_reused_at_once() {
    let mut table = table();
    let any = tcp("192.0.2.1", 0);
    let (first, port) = table.bind(&any, 5).unwrap();
    table.release(first).unwrap();
    assert_ne!(table.bind(&any, 5).unwrap().1, port);
}

#[test]
fn connections_to_different_destinations_share_an_ephemeral_port() {
    let mut table = PortTable::new(40_000..=40_001);
    let to = |ip, port| Bind {
        destination: Some((host(ip), port)),
        ..tcp("192.0.2.1", 0)
    };
    let destinations = [
        to("198.51.100.1", 1),
        to("198.51.100.1", 2),
        to("198.51.100.2", 1),
        to("198.51.100.2", 2),
    ];
    for destination in destinations {
        assert!(table.bind(&destination, 0).is_ok());
    }
    // The range has two ports, so each destination can be bound once more.
    for destination in destinations {
        let _ = table.bind(&destination, 0);
        let _ = table.bind(&destination, 1);
        assert_eq!(table.bind(&destination, 0), Err(BindError::NotAvailable));
    }
}

#[test]
fn an_ephemeral_port_is_shared_only_if_both_destinations_are_known() {
    let mut table = PortTable::new(40_000..=40_001);
    let (first, port) = table.bind(&tcp("192.0.2.1", 0), 0).unwrap();
    assert_eq!(port, 40_000);
    let second = Bind {
        destination: Some((host("198.51.100.2"), 2)),
        ..tcp("192.0.2.1", 0)
    };
    assert_eq!(table.bind(&second, 0).unwrap().1, 40_001);
    let destination = (host("198.51.100.1"), 1);
    table
        .set_route(first, host("192.0.2.1"), destination)
        .unwrap();
    assert_eq!(table.bind(&second, 0).unwrap().1, 40_000);
}

#[test]
fn link_local_addresses_with_different_scopes_differ() {
    let at = |scope| Bind {
        source: Host {
            scope,
            ..host("fe80::1")
        },
        ..tcp("::", 7174)
    };
    let mut table = table();
    table.bind(&at(1), 0).unwrap();
    assert!(table.bind(&at(2), 0).is_ok());
    assert_eq!(table.bind(&at(1), 0), Err(BindError::InUse));
}

#[test]
fn releasing_all_ports_empties_the_table() {
    let mut table = table();
    let ids: Vec<BindId> = (0..10)
        .map(|n| table.bind(&tcp("192.0.2.1", 0), n).unwrap().0)
        .collect();
    for id in &ids {
        table.release(*id).unwrap();
    }
    assert!(table.is_empty());
    assert_eq!(table.release(ids[0]), Err(BindError::Unknown));
    assert_eq!(table.listen(ids[0]), Err(BindError::Unknown));
}
