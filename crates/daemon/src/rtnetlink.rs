//! The format of rtnetlink messages, as far as ferroced needs it.
//!
//! The parser reads only the attributes in use, each by itself. Attributes of newer kernels,
//! and errors elsewhere in the message, have no effect.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::NlasIterator;

use crate::gids::Entry;
use crate::netdevs::{Assigned, Change, Netdev};

pub(crate) const RTM_GETLINK: u16 = libc::RTM_GETLINK;
pub(crate) const RTM_GETADDR: u16 = libc::RTM_GETADDR;

const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
/// Types of netdevs to which the kernel gives a link-local address: Ethernet, InfiniBand, and
/// tunnels. `ARPHRD_NONE` is that of tun.
const AUTOCONF: [u16; 7] = [
    libc::ARPHRD_ETHER,
    libc::ARPHRD_INFINIBAND,
    libc::ARPHRD_NONE,
    libc::ARPHRD_TUNNEL,
    libc::ARPHRD_TUNNEL6,
    libc::ARPHRD_IPGRE,
    ARPHRD_IP6GRE,
];
const ARPHRD_IP6GRE: u16 = 823;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

/// Kinds of netdevs whose IFLA_LINK is the netdev below. For a veth it is the peer, for a
/// tunnel the outgoing netdev.
const STACKED: [&[u8]; 5] = [b"vlan", b"macvlan", b"macvtap", b"ipvlan", b"macsec"];

/// A message of a packet.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// A netdev or an address.
    Route {
        kind: u16,
        interrupted: bool,
        payload: &'a [u8],
    },
    /// The end of a dump.
    Done { interrupted: bool },
    /// An error.
    Error(io::Error),
}

/// Returns a request to dump a table.
pub(crate) fn dump_request(kind: u16) -> Vec<u8> {
    let length = (HEADER + LINK_HEADER) as u32;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence number, port, and a header with AF_UNSPEC: all zero.
    bytes.resize(length as usize, 0);
    bytes
}

/// Returns the messages of a packet, up to the first invalid one.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let (kind, flags) = (u16_at(bytes, 4)?, u16_at(bytes, 6)?);
        let payload = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        let interrupted = flags & NLM_F_DUMP_INTR != 0;
        Some(match kind {
            NLMSG_DONE => Message::Done { interrupted },
            NLMSG_ERROR => {
                let errno = u32_at(payload, 0)?.cast_signed();
                Message::Error(io::Error::from_raw_os_error(errno.wrapping_neg()))
            }
            _ => Message::Route {
                kind,
                interrupted,
                payload,
            },
        })
    })
}

impl Message<'_> {
    /// Returns true if the table changed during the dump.
    pub(crate) fn interrupted(&self) -> bool {
        match self {
            Message::Route { interrupted, .. } | Message::Done { interrupted } => *interrupted,
            Message::Error(_) => false,
        }
    }

    /// Returns the change that the message reports, if ferroced uses it.
    pub(crate) fn change(self) -> Option<Change> {
        let Message::Route { kind, payload, .. } = self else {
            return None;
        };
        match kind {
            libc::RTM_NEWLINK => Some(Change::Netdev(netdev(payload)?)),
            // A bridge reports a removed port by a DELLINK of family AF_BRIDGE.
            libc::RTM_DELLINK if payload.first() == Some(&0) => Some(Change::NetdevGone {
                ifindex: u32_at(payload, 4)?,
            }),
            libc::RTM_NEWADDR => {
                let (address, flags) = address(payload)?;
                Some(match flags & IFA_F_DADFAILED {
                    0 => Change::Address {
                        address,
                        tentative: is_tentative(flags),
                    },
                    // Another host has the address.
                    _ => Change::AddressGone(address),
                })
            }
            libc::RTM_DELADDR => Some(Change::AddressGone(address(payload)?.0)),
            _ => None,
        }
    }
}

/// Returns true if packets cannot be sent from an address yet, because duplicate address
/// detection has not ended.
fn is_tentative(flags: u32) -> bool {
    flags & IFA_F_TENTATIVE != 0 && flags & IFA_F_OPTIMISTIC == 0
}

/// Parses a `struct ifinfomsg`: family, pad, type (u16), index, flags, change; then
/// attributes.
fn netdev(payload: &[u8]) -> Option<Netdev> {
    // A bridge port is reported a second time, with fewer attributes.
    if payload.first() != Some(&0) {
        return None;
    }
    let flags = u32_at(payload, 8)?;
    let has = |flag: libc::c_int| flags & flag.cast_unsigned() != 0;
    let mut netdev = Netdev {
        ifindex: u32_at(payload, 4)?,
        up: has(libc::IFF_UP),
        carrier: has(libc::IFF_LOWER_UP),
        running: has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        // A member of a bond has no address of its own.
        autoconf: !has(libc::IFF_SLAVE)
            && (has(libc::IFF_LOOPBACK) || AUTOCONF.contains(&u16_at(payload, 2)?)),
        ..Netdev::default()
    };
    let (mut link, mut stacked, mut elsewhere) = (None, false, false);
    for (kind, value) in attributes(payload.get(LINK_HEADER..)?) {
        match kind {
            libc::IFLA_IFNAME => netdev.name = text(value),
            libc::IFLA_MTU => netdev.mtu = u32_at(value, 0)?,
            libc::IFLA_ADDRESS => netdev.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_MASTER => netdev.master = u32_at(value, 0),
            libc::IFLA_LINK => link = u32_at(value, 0),
            IFLA_LINK_NETNSID => elsewhere = true,
            libc::IFLA_LINKINFO => {
                stacked = attributes(value).any(|(kind, value)| {
                    kind == IFLA_INFO_KIND && STACKED.contains(&text(value).as_bytes())
                });
            }
            _ => {}
        }
    }
    netdev.lower = link.filter(|_| stacked && !elsewhere);
    Some(netdev)
}

/// Parses a `struct ifaddrmsg`: family, prefix length, flags, scope, index; then attributes.
fn address(payload: &[u8]) -> Option<(Assigned, u32)> {
    let mut flags = u32::from(*payload.get(2)?);
    let (mut local, mut peer) = (None, None);
    for (kind, value) in attributes(payload.get(ADDRESS_HEADER..)?) {
        match kind {
            // On point-to-point netdevs IFA_ADDRESS is the other end.
            libc::IFA_LOCAL => local = ip(value),
            libc::IFA_ADDRESS => peer = ip(value),
            libc::IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let address = local.or(peer)?;
    let assigned = Assigned {
        entry: Entry {
            address,
            ifindex: u32_at(payload, 4)?,
        },
        prefix_length: *payload.get(1)?,
        peer: peer.unwrap_or(address),
    };
    Some((assigned, flags))
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(|attribute| {
        let attribute = attribute.ok()?;
        // The buffer is longer than the attribute.
        let value = attribute.into_inner().get(4..attribute.length().into())?;
        Some((attribute.kind(), value))
    })
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into())
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn random_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            for message in messages(&bytes) {
                message.change();
            }
        }

        /// A valid header followed by random bytes.
        #[test]
        fn random_payload_causes_no_panic(
            kind in 16u16..24,
            payload in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut bytes = dump_request(kind);
            bytes.truncate(HEADER);
            bytes[..4].copy_from_slice(&((HEADER + payload.len()) as u32).to_ne_bytes());
            bytes.extend(payload);
            for message in messages(&bytes) {
                message.change();
            }
        }
    }
}
