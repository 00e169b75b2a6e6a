//! Transfers between two machines: network namespaces connected by a veth pair.

use std::fs::File;

use ferroce_control::find_daemon;
use ferroce_device::Device;
use ferroce_device::transport::{QpState, QpType};
use ferroce_testnet::{isolated, netdev, netfilter};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::ferroced::add_link;
use crate::support::puppet::{Stranger, await_link_local_gid};
use crate::support::{Endpoint, Ferroced, LINK, Puppet, V4, pattern};

const MESSAGE: u32 = 1 << 20;

/// Connects this machine to another one by a veth pair, with a link at either end.
fn connect_machines(mtu: u32) -> (Ferroced, Stranger) {
    let mut other = Puppet::unopened();
    let place = other.0.ask("leave");
    netdev::add_veth("near", "far");
    netdev::move_to("far", File::open(place).expect("its namespace"));
    netdev::set_mtu("near", mtu);
    netdev::set_detection_time("near", 2);
    netdev::add_address("near", "10.0.0.1/24");
    netdev::add_address("near", "fd00::1/64");
    netdev::set_up("near");
    let settle = format!("settle far {mtu} 10.0.0.2/24 fd00::2/64");
    assert_eq!(other.0.ask(&settle), "settled");
    let ferroced = Ferroced::start();
    add_link(LINK, "near");
    (ferroced, other)
}

/// Returns the index of an address in the GID table; both machines have the same indices.
fn index_of(address: &str) -> u8 {
    let links = ferroce_device::list_links().expect("listed");
    let address: std::net::IpAddr = address.parse().expect("an address");
    let gid = links[0].gids.iter().find(|gid| gid.address == address);
    gid.expect("populated").index as u8
}

/// Moves data both ways, for `rounds` rounds and then until `enough` returns true.
fn transfer(other: Stranger, gid_index: u8, rounds: u32, mut enough: impl FnMut() -> bool) {
    let mut ours = Endpoint::open(QpType::Rc, gid_index);
    let mut theirs = other.open(QpType::Rc, gid_index);
    theirs.connect(&ours.introduction());
    ours.connect(&theirs.introduction);
    for seed in 0.. {
        if seed >= rounds && enough() {
            break;
        }
        assert!(seed < 100, "100 rounds are not enough");
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

fn transfer_at_mtu(mtu: u32, active: u32) {
    let (_ferroced, other) = connect_machines(mtu);
    let links = ferroce_device::list_links().expect("listed");
    assert_eq!(links[0].active_mtu, active);
    transfer(other, V4, 3, || true);
}

#[test]
fn transfer_at_mtu_1500() {
    isolated("cables::transfer_at_mtu_1500", || {
        transfer_at_mtu(1500, 1024)
    });
}

#[test]
fn transfer_at_mtu_4200() {
    isolated("cables::transfer_at_mtu_4200", || {
        transfer_at_mtu(4200, 4096)
    });
}

#[test]
fn transfer_at_mtu_9000() {
    isolated("cables::transfer_at_mtu_9000", || {
        transfer_at_mtu(9000, 4096)
    });
}

#[test]
fn transfer_over_ipv6() {
    isolated("cables::transfer_over_ipv6", || {
        let (_ferroced, other) = connect_machines(1500);
        let index = index_of("fd00::1");
        transfer(other, index, 3, || true);
    });
}

/// Returns the number of retransmissions that this end counts.
fn retries() -> u64 {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let counters = connection.counters(Some(LINK), false).expect("counted");
    let mut values = counters[0].values.iter();
    let retries = values.find(|(name, _)| name == "completer_retry_err");
    retries.expect("counted").1
}

/// Packets that arrive here are lost: ACKs and READ responses.
#[test]
fn lost_responses_are_retransmitted() {
    isolated("cables::lost_responses_are_retransmitted", || {
        let (_ferroced, other) = connect_machines(4200);
        netfilter::lose(5);
        transfer(other, V4, 2, || retries() > 0);
    });
}

/// Packets that arrive at the peer are lost: requests and data of WRITEs.
#[test]
fn lost_requests_are_retransmitted() {
    isolated("cables::lost_requests_are_retransmitted", || {
        let (_ferroced, mut other) = connect_machines(4200);
        assert_eq!(other.0.ask("lose 5"), "losing");
        transfer(other, V4, 2, || retries() > 0);
    });
}

#[test]
fn lost_packets_over_ipv6_are_retransmitted() {
    isolated("cables::lost_packets_over_ipv6_are_retransmitted", || {
        let (_ferroced, other) = connect_machines(4200);
        netfilter::lose(5);
        transfer(other, index_of("fd00::1"), 2, || retries() > 0);
    });
}

/// The network carries 50 Mb/s, and its short queue overflows.
#[test]
fn transfer_over_a_bottleneck_completes() {
    isolated("cables::transfer_over_a_bottleneck_completes", || {
        let (_ferroced, other) = connect_machines(4200);
        netdev::add_bottleneck("near", 6_250_000, 64 << 10);
        transfer(other, V4, 2, || retries() > 0);
    });
}

/// Link-local addresses are valid on one netdev only. Queue pairs wait until duplicate address
/// detection ends, which takes 2 to 3 s here.
#[test]
fn transfer_between_link_local_addresses_starts_during_detection() {
    let name = "cables::transfer_between_link_local_addresses_starts_during_detection";
    isolated(name, || {
        let (_ferroced, mut other) = connect_machines(1500);
        assert_eq!(other.0.ask("link-local"), "listed");
        let gid = await_link_local_gid();
        assert!(gid.tentative, "{gid:?}");
        transfer(other, 0, 3, || true);
    });
}

/// Without a free descriptor a process cannot ask the kernel whether detection has ended. ferroced knows, too.
#[test]
fn end_of_detection_is_noticed_without_a_free_descriptor() {
    let name = "cables::end_of_detection_is_noticed_without_a_free_descriptor";
    isolated(name, || {
        netdev::add_veth("near", "far");
        for name in ["near", "far"] {
            netdev::set_detection_time(name, 1);
            netdev::set_up(name);
        }
        netdev::await_tentative_link_local("near");
        let _ferroced = Ferroced::start();
        add_link(LINK, "near");
        let device = Device::open(LINK).expect("the link is there");
        let gid = await_link_local_gid();
        assert!(gid.tentative, "{gid:?}");
        let limit = Rlimit {
            current: Some(64),
            ..getrlimit(Resource::Nofile)
        };
        setrlimit(Resource::Nofile, limit).expect("it is below the maximum");
        let files = std::iter::from_fn(|| File::open("/dev/null").ok());
        let _files: Vec<File> = files.collect();
        device.await_usable(&gid).expect("detection ends");
    });
}

#[test]
fn queue_pair_cannot_use_the_address_of_another_host() {
    let name = "cables::queue_pair_cannot_use_the_address_of_another_host";
    isolated(name, || {
        netdev::add_veth("near", "far");
        netdev::set_mac("near", [2, 0, 0, 0, 0, 1]);
        // The last probe leaves at least 2 s after the start: this test adds the address at `far` before.
        netdev::set_detection_time("near", 3);
        for name in ["near", "far"] {
            netdev::set_up(name);
        }
        netdev::await_tentative_link_local("near");
        let _ferroced = Ferroced::start();
        add_link(LINK, "near");
        let mut end = Endpoint::open(QpType::Rc, 0);
        let peer = end.introduction();
        netdev::add_address("far", "fe80::ff:fe00:1/64");
        let error = end.try_connect(&peer).unwrap_err();
        let expected = "rxe0 has lost the address fe80::ff:fe00:1 before duplicate address";
        assert!(error.contains(expected), "{error}");
        assert_eq!(end.state(), QpState::Init);
    });
}
