//! Links: RDMA devices with one port, on top of a netdev.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Bytes of a netdev's MTU that are reserved for headers, as in rxe.
pub const HEADERS: u32 = 80;
/// Number of entries of a port's GID table.
pub const GID_TABLE_LEN: u32 = 1024;
/// The path MTUs of IBTA.
pub const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// The highest speed in Mb/s that `ibv_query_port` can report: 4X NDR.
pub const MAX_SPEED: u32 = 400_000;

/// The options of `ferroce link add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The name of the link, such as `rxe0`.
    pub name: String,
    /// The type: `rxe` or `siw`.
    pub kind: String,
    /// The netdev.
    pub netdev: String,
    /// The largest packet payload, one of [`MTUS`]; by default the largest for the netdev.
    pub mtu: Option<u32>,
    /// True if ICRCs are computed and checked.
    pub crc: bool,
    /// True if LIDs stand for IPv4 addresses: see [`LinkInfo::lid`].
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub lids: bool,
    /// Seconds that a silent peer is kept at least; 0 if only the queue pair's timeout and
    /// retry count apply.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub patience: u32,
    /// The speed in Mb/s that programs see, at most [`MAX_SPEED`]; by default the netdev's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u32>,
    /// True if packets and streams to programs of the same user on this host travel through shared
    /// memory.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub local: bool,
    /// The mode of strict checks, a word of `ferroce_strict::Mode`; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub strict: String,
    /// The profile of limits, a name of `ferroce_strict::Profile`; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub profile: String,
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// The present state of a link and its port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// The name of the link, such as `rxe0`.
    pub name: String,
    /// The index of the RDMA device, unique while ferroced keeps its state.
    pub index: u32,
    /// The type: `rxe` or `siw`.
    pub kind: String,
    /// The present name of the netdev.
    pub netdev: String,
    /// The index of the netdev, which does not change.
    pub ifindex: u32,
    /// True if the netdev is up.
    pub up: bool,
    /// True if the netdev has a carrier.
    pub carrier: bool,
    /// The netdev's own MTU.
    pub netdev_mtu: u32,
    /// The limit that `link add ... mtu N` set.
    pub mtu: Option<u32>,
    /// The present largest packet payload, one of [`MTUS`].
    pub active_mtu: u32,
    /// The speed in Mb/s that programs see. ferroced states one for every link.
    pub speed_mbps: Option<u32>,
    /// The netdev's MAC address; zeros if it has none.
    pub mac: [u8; 6],
    /// True if ICRCs are computed and checked.
    pub crc: bool,
    /// True if LIDs stand for IPv4 addresses: see [`LinkInfo::lid`].
    #[serde(default)]
    pub lids: bool,
    /// Seconds that a silent peer is kept at least.
    #[serde(default)]
    pub patience: u32,
    /// The speed in Mb/s that `link add ... speed N` set.
    #[serde(default)]
    pub speed: Option<u32>,
    /// True if packets and streams to programs of the same user on this host travel through shared
    /// memory.
    #[serde(default = "yes")]
    pub local: bool,
    /// The mode of strict checks; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub strict: String,
    /// The profile of limits; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub profile: String,
    /// The faults in force, in the grammar of `ferroce-faults`; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub faults: String,
    /// Populated entries of the GID table, by index.
    pub gids: Vec<Gid>,
}

impl LinkInfo {
    /// Returns a link with index 0 and type `rxe`, on a netdev that is down.
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
            speed: None,
            local: true,
            strict: String::new(),
            profile: String::new(),
            faults: String::new(),
            gids: Vec::new(),
        }
    }
}

/// One entry of a GID table. All are of type RoCE v2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Index in the table.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// The netdev that has the address: the link's own or one above it.
    pub ifindex: u32,
    /// That netdev's name.
    pub netdev: String,
    /// True during duplicate address detection: packets cannot be sent from the address yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tentative: bool,
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
    /// 2: up, without carrier.
    Polling,
    /// 3: down.
    Disabled,
    /// 5
    LinkUp,
}

/// A change of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEvent {
    /// The kind of change.
    pub kind: LinkEventKind,
    /// The present state of the link; the last state if it was removed.
    pub link: LinkInfo,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkEventKind {
    /// The link was added. Only subscribers receive this.
    Added,
    /// IBV_EVENT_PORT_ERR: the port went down.
    PortErr,
    /// IBV_EVENT_PORT_ACTIVE: the port came up.
    PortActive,
    /// IBV_EVENT_GID_CHANGE: an entry of the GID table was added, removed or changed.
    GidChange,
    /// The MTU, speed, MAC address or netdev name changed.
    Changed,
    /// IBV_EVENT_DEVICE_FATAL: the link was deleted by force, or its netdev is gone.
    Removed,
}

impl LinkInfo {
    /// Returns true if the link is of type `siw`: iWARP over TCP, not RoCE.
    pub fn is_iwarp(&self) -> bool {
        self.kind == "siw"
    }

    /// Returns the GID of an iWARP port: the MAC address, followed by zeros. A netdev without
    /// one, such as lo, gets a locally administered address: programs skip GIDs of zeros.
    pub fn mac_gid(&self) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..6].copy_from_slice(&self.mac);
        if self.mac == [0; 6] {
            let [_, _, high, low] = self.ifindex.to_be_bytes();
            gid[..6].copy_from_slice(&[2, 0, 0, 0, high, low]);
        }
        gid
    }

    /// Returns the logical state: active if the netdev is up and has a carrier.
    pub fn state(&self) -> PortState {
        if self.up && self.carrier {
            PortState::Active
        } else {
            PortState::Down
        }
    }

    /// Returns the physical state.
    pub fn physical_state(&self) -> PhysicalState {
        match (self.up, self.carrier) {
            (true, true) => PhysicalState::LinkUp,
            (true, false) => PhysicalState::Polling,
            (false, _) => PhysicalState::Disabled,
        }
    }

    /// Returns the node GUID: the modified EUI-64 of the MAC address.
    pub fn guid(&self) -> [u8; 8] {
        let m = self.mac;
        [m[0] ^ 2, m[1], m[2], 0xFF, 0xFE, m[3], m[4], m[5]]
    }

    /// Returns the port's LID: zero, as for every RoCE port. With the option `lids` it is the
    /// lower half of the port's first IPv4 address, for programs that do not use GIDs.
    pub fn lid(&self) -> u16 {
        let first = self.first_ipv4().filter(|_| self.lids);
        first.map_or(0, |(_, address)| address.to_bits() as u16)
    }

    /// Returns our GID and the IPv4 address of the peer that a LID stands for. Returns `None`
    /// without the option `lids`.
    pub fn by_lid(&self, lid: u16) -> Option<(&Gid, Ipv4Addr)> {
        let (gid, ours) = self.first_ipv4().filter(|_| self.lids && lid != 0)?;
        let theirs = ours.to_bits() & 0xffff_0000 | u32::from(lid);
        Some((gid, Ipv4Addr::from_bits(theirs)))
    }

    fn first_ipv4(&self) -> Option<(&Gid, Ipv4Addr)> {
        self.gids.iter().find_map(|gid| match gid.address {
            IpAddr::V4(address) => Some((gid, address)),
            IpAddr::V6(_) => None,
        })
    }

    /// Returns the entry at `index` of the GID table.
    pub fn gid(&self, index: u32) -> Option<&Gid> {
        self.gids.iter().find(|gid| gid.index == index)
    }
}

impl Gid {
    /// Returns the index, the address and the netdev, which programs see as the entry.
    pub fn place(&self) -> (u32, IpAddr, u32) {
        (self.index, self.address, self.ifindex)
    }

    /// Returns the 16 bytes of the GID; IPv4 addresses as `::ffff:a.b.c.d`.
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

/// Returns the largest path MTU for a netdev's MTU, at least 256, as in rxe.
pub fn largest_mtu(netdev_mtu: u32) -> u32 {
    let room = netdev_mtu.saturating_sub(HEADERS);
    let fitting = MTUS.iter().rev().find(|mtu| **mtu <= room);
    *fitting.unwrap_or(&MTUS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_stand_for_ipv4_addresses_if_enabled() {
        let mut link = LinkInfo::new("rxe0", "eth0", 2);
        link.gids.push(Gid {
            index: 1,
            address: Ipv4Addr::new(10, 9, 0, 1).into(),
            ifindex: 2,
            netdev: "eth0".into(),
            tentative: false,
        });
        assert_eq!((link.lid(), link.by_lid(2)), (0, None), "as rxe");
        link.lids = true;
        assert_eq!(link.lid(), 1);
        let (gid, peer) = link.by_lid(2).unwrap();
        assert_eq!((gid.index, peer), (1, Ipv4Addr::new(10, 9, 0, 2)));
        assert_eq!(link.by_lid(0), None);
    }

    #[test]
    fn path_mtu_follows_the_netdev_as_in_rxe() {
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
