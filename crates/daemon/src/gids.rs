//! The GID table of a link: addresses and their indices.
//!
//! The kernel's rules:
//!
//! * Index 0 is reserved for the link-local IPv6 address. Other addresses get indices in
//!   order of arrival; free indices are used again.
//! * An address is listed as soon as the netdev has it, also during duplicate address detection.
//!   Queue pairs, address handles and rdma_cm ids that use it wait until detection ends.
//! * An index keeps its address as long as the address exists. Ranks of an MPI job that start at
//!   different times must find the same address at an index.
//!
//! Ferroce's rules:
//!
//! * Index 1 is reserved for the netdev's first IPv4 address, because guides use `-g 1`
//!   for it. On a loopback netdev index 0 is ::1 and index 1 is 127.0.0.1.
//! * If a netdev has no address for index 0, a *substitute* appears there beside its own
//!   index: the first IPv4 address, else the first address. The substitute for index 1 is
//!   another IPv4 address. A substitute keeps its index, too: an address that arrives later
//!   gets another index, even if one is reserved for it.
//! * A netdev whose link-local address is still to come gets no substitutes. It does not run
//!   (it is down, or has no carrier), or has just started to. Index 1 has no IPv6 substitute,
//!   because a DHCP server may answer later.
//!
//! Unlike the kernel's table, this one has no entry for an address that does not exist.
//! With the kernel's default GID at index 0 programs hang.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroce_control::link::GID_TABLE_LEN;
use serde::{Deserialize, Serialize};

/// An address of a netdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) address: IpAddr,
    pub(crate) ifindex: u32,
}

/// The table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GidTable {
    /// Each address at its own index. 0 and 1 hold only addresses that they are reserved for.
    places: Vec<Option<Entry>>,
    /// The addresses that programs see at index 0 and 1: the reserved ones, or substitutes.
    #[serde(default)]
    shown: [Option<Entry>; 2],
}

/// The netdev of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Netdev {
    pub(crate) ifindex: u32,
    pub(crate) loopback: bool,
    /// True if the netdev runs, and has the addresses that the kernel gives it then.
    pub(crate) is_complete: bool,
}

impl GidTable {
    /// Updates the table. `addresses` are those of the netdev and of netdevs above it, in
    /// order of arrival.
    pub(crate) fn update(&mut self, netdev: Netdev, addresses: &[Entry]) {
        for place in &mut self.places {
            if place.is_some_and(|entry| !addresses.contains(&entry)) {
                *place = None;
            }
        }
        for shown in &mut self.shown {
            *shown = shown.filter(|entry| addresses.contains(entry));
        }
        for entry in addresses {
            if !self.places.contains(&Some(*entry)) {
                self.place(netdev, *entry);
            }
        }
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
        }
        self.show(netdev);
    }

    /// Returns the populated entries by index, with substitutes.
    pub(crate) fn entries(&self) -> Vec<(u32, Entry)> {
        let rest = self.places.iter().skip(2).copied();
        let all = self.shown.into_iter().chain(rest).zip(0..);
        all.filter_map(|(entry, index)| Some((index, entry?)))
            .collect()
    }

    /// Chooses addresses for index 0 and 1, if they have none.
    fn show(&mut self, netdev: Netdev) {
        let placed = |from: usize| self.places.iter().skip(from).flatten().copied();
        let owner = |index: usize| self.places.get(index).copied().flatten();
        // It has another index if a substitute had its own when it arrived.
        let late = |index: usize| placed(2).find(|entry| reserved(netdev, *entry) == Some(index));
        let proper = |index: usize| owner(index).or_else(|| late(index));
        let substitutes = || placed(0).filter(|_| netdev.is_complete);
        let v4 = || substitutes().find(|entry| entry.address.is_ipv4());
        let first = || substitutes().next();
        let zero = || proper(0).or_else(v4).or_else(first);
        let one = || proper(1).or_else(v4);
        self.shown = [self.shown[0].or_else(zero), self.shown[1].or_else(one)];
    }

    fn place(&mut self, netdev: Netdev, entry: Entry) {
        let is_free = |places: &[Option<Entry>], index: usize| {
            places.get(index).is_none_or(|place| place.is_none())
        };
        let index = match reserved(netdev, entry) {
            Some(index)
                if is_free(&self.places, index)
                    && self.shown[index].is_none_or(|shown| shown == entry) =>
            {
                index
            }
            _ => (2..)
                .find(|index| is_free(&self.places, *index))
                .expect("the range has no end"),
        };
        if index >= GID_TABLE_LEN as usize {
            tracing::warn!(address = %entry.address, "the GID table is full: the address gets no index");
            return;
        }
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(entry);
    }
}

/// Returns the index, 0 or 1, that is reserved for an address.
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
