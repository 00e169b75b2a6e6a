//! The netdevs of the network namespace and their addresses, as netlink tells it.
//!
//! A model without any input or output: changes come in, questions are answered.

use std::collections::BTreeMap;

use crate::gids::Entry;

/// What there is to know about a netdev.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Netdev {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) loopback: bool,
    pub(crate) mtu: u32,
    pub(crate) mac: [u8; 6],
    /// The netdev that this one is stacked on, as a VLAN is.
    pub(crate) lower: Option<u32>,
    /// The bond, team or bridge that this one is a part of.
    pub(crate) master: Option<u32>,
}

/// News.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Netdev(Netdev),
    NetdevGone { ifindex: u32 },
    Address { entry: Entry, usable: bool },
    AddressGone(Entry),
}

/// All netdevs.
#[derive(Debug, Default)]
pub(crate) struct Netdevs {
    netdevs: BTreeMap<u32, Netdev>,
    /// In order of arrival.
    addresses: Vec<Entry>,
}

impl Netdevs {
    /// Takes news in. Whether anything is different now.
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

    /// Takes over what a fresh look has found. Addresses known before keep their
    /// order of arrival.
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

    /// The names of all, for people.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.netdevs.values().map(|n| n.name.as_str()).collect()
    }

    /// The addresses that belong into a link's GID table, in order: those of the
    /// netdev and of all that are stacked on top of it, as in the kernel.
    pub(crate) fn addresses_of(&self, ifindex: u32) -> Vec<Entry> {
        let stack = self.stack(ifindex);
        let own = self.addresses.iter().filter(|e| e.ifindex == ifindex);
        let above = self
            .addresses
            .iter()
            .filter(|e| e.ifindex != ifindex && stack.contains(&e.ifindex));
        own.chain(above).copied().collect()
    }

    /// The netdev and everything above it.
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
    fn netdevs_on_top_count_and_others_do_not() {
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
    fn what_is_not_new_is_no_change() {
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
    fn a_fresh_look_keeps_the_order_of_arrival() {
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
    fn a_netdev_takes_its_addresses_along() {
        let mut all = Netdevs::default();
        all.apply(Change::Netdev(netdev(2, "eth0")));
        all.apply(address(2, "10.0.0.1"));
        assert!(all.apply(Change::NetdevGone { ifindex: 2 }));
        assert!(all.by_name("eth0").is_none());
        assert_eq!(all.addresses_of(2), []);
    }
}
