//! A link as others see it: an RDMA device with one port on top of a netdev.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Bytes of a netdev's MTU that headers take, as rxe counts them.
pub const HEADERS: u32 = 80;
/// Entries of a port's GID table.
pub const GID_TABLE_LEN: u32 = 1024;
/// The payload sizes that IBTA knows.
pub const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// What `ferroce link add` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The name of the link, such as `rxe0`.
    pub name: String,
    /// `rxe`, or one day `siw`.
    pub kind: String,
    /// The netdev it shall use.
    pub netdev: String,
    /// The largest packet payload, one of [`MTUS`]; by default what the netdev allows.
    pub mtu: Option<u32>,
    /// Whether ICRCs are computed and checked.
    pub crc: bool,
    /// Whether LIDs stand for IPv4 addresses: see [`LinkInfo::lid`].
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub lids: bool,
    /// Seconds of silence after which a peer may be declared dead at the earliest; 0 if
    /// only the queue pair's timeout and retry count decide.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub patience: u32,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// A link and its port, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// The name of the link, such as `rxe0`.
    pub name: String,
    /// The number of the RDMA device, never used twice while ferroced keeps its state.
    pub index: u32,
    /// `rxe`.
    pub kind: String,
    /// The netdev's name now.
    pub netdev: String,
    /// The netdev's number, which does not change.
    pub ifindex: u32,
    /// Whether the netdev is switched on.
    pub up: bool,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// The netdev's own MTU.
    pub netdev_mtu: u32,
    /// The limit that `link add ... mtu N` set.
    pub mtu: Option<u32>,
    /// The largest packet payload now, one of [`MTUS`].
    pub active_mtu: u32,
    /// The netdev's speed, if it knows.
    pub speed_mbps: Option<u32>,
    /// The netdev's MAC address; zeros where it has none.
    pub mac: [u8; 6],
    /// Whether ICRCs are computed and checked.
    pub crc: bool,
    /// Whether LIDs stand for IPv4 addresses: see [`LinkInfo::lid`].
    #[serde(default)]
    pub lids: bool,
    /// Seconds of silence after which a peer may be declared dead at the earliest.
    #[serde(default)]
    pub patience: u32,
    /// Populated entries of the GID table, by index.
    pub gids: Vec<Gid>,
}

impl LinkInfo {
    /// A link of which no more is known yet: the first, of kind `rxe`, on a netdev that is
    /// down.
    pub fn new(name: &str, netdev: &str, ifindex: u32) -> LinkInfo {
        LinkInfo {
            name: name.into(),
            index: 0,
            kind: "rxe".into(),
            netdev: netdev.into(),
            ifindex,
            up: false,
            carrier: false,
            netdev_mtu: 0,
            mtu: None,
            active_mtu: 0,
            speed_mbps: None,
            mac: [0; 6],
            crc: true,
            lids: false,
            patience: 0,
            gids: Vec::new(),
        }
    }
}

/// One entry of a GID table. All are of type RoCE v2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Where it stands in the table.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// The netdev that has the address: the link's own or one above it.
    pub ifindex: u32,
    /// That netdev's name.
    pub netdev: String,
}

/// The logical state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// 1
    Down,
    /// 4
    Active,
}

/// The physical state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhysicalState {
    /// 2: switched on, no carrier.
    Polling,
    /// 3: switched off.
    Disabled,
    /// 5
    LinkUp,
}

/// A change that programs hear about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEvent {
    /// What happened.
    pub kind: LinkEventKind,
    /// The link as it is now; as it last was if it has been removed.
    pub link: LinkInfo,
}

/// What happened to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkEventKind {
    /// The link has been added (heard by subscribers only).
    Added,
    /// IBV_EVENT_PORT_ERR: the port went down.
    PortErr,
    /// IBV_EVENT_PORT_ACTIVE: the port came up.
    PortActive,
    /// IBV_EVENT_GID_CHANGE: an entry of the GID table is new, gone or different.
    GidChange,
    /// Something else is different: MTU, speed, MAC or the netdev's name.
    Changed,
    /// IBV_EVENT_DEVICE_FATAL: the link is gone, by force or with its netdev.
    Removed,
}

impl LinkInfo {
    /// The logical state: active if the netdev is up and has a carrier.
    pub fn state(&self) -> PortState {
        if self.up && self.carrier {
            PortState::Active
        } else {
            PortState::Down
        }
    }

    /// The physical state.
    pub fn physical_state(&self) -> PhysicalState {
        match (self.up, self.carrier) {
            (true, true) => PhysicalState::LinkUp,
            (true, false) => PhysicalState::Polling,
            (false, _) => PhysicalState::Disabled,
        }
    }

    /// The node's GUID: the modified EUI-64 of the MAC address.
    pub fn guid(&self) -> [u8; 8] {
        let m = self.mac;
        [m[0] ^ 2, m[1], m[2], 0xFF, 0xFE, m[3], m[4], m[5]]
    }

    /// The port's LID: zero, as for every RoCE port. With the option `lids` it is the
    /// lower half of the port's usual IPv4 address, for programs that know InfiniBand
    /// only, and no GIDs.
    pub fn lid(&self) -> u16 {
        let usual = self.usual_ipv4().filter(|_| self.lids);
        usual.map_or(0, |(_, address)| address.to_bits() as u16)
    }

    /// The GID index and the address that a LID of another port in our IPv4 network
    /// stands for: `(ours, theirs)`. None without the option `lids`.
    pub fn by_lid(&self, lid: u16) -> Option<(&Gid, Ipv4Addr)> {
        let (gid, ours) = self.usual_ipv4().filter(|_| self.lids && lid != 0)?;
        let theirs = ours.to_bits() & 0xffff_0000 | u32::from(lid);
        Some((gid, Ipv4Addr::from_bits(theirs)))
    }

    fn usual_ipv4(&self) -> Option<(&Gid, Ipv4Addr)> {
        self.gids.iter().find_map(|gid| match gid.address {
            IpAddr::V4(address) => Some((gid, address)),
            IpAddr::V6(_) => None,
        })
    }

    /// The entry at `index` of the GID table.
    pub fn gid(&self, index: u32) -> Option<&Gid> {
        self.gids.iter().find(|gid| gid.index == index)
    }
}

impl Gid {
    /// The address as the 16 bytes of a GID: IPv4 addresses as `::ffff:a.b.c.d`.
    pub fn raw(&self) -> [u8; 16] {
        let v6: Ipv6Addr = match self.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        v6.octets()
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortState::Down => "DOWN",
            PortState::Active => "ACTIVE",
        })
    }
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PhysicalState::Polling => "POLLING",
            PhysicalState::Disabled => "DISABLED",
            PhysicalState::LinkUp => "LINK_UP",
        })
    }
}

/// The largest IBTA MTU that fits a netdev's, and never less than 256: what rxe
/// makes of it.
pub fn largest_mtu(netdev_mtu: u32) -> u32 {
    let room = netdev_mtu.saturating_sub(HEADERS);
    let fitting = MTUS.iter().rev().find(|mtu| **mtu <= room);
    *fitting.unwrap_or(&MTUS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_are_an_option() {
        let mut link = LinkInfo::new("rxe0", "eth0", 2);
        link.gids.push(Gid {
            index: 1,
            address: Ipv4Addr::new(10, 9, 0, 1).into(),
            ifindex: 2,
            netdev: "eth0".into(),
        });
        assert_eq!((link.lid(), link.by_lid(2)), (0, None), "as rxe");
        link.lids = true;
        assert_eq!(link.lid(), 1);
        let (gid, peer) = link.by_lid(2).unwrap();
        assert_eq!((gid.index, peer), (1, Ipv4Addr::new(10, 9, 0, 2)));
        assert_eq!(link.by_lid(0), None);
    }

    #[test]
    fn mtus_follow_the_netdev_as_in_rxe() {
        for (netdev, expected) in [
            (0, 256),
            (300, 256),
            (1500, 1024),
            (2127, 1024),
            (2128, 2048),
            (4175, 2048),
            (4176, 4096),
            (9000, 4096),
            (65536, 4096),
        ] {
            assert_eq!(largest_mtu(netdev), expected, "netdev MTU {netdev}");
        }
    }
}
