//! Two machines: network namespaces of their own, with a cable between them.

use std::fs::File;

use ferroce_control::find_daemon;
use ferroce_device::transport::QpType;
use ferroce_testnet::{isolated, netdev, netfilter};

use crate::support::ferroced::add_link;
use crate::support::puppet::{Stranger, await_link_local_gid};
use crate::support::{Endpoint, Ferroced, LINK, Puppet, V4, pattern};

const MESSAGE: u32 = 1 << 20;

/// A cable to another machine, with a link at either end.
fn lay_cable(mtu: u32) -> (Ferroced, Stranger) {
    let mut other = Puppet::unopened();
    let place = other.0.ask("leave");
    netdev::add_veth("near", "far");
    netdev::move_to("far", File::open(place).expect("its namespace"));
    netdev::set_mtu("near", mtu);
    netdev::add_address("near", "10.0.0.1/24");
    netdev::add_address("near", "fd00::1/64");
    netdev::set_up("near");
    let settle = format!("settle far {mtu} 10.0.0.2/24 fd00::2/64");
    assert_eq!(other.0.ask(&settle), "settled");
    let ferroced = Ferroced::start();
    add_link(LINK, "near");
    (ferroced, other)
}

/// The index of an address in our GID table, which is that of the other's as well.
fn index_of(address: &str) -> u8 {
    let links = ferroce_device::list_links().expect("listed");
    let address: std::net::IpAddr = address.parse().expect("an address");
    let gid = links[0].gids.iter().find(|gid| gid.address == address);
    gid.expect("populated").index as u8
}

/// Moves data both ways, for some rounds and then until it is enough.
fn transfer(other: Stranger, gid_index: u8, rounds: u32, mut enough: impl FnMut() -> bool) {
    let mut ours = Endpoint::open(QpType::Rc, gid_index);
    let mut theirs = other.open(QpType::Rc, gid_index);
    theirs.connect(&ours.introduction());
    ours.connect(&theirs.introduction);
    for seed in 0.. {
        if seed >= rounds && enough() {
            break;
        }
        assert!(seed < 100, "it is never enough");
        ours.put(0, &pattern(seed, MESSAGE));
        ours.write(1, 0, MESSAGE);
        ours.succeed(1);
        theirs.expect(&format!("check {seed} 0 {MESSAGE}"), "right");
        theirs.expect(&format!("put {} {MESSAGE} {MESSAGE}", seed + 100), "done");
        ours.read(1, u64::from(MESSAGE), MESSAGE);
        ours.succeed(1);
        assert!(ours.get(u64::from(MESSAGE), MESSAGE) == pattern(seed + 100, MESSAGE));
    }
}

fn over_cable(mtu: u32, active: u32) {
    let (_ferroced, other) = lay_cable(mtu);
    let links = ferroce_device::list_links().expect("listed");
    assert_eq!(links[0].active_mtu, active);
    transfer(other, V4, 3, || true);
}

#[test]
fn mtu_1500() {
    isolated("cables::mtu_1500", || over_cable(1500, 1024));
}

#[test]
fn mtu_4200() {
    isolated("cables::mtu_4200", || over_cable(4200, 4096));
}

#[test]
fn mtu_9000() {
    isolated("cables::mtu_9000", || over_cable(9000, 4096));
}

#[test]
fn ipv6_over_a_cable() {
    isolated("cables::ipv6_over_a_cable", || {
        let (_ferroced, other) = lay_cable(1500);
        let index = index_of("fd00::1");
        transfer(other, index, 3, || true);
    });
}

/// How often something had to be sent again, as this end counts.
fn retries() -> u64 {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let counters = connection.counters(Some(LINK), false).expect("counted");
    let mut values = counters[0].values.iter();
    let retries = values.find(|(name, _)| name == "completer_retry_err");
    retries.expect("counted").1
}

/// Some of what arrives here is lost: answers, and data of READs.
#[test]
fn losses() {
    isolated("cables::losses", || {
        let (_ferroced, other) = lay_cable(4200);
        netfilter::lose(5);
        transfer(other, V4, 2, || retries() > 0);
    });
}

/// Some of what arrives there is lost: requests, and data of WRITEs.
#[test]
fn losses_at_the_responder() {
    isolated("cables::losses_at_the_responder", || {
        let (_ferroced, mut other) = lay_cable(4200);
        assert_eq!(other.0.ask("lose 5"), "losing");
        transfer(other, V4, 2, || retries() > 0);
    });
}

#[test]
fn losses_over_ipv6() {
    isolated("cables::losses_over_ipv6", || {
        let (_ferroced, other) = lay_cable(4200);
        netfilter::lose(5);
        transfer(other, index_of("fd00::1"), 2, || retries() > 0);
    });
}

/// A cable with room for 50 Mb/s, and a short queue in front of it that overflows.
#[test]
fn a_bottleneck() {
    isolated("cables::a_bottleneck", || {
        let (_ferroced, other) = lay_cable(4200);
        netdev::add_bottleneck("near", 6_250_000, 64 << 10);
        transfer(other, V4, 2, || retries() > 0);
    });
}

/// Addresses that mean something only together with a netdev.
#[test]
fn link_local_addresses() {
    isolated("cables::link_local_addresses", || {
        let (_ferroced, mut other) = lay_cable(1500);
        assert_eq!(other.0.ask("link-local far"), "usable");
        await_link_local_gid("near");
        transfer(other, 0, 3, || true);
    });
}
