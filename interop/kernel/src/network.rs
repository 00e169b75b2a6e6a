//! The host's end: a bridge between Ferroce and the guest, in a network namespace.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{User, deadline, now, pause};
use ferroce_testnet::netdev;
use rustix::process::{Signal, kill_process};

pub(crate) const HOST: [&str; 2] = ["10.78.0.1", "fd78::1"];
pub(crate) const GUEST: [&str; 2] = ["10.78.0.2", "fd78::2"];
/// The guest's netdev is told by this.
pub(crate) const GUEST_MAC: &str = "52:54:00:78:00:02";
/// The netdev of the host that leads to the guest; what passes it passes as single packets.
pub(crate) const TAP: &str = "tap0";
/// The largest MTU, which is the one to begin with.
pub(crate) const MTU: u32 = 9000;

/// The network, and somebody with Ferroce on it.
pub(crate) struct Network {
    pub(crate) user: User,
}

impl Network {
    /// Makes it, goes there, and adds a link of Ferroce's.
    pub(crate) fn make(ferroce: &Path, folder: &Path) -> Result<Network> {
        ferroce_net::enter_private_network().context("cannot make a network of our own")?;
        ensure!(netdev::add_bridge("br0"), "this kernel has no bridges");
        netdev::set_mtu("br0", MTU);
        netdev::set_up("br0");
        // The bridge would answer for the address of veth0, with another MAC. rdma_cm of Linux
        // takes a neighbour that changes its MAC for gone, and ends its connections.
        ip(&["link", "set", "br0", "arp", "off"])?;
        netdev::add_veth("veth0", "veth1");
        netdev::set_master("veth1", "br0");
        for name in ["veth0", "veth1"] {
            netdev::set_mtu(name, MTU);
            netdev::set_up(name);
        }
        netdev::add_address("veth0", &format!("{}/24", HOST[0]));
        netdev::add_address("veth0", &format!("{}/64", HOST[1]));
        netdev::await_link_local("veth0");
        let user = User::new(ferroce, folder, true)?;
        let network = Network { user };
        network.add_link()?;
        Ok(network)
    }

    fn add_link(&self) -> Result<()> {
        let add = ["link", "add", "rxe0", "type", "rxe", "netdev", "veth0"];
        self.user.ferroce(&add).map(drop)
    }

    /// Ends all of Ferroce, as a power cut would: first the daemon, which would take leave
    /// for programs. Then begins anew, with nothing remembered.
    pub(crate) fn restart(&self) -> Result<()> {
        for name in [Some("ferroced"), None] {
            for process in self.user.processes(name)? {
                // One that has ended by itself is as good.
                let _gone = kill_process(process, Signal::KILL);
            }
        }
        let until = deadline(Duration::from_secs(20));
        while !self.user.processes(None)?.is_empty() {
            ensure!(now() < until, "processes do not die");
            pause();
        }
        self.user.forget()?;
        self.add_link()
    }

    /// Puts the guest on the bridge, once QEMU has made its netdev.
    pub(crate) fn attach(&self) -> Result<()> {
        let until = deadline(Duration::from_secs(20));
        while !Path::new("/proc/thread-self/net/dev_snmp6")
            .join(TAP)
            .exists()
        {
            ensure!(now() < until, "QEMU makes no {TAP}");
            pause();
        }
        netdev::set_master(TAP, "br0");
        netdev::set_mtu(TAP, MTU);
        netdev::set_up(TAP);
        // A long message over an unreliable transport must fit the queue.
        ip(&["link", "set", TAP, "txqueuelen", "5000"])
    }

    /// Changes the MTU of all netdevs on this side.
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
