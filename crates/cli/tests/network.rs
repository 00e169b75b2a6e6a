//! Two hosts: `ferroce ping` between them, and links on several kinds of netdevs. The other
//! host is a network namespace with a ferroced of its own.

mod common;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use ferroce_testnet::{deadline, isolated, namespace, netdev};

use common::{Cleanup, PINGPONG_PORT, command, fails, is_listening, ok, run, with_libraries};

/// Another host, connected to netdev `near`, with an address and a link `far0`.
struct Other(OwnedFd);

impl Other {
    fn beyond(near: &str, addresses: &[&str], mtu: u32) -> Other {
        let there = namespace::another().expect("a namespace");
        netdev::add_veth(near, "far");
        netdev::move_to("far", &there);
        netdev::set_mtu(near, mtu);
        netdev::set_up(near);
        let other = Other(there);
        other.within(|| {
            netdev::set_mtu("far", mtu);
            for address in addresses {
                netdev::add_address("far", address);
            }
            netdev::set_up("far");
        });
        other
    }

    fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        namespace::within(&self.0, work).expect("entered")
    }

    fn add_link(&self) {
        self.within(|| ok("ferroce link add far0 type rxe netdev far"));
    }

    /// Checks traffic to this host (10.0.0.2) over a link on a local netdev.
    fn is_reached_over(&self, netdev: &str) {
        netdev::add_address(netdev, "10.0.0.1/24");
        netdev::set_up(netdev);
        ok(&format!("ferroce link add rxe0 type rxe netdev {netdev}"));
        self.add_link();
        until_answered("10.0.0.2");
        pingpong("rxe0", "10.0.0.2", self);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.within(|| drop(Cleanup));
    }
}

fn is_active(link: &str) -> bool {
    ok(&format!("ferroce link show {link}")).contains("state ACTIVE")
}

/// Waits until a host answers. A new bridge does not forward at once.
fn until_answered(host: &str) {
    deadline::until("there is an answer", || {
        run(&format!("ferroce ping -c 1 -W 1 {host}"))
            .status
            .success()
    });
}

#[test]
fn ping_is_answered_by_a_connection_manager() {
    isolated("ping_is_answered_by_a_connection_manager", || {
        let _cleanup = Cleanup;
        let said = fails("ferroce ping 127.0.0.1");
        assert!(
            said.contains("no ferroced runs in this network namespace"),
            "{said}"
        );
        ok("ferroce link add lo0 type rxe netdev lo");
        let said = ok("ferroce ping -c 2 -i 0.01 127.0.0.1");
        let beginning = "PING 127.0.0.1 (127.0.0.1) from 127.0.0.1 lo0: RoCE connection manager\n\
                         answer from 127.0.0.1: seq=1 time=";
        assert!(said.starts_with(beginning), "{said}");
        assert!(
            said.contains("\n2 sent, 2 answered, 0% lost\nrtt min/avg/max/mdev = "),
            "{said}"
        );
        assert!(
            said.ends_with("mtu 4096: IP packets of 4160 bytes arrive; the MTU of this link\n"),
            "{said}"
        );
        for (line, complaint) in [
            ("ping -c 0 127.0.0.1", "count 0 is not valid"),
            (
                "ping -I rxe7 127.0.0.1",
                "link rxe7 does not exist; existing links: lo0",
            ),
            (
                "ping no-such-host.invalid",
                "cannot resolve host `no-such-host.invalid`",
            ),
            ("ping 192.0.2.7", "there is no route to 192.0.2.7"),
        ] {
            let said = fails(&format!("ferroce {line}"));
            assert!(said.contains(complaint), "{line}: {said}");
        }
    });
}

#[test]
fn ping_reports_answers_and_silence_of_another_host() {
    isolated("ping_reports_answers_and_silence_of_another_host", || {
        let _cleanup = Cleanup;
        let other = Other::beyond("near", &["10.0.0.2/24", "fd00::2/64"], 1500);
        netdev::add_address("near", "10.0.0.1/24");
        netdev::add_address("near", "fd00::1/64");
        ok("ferroce link add near0 type rxe netdev near");
        deadline::until("the cable is up", || is_active("near0"));

        // A host without Ferroce, and an address without a host.
        for host in ["10.0.0.2", "10.0.0.3"] {
            let output = run(&format!("ferroce ping -c 1 -W 0.2 {host}"));
            assert_eq!(output.status.code(), Some(1));
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                said.contains(&format!("no answer from {host}: seq=1\n")),
                "{said}"
            );
            assert!(said.contains("1 sent, 0 answered, 100% lost\n"), "{said}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("no firewall drops UDP port 4791"), "{said}");
        }

        other.add_link();
        until_answered("10.0.0.2");
        let said = ok("ferroce ping -c 1 10.0.0.2");
        assert!(said.contains("from 10.0.0.1 near0: "), "{said}");
        assert!(
            said.contains("mtu 1024: IP packets of 1088 bytes arrive; the MTU of"),
            "{said}"
        );
        let said = ok("ferroce ping -c 1 fd00::2");
        assert!(said.contains("from fd00::1 near0: "), "{said}");
        assert!(
            said.contains("mtu 1024: IP packets of 1108 bytes arrive; the MTU of"),
            "{said}"
        );
    });
}

/// The local netdev sends jumbo frames, and the path drops them. Small messages then work
/// and large ones do not.
#[test]
fn ping_finds_the_largest_mtu_that_arrives() {
    isolated("ping_finds_the_largest_mtu_that_arrives", || {
        let _cleanup = Cleanup;
        let other = Other::beyond("near", &["10.0.0.2/24"], 9000);
        netdev::add_address("near", "10.0.0.1/24");
        ok("ferroce link add near0 type rxe netdev near");
        other.add_link();
        until_answered("10.0.0.2");
        let said = ok("ferroce ping -c 1 10.0.0.2");
        assert!(
            said.contains("mtu 4096: IP packets of 4160 bytes"),
            "{said}"
        );
        for (mtu, passes) in [(2200, 2048), (1500, 1024), (700, 512)] {
            other.within(|| netdev::set_mtu("far", mtu));
            let said = ok("ferroce ping -c 1 -W 0.5 10.0.0.2");
            let bytes = passes + 64;
            let expected = format!(
                "mtu {passes}: IP packets of {bytes} bytes arrive; larger ones do not, but the MTU \
                 of this link is 4096: run `ferroce link set near0 mtu {passes}`\n"
            );
            assert!(said.ends_with(&expected), "far MTU {mtu}: {said}");
        }
    });
}

/// Runs ibv_rc_pingpong between this host and the other.
fn pingpong(link: &str, address: &str, other: &Other) {
    if !Path::new("/usr/bin/ibv_rc_pingpong").exists() {
        let line = "*** SKIPPED: ibv_rc_pingpong is not installed ***";
        assert!(std::env::var_os("CI").is_none(), "{line}");
        return eprintln!("{line}");
    }
    let program = "ferroce run -- ibv_rc_pingpong -c -g 1 -d";
    let server = other.within(|| {
        let server = command(&format!("{program} far0"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("ferroce starts");
        deadline::until("the server listens", || is_listening(PINGPONG_PORT));
        server
    });
    let client = ok(&format!("{program} {link} {address}"));
    assert!(client.contains("1000 iters in "), "{client}");
    let server = server.wait_with_output().expect("our child");
    assert!(server.status.success(), "{server:?}");
}

/// Hosts of virtual machines and containers have the address on the bridge.
#[test]
fn link_on_a_bridge_carries_traffic() {
    with_libraries("link_on_a_bridge_carries_traffic", || {
        let _cleanup = Cleanup;
        let other = Other::beyond("port", &["10.0.0.2/24"], 1500);
        assert!(netdev::add_bridge("br0"), "kernel without bridges");
        netdev::set_master("port", "br0");
        other.is_reached_over("br0");
    });
}

/// Containers that share a NIC may have a macvlan.
#[test]
fn link_on_a_macvlan_carries_traffic() {
    with_libraries("link_on_a_macvlan_carries_traffic", || {
        let _cleanup = Cleanup;
        let other = Other::beyond("nic", &["10.0.0.2/24"], 1500);
        assert!(netdev::add_macvlan("mac0", "nic"), "kernel without macvlan");
        other.is_reached_over("mac0");
    });
}

/// Each link is on its own netdev.
#[test]
fn two_links_carry_traffic_to_two_hosts() {
    with_libraries("two_links_carry_traffic_to_two_hosts", || {
        let _cleanup = Cleanup;
        let one = Other::beyond("eth0", &["10.0.0.2/24"], 1500);
        let two = Other::beyond("eth1", &["10.0.1.2/24"], 9000);
        netdev::add_address("eth0", "10.0.0.1/24");
        netdev::add_address("eth1", "10.0.1.1/24");
        ok("ferroce link add rxe0 type rxe netdev eth0");
        ok("ferroce link add rxe1 type rxe netdev eth1");
        one.add_link();
        two.add_link();
        until_answered("10.0.0.2");
        until_answered("10.0.1.2");
        pingpong("rxe0", "10.0.0.2", &one);
        pingpong("rxe1", "10.0.1.2", &two);
    });
}
