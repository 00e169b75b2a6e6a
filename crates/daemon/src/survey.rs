//! The netdevs of this network namespace, for people who choose one.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use crate::{ethtool, netlink};

/// A netdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetdevInfo {
    /// Its name.
    pub name: String,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Whether it is `lo`.
    pub loopback: bool,
    /// Its MTU.
    pub mtu: u32,
    /// Its driver, if it says so.
    pub driver: Option<String>,
    /// Its speed in Mb/s, if it knows.
    pub speed_mbps: Option<u32>,
    /// Its addresses, oldest first.
    pub addresses: Vec<IpAddr>,
}

impl NetdevInfo {
    /// The first IPv4 address.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
    }
}

/// Looks at all netdevs, without ferroced.
///
/// # Errors
/// If netlink does not work.
pub fn survey() -> io::Result<Vec<NetdevInfo>> {
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
