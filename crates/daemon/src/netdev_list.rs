//! A list of the netdevs of this network namespace, for commands.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use crate::{ethtool, netlink};

/// A netdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetdevInfo {
    /// The name.
    pub name: String,
    /// True if it is up.
    pub up: bool,
    /// True if it has a carrier.
    pub carrier: bool,
    /// True for `lo`.
    pub loopback: bool,
    /// The MTU.
    pub mtu: u32,
    /// The driver, if known.
    pub driver: Option<String>,
    /// The speed in Mb/s, if known.
    pub speed_mbps: Option<u32>,
    /// The addresses, oldest first.
    pub addresses: Vec<IpAddr>,
}

impl NetdevInfo {
    /// Returns the first IPv4 address.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
    }
}

/// Lists all netdevs, without ferroced.
///
/// # Errors
/// If a netlink call fails.
pub fn list_netdevs() -> io::Result<Vec<NetdevInfo>> {
    let netdevs = netlink::look()?;
    let all = netdevs.iter().map(|netdev| {
        let addresses = netdevs.addresses_of(netdev.ifindex);
        let own = addresses.iter().filter(|e| e.ifindex == netdev.ifindex);
        NetdevInfo {
            name: netdev.name.clone(),
            up: netdev.up,
            carrier: netdev.carrier,
            loopback: netdev.loopback,
            mtu: netdev.mtu,
            driver: ethtool::driver(&netdev.name),
            speed_mbps: ethtool::speed(&netdev.name),
            addresses: own.map(|entry| entry.address).collect(),
        }
    });
    Ok(all.collect())
}
