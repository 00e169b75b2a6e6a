//! The GID table of a link: which address stands at which index.
//!
//! Two rules of the kernel and two of ours:
//!
//! * Index 0 belongs to the link-local IPv6 address; the others come in order of
//!   arrival, and holes are used again.
//! * An address keeps its index as long as it exists.
//! * Index 1 belongs to the netdev's first IPv4 address: that is what `-g 1` means in
//!   guides. On a loopback netdev 0 is ::1 and 1 is 127.0.0.1.
//! * Every index that people copy from guides works. So while the owner of index 0 or
//!   1 is missing, another address *stands in*: it has an index of its own
//!   elsewhere, is shown here as well, and steps back when the owner comes. For
//!   index 0 the first IPv4 address does that, else the first of all; for index 1 the
//!   first IPv4 address, else the next IPv6 one, else the one at index 0.
//!
//! Unlike the kernel's, the table has no entry for an address that does not exist: the
//! kernel's default GID is a classic of "index 0 hangs".

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroce_control::link::GID_TABLE_LEN;
use serde::{Deserialize, Serialize};

/// An address of a netdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) address: IpAddr,
    pub(crate) ifindex: u32,
}

/// Addresses and their places. Index 0 and 1 are only ever given to their owners;
/// who stands in is decided when the table is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GidTable {
    places: Vec<Option<Entry>>,
}

/// What the table belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Netdev {
    pub(crate) ifindex: u32,
    pub(crate) loopback: bool,
}

impl GidTable {
    /// Brings the table up to date with the addresses that exist, in order of
    /// arrival: those of the netdev and of netdevs above it.
    pub(crate) fn update(&mut self, netdev: Netdev, addresses: &[Entry]) {
        for place in &mut self.places {
            if place.is_some_and(|entry| !addresses.contains(&entry)) {
                *place = None;
            }
        }
        for entry in addresses {
            if !self.places.contains(&Some(*entry)) {
                self.place(netdev, *entry);
            }
        }
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
        }
    }

    /// Populated entries by index, those that stand in included.
    pub(crate) fn entries(&self) -> Vec<(u32, Entry)> {
        let placed = |from: usize| self.places.iter().skip(from).flatten().copied();
        let owner = |index: usize| self.places.get(index).copied().flatten();
        let v4 = || placed(0).find(|entry| entry.address.is_ipv4());
        let first = || placed(0).next();
        let next = || placed(2).next();
        let zero = owner(0).or_else(v4).or_else(first);
        let one = owner(1).or_else(v4).or_else(next).or_else(first);
        let rest = self.places.iter().skip(2).copied();
        let all = [zero, one].into_iter().chain(rest).zip(0..);
        all.filter_map(|(entry, index)| Some((index, entry?)))
            .collect()
    }

    fn place(&mut self, netdev: Netdev, entry: Entry) {
        let is_free = |places: &[Option<Entry>], index: usize| {
            places.get(index).is_none_or(|place| place.is_none())
        };
        let index = match reserved(netdev, entry) {
            Some(index) if is_free(&self.places, index) => index,
            _ => (2..)
                .find(|index| is_free(&self.places, *index))
                .expect("numbers do not end"),
        };
        if index >= GID_TABLE_LEN as usize {
            tracing::warn!(address = %entry.address, "the GID table is full");
            return;
        }
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(entry);
    }
}

/// The index that an address may claim below 2.
fn reserved(netdev: Netdev, entry: Entry) -> Option<usize> {
    if entry.ifindex != netdev.ifindex {
        return None;
    }
    match entry.address {
        IpAddr::V6(Ipv6Addr::LOCALHOST) if netdev.loopback => Some(0),
        IpAddr::V4(Ipv4Addr::LOCALHOST) if netdev.loopback => Some(1),
        IpAddr::V6(v6) if !netdev.loopback && v6.is_unicast_link_local() => Some(0),
        IpAddr::V4(_) if !netdev.loopback => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
