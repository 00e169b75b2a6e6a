//! A model of the namespace's netdevs and addresses, updated from netlink messages.
//!
//! It does no input or output.

use std::collections::BTreeMap;

use crate::gids::Entry;

/// A netdev.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Netdev {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) loopback: bool,
    pub(crate) mtu: u32,
    pub(crate) mac: [u8; 6],
    /// The netdev below this one, as of a VLAN.
    pub(crate) lower: Option<u32>,
    /// The bond, team or bridge that contains this one.
    pub(crate) master: Option<u32>,
}

/// A change that the kernel reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Netdev(Netdev),
    NetdevGone { ifindex: u32 },
    Address { entry: Entry, usable: bool },
    AddressGone(Entry),
}

/// All netdevs and their addresses.
#[derive(Debug, Default)]
pub(crate) struct Netdevs {
    netdevs: BTreeMap<u32, Netdev>,
    /// In order of arrival.
    addresses: Vec<Entry>,
}

impl Netdevs {
    /// Applies a change. Returns true if the model changed.
    pub(crate) fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Netdev(netdev) => {
                let old = self.netdevs.insert(netdev.ifindex, netdev.clone());
                old.as_ref() != Some(&netdev)
            }
            Change::NetdevGone { ifindex } => {
                self.addresses.retain(|entry| entry.ifindex != ifindex);
                self.netdevs.remove(&ifindex).is_some()
            }
            Change::Address { entry, usable } => {
                if !usable {
                    return self.forget(entry);
                }
                let new = !self.addresses.contains(&entry);
                if new {
                    self.addresses.push(entry);
                }
                new
            }
            Change::AddressGone(entry) => self.forget(entry),
        }
    }

    /// Replaces the contents by those of a fresh dump. Known addresses keep their order of
    /// arrival.
    pub(crate) fn replace(&mut self, fresh: Netdevs) {
        self.addresses
            .retain(|entry| fresh.addresses.contains(entry));
        for entry in fresh.addresses {
            if !self.addresses.contains(&entry) {
                self.addresses.push(entry);
            }
        }
        self.netdevs = fresh.netdevs;
    }

    pub(crate) fn get(&self, ifindex: u32) -> Option<&Netdev> {
        self.netdevs.get(&ifindex)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Netdev> {
        self.netdevs.values()
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Netdev> {
        self.netdevs.values().find(|netdev| netdev.name == name)
    }

    /// Returns all names.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.netdevs.values().map(|n| n.name.as_str()).collect()
    }

    /// Returns the addresses for a link's GID table: those of the netdev, then those of all
    /// netdevs stacked above it, as in the kernel.
    pub(crate) fn addresses_of(&self, ifindex: u32) -> Vec<Entry> {
        let stack = self.stack(ifindex);
        let own = self.addresses.iter().filter(|e| e.ifindex == ifindex);
        let above = self
            .addresses
            .iter()
            .filter(|e| e.ifindex != ifindex && stack.contains(&e.ifindex));
        own.chain(above).copied().collect()
    }

    /// Returns the netdev and all netdevs above it.
    fn stack(&self, ifindex: u32) -> Vec<u32> {
        let mut stack = vec![ifindex];
        let mut next = 0;
        while let Some(&below) = stack.get(next) {
            next += 1;
            let master = self.netdevs.get(&below).and_then(|n| n.master);
            let above = self.netdevs.values().filter(|n| n.lower == Some(below));
            for index in master.into_iter().chain(above.map(|n| n.ifindex)) {
                if !stack.contains(&index) {
                    stack.push(index);
                }
            }
        }
        stack
    }

    fn forget(&mut self, entry: Entry) -> bool {
        let before = self.addresses.len();
        self.addresses.retain(|e| *e != entry);
        self.addresses.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(ifindex: u32, name: &str) -> Netdev {
        Netdev {
            ifindex,
            name: name.into(),
            ..Netdev::default()
        }
    }

    fn entry(ifindex: u32, address: &str) -> Entry {
        Entry {
            address: address.parse().unwrap(),
            ifindex,
        }
    }

    fn address(ifindex: u32, text: &str) -> Change {
        Change::Address {
            entry: entry(ifindex, text),
            usable: true,
        }
    }

    #[test]
    fn addresses_include_those_of_netdevs_above() {
        let mut all = Netdevs::default();
        let vlan = Netdev {
            lower: Some(2),
            ..netdev(3, "eth0.5")
        };
        let macvlan_on_vlan = Netdev {
            lower: Some(3),
            ..netdev(4, "mac0")
        };
        let slave = Netdev {
            master: Some(9),
            ..netdev(2, "eth0")
        };
        for n in [
            netdev(9, "bond0"),
            slave,
            vlan,
            macvlan_on_vlan,
            netdev(5, "eth1"),
        ] {
            assert!(all.apply(Change::Netdev(n)));
        }
        for (index, text) in [
            (4, "10.4.0.1"),
            (5, "10.5.0.1"),
            (9, "10.9.0.1"),
            (2, "10.2.0.1"),
        ] {
            assert!(all.apply(address(index, text)));
        }
        let of_eth0: Vec<u32> = all.addresses_of(2).iter().map(|e| e.ifindex).collect();
        assert_eq!(of_eth0, [2, 4, 9], "its own first, then by arrival");
        assert_eq!(all.addresses_of(5), [entry(5, "10.5.0.1")]);
    }

    #[test]
    fn repeated_change_changes_nothing() {
        let mut all = Netdevs::default();
        assert!(all.apply(Change::Netdev(netdev(1, "lo"))));
        assert!(!all.apply(Change::Netdev(netdev(1, "lo"))));
        assert!(all.apply(address(1, "::1")));
        assert!(!all.apply(address(1, "::1")));
        let failed = Change::Address {
            entry: entry(1, "::1"),
            usable: false,
        };
        assert!(
            all.apply(failed.clone()),
            "an address can turn out unusable"
        );
        assert!(!all.apply(failed));
        assert!(!all.apply(Change::AddressGone(entry(1, "::1"))));
    }

    #[test]
    fn fresh_dump_keeps_the_order_of_arrival() {
        let (mut known, mut fresh) = (Netdevs::default(), Netdevs::default());
        for a in ["fd00::2", "fd00::1", "fd00::9"] {
            known.apply(address(1, a));
        }
        for a in ["fd00::3", "fd00::1", "fd00::2"] {
            fresh.apply(address(1, a));
        }
        known.replace(fresh);
        let order = ["fd00::2", "fd00::1", "fd00::3"].map(|a| entry(1, a));
        assert_eq!(known.addresses_of(1), order);
    }

    #[test]
    fn removed_netdev_removes_its_addresses() {
        let mut all = Netdevs::default();
        all.apply(Change::Netdev(netdev(2, "eth0")));
        all.apply(address(2, "10.0.0.1"));
        assert!(all.apply(Change::NetdevGone { ifindex: 2 }));
        assert!(all.by_name("eth0").is_none());
        assert_eq!(all.addresses_of(2), []);
    }
}
