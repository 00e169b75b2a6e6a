//! The host's network: a bridge between Ferroce and the guest, in a network namespace.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{User, deadline, now, pause};
use ferroce_testnet::netdev;
use rustix::process::{Signal, kill_process};

use crate::agent;
use crate::case::Link;

pub(crate) const HOST: [&str; 2] = ["10.78.0.1", "fd78::1"];
pub(crate) const GUEST: [&str; 2] = GUESTS[0].addresses;
/// The host's netdev that leads to the guest.
pub(crate) const TAP: &str = GUESTS[0].tap;
/// The largest MTU, which is also the initial one.
pub(crate) const MTU: u32 = 9000;

/// A guest's place on the bridge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Folder for logs.
    pub(crate) name: &'static str,
    /// IPv4 and IPv6 address.
    pub(crate) addresses: [&'static str; 2],
    /// MAC address of the guest's netdev, by which the guest recognises it.
    pub(crate) mac: &'static str,
    /// The host's netdev that leads to the guest. It carries single packets, not segmented runs.
    pub(crate) tap: &'static str,
    /// TCP port of the guest's agent on the host's loopback interface.
    pub(crate) agent: u16,
}

/// The places of guests. Tests use the first; only measurements between two guests use both.
pub(crate) const GUESTS: [Place; 2] = [
    Place {
        name: "guest0",
        addresses: ["10.78.0.2", "fd78::2"],
        mac: "52:54:00:78:00:02",
        tap: "tap0",
        agent: agent::PORT,
    },
    Place {
        name: "guest1",
        addresses: ["10.78.0.3", "fd78::3"],
        mac: "52:54:00:78:00:03",
        tap: "tap1",
        agent: agent::PORT + 1,
    },
];

/// The network, and a user with Ferroce on it.
pub(crate) struct Network {
    pub(crate) user: User,
}

impl Network {
    /// Creates and enters the network namespace, and adds a link of Ferroce.
    pub(crate) fn make(ferroce: &Path, folder: &Path) -> Result<Network> {
        ferroce_net::enter_private_network().context("cannot create a network namespace")?;
        ensure!(
            netdev::add_bridge("br0"),
            "this kernel does not support bridges"
        );
        netdev::set_mtu("br0", MTU);
        netdev::set_up("br0");
        // With ARP on, the bridge also replies for veth0's address, with another MAC. Linux's
        // rdma_cm ends the connections of a neighbour whose MAC changes.
        ip(&["link", "set", "br0", "arp", "off"])?;
        netdev::add_veth("veth0", "veth1");
        netdev::set_master("veth1", "br0");
        for place in GUESTS {
            // The guest's netdev remains, with its captures, while QEMU is started anew.
            ip(&["tuntap", "add", "dev", place.tap, "mode", "tap"])?;
            netdev::set_master(place.tap, "br0");
            // A long message of an unreliable transport must fit into the transmit queue.
            ip(&["link", "set", place.tap, "txqueuelen", "5000"])?;
        }
        for name in ["veth0", "veth1"]
            .into_iter()
            .chain(GUESTS.map(|place| place.tap))
        {
            netdev::set_mtu(name, MTU);
            netdev::set_up(name);
        }
        netdev::add_address("veth0", &format!("{}/24", HOST[0]));
        netdev::add_address("veth0", &format!("{}/64", HOST[1]));
        netdev::await_link_local("veth0");
        let user = User::new(ferroce, folder, true)?;
        let network = Network { user };
        network.add_link(Link::Rxe)?;
        Ok(network)
    }

    fn add_link(&self, link: Link) -> Result<()> {
        let (name, kind) = (link.name(), link.kind());
        let add = ["link", "add", name, "type", kind, "netdev", "veth0"];
        self.user.ferroce(&add).map(drop)
    }

    /// Replaces the link by one of another type.
    pub(crate) fn replace_link(&self, old: Link, new: Link) -> Result<()> {
        self.add_link(new)?;
        self.user.ferroce(&["link", "delete", old.name()]).map(drop)
    }

    /// Kills all processes of Ferroce, as a power cut would, and adds the link again without
    /// any saved state. The daemon is killed first, or it would disconnect on behalf of the
    /// killed programs.
    pub(crate) fn restart(&self, link: Link) -> Result<()> {
        for name in [Some("ferroced"), None] {
            for process in self.user.processes(name)? {
                // A process that has already ended needs no signal.
                let _gone = kill_process(process, Signal::KILL);
            }
        }
        let until = deadline(Duration::from_secs(20));
        while !self.user.processes(None)?.is_empty() {
            ensure!(
                now() < until,
                "some processes of Ferroce are still running after SIGKILL"
            );
            pause();
        }
        self.user.clear_runtime()?;
        self.add_link(link)
    }

    /// Sets the MTU of all netdevs on the host.
    pub(crate) fn set_mtu(&self, mtu: u32) {
        for name in ["veth0", "veth1", TAP] {
            netdev::set_mtu(name, mtu);
        }
    }
}

fn ip(words: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(words).status()?;
    ensure!(status.success(), "ip failed ({status})");
    Ok(())
}
