//! A model of the namespace's netdevs and addresses, updated from netlink messages.
//!
//! It does no input or output.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::gids::Entry;

/// A netdev.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Netdev {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    /// True if the kernel has put the netdev into operation.
    pub(crate) running: bool,
    pub(crate) loopback: bool,
    /// True if the kernel gives netdevs of this kind a link-local address, as Ethernet's, or `::1`.
    pub(crate) autoconf: bool,
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
    Address { address: Assigned, tentative: bool },
    AddressGone(Assigned),
}

/// An address as the kernel assigns it. A netdev can have an IPv4 address several times, with other prefix
/// lengths or other ends, as while an administrator corrects a netmask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) entry: Entry,
    pub(crate) prefix_length: u8,
    /// The other end of a point-to-point netdev, else the address itself.
    pub(crate) peer: IpAddr,
}

/// All netdevs and their addresses.
#[derive(Debug, Default)]
pub(crate) struct Netdevs {
    netdevs: BTreeMap<u32, Netdev>,
    /// In order of arrival.
    addresses: Vec<Address>,
    /// Netdevs that run, and whose link-local address has not come in time: the administrator deleted
    /// it, or another host has it.
    without_link_local: BTreeSet<u32>,
}

/// An address of a netdev, with its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address {
    assigned: Assigned,
    /// True during duplicate address detection: the kernel sends no packets from the address.
    tentative: bool,
}

impl Netdevs {
    /// Applies a change. Returns true if the model changed.
    pub(crate) fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Netdev(netdev) => {
                if !netdev.running {
                    self.without_link_local.remove(&netdev.ifindex);
                }
                let old = self.netdevs.insert(netdev.ifindex, netdev.clone());
                old.as_ref() != Some(&netdev)
            }
            Change::NetdevGone { ifindex } => {
                self.addresses
                    .retain(|a| a.assigned.entry.ifindex != ifindex);
                self.without_link_local.remove(&ifindex);
                self.netdevs.remove(&ifindex).is_some()
            }
            Change::Address {
                address: assigned,
                tentative,
            } => {
                let address = Address {
                    assigned,
                    tentative,
                };
                if is_automatic(assigned.entry) {
                    self.without_link_local.remove(&assigned.entry.ifindex);
                }
                let mut addresses = self.addresses.iter_mut();
                match addresses.find(|a| a.assigned == assigned) {
                    Some(known) => std::mem::replace(known, address) != address,
                    None => {
                        self.addresses.push(address);
                        true
                    }
                }
            }
            Change::AddressGone(assigned) => {
                let before = self.addresses.len();
                self.addresses.retain(|a| a.assigned != assigned);
                self.addresses.len() != before
            }
        }
    }

    /// Replaces the contents by those of a fresh dump. Known addresses keep their order of
    /// arrival.
    pub(crate) fn replace(&mut self, fresh: Netdevs) {
        self.addresses
            .retain(|a| fresh.addresses.iter().any(|b| b.assigned == a.assigned));
        for Address {
            assigned: address,
            tentative,
        } in fresh.addresses
        {
            self.apply(Change::Address { address, tentative });
        }
        self.netdevs = fresh.netdevs;
        self.without_link_local.extend(fresh.without_link_local);
        let runs = |ifindex: &u32| self.netdevs.get(ifindex).is_some_and(|n| n.running);
        self.without_link_local.retain(runs);
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
    /// netdevs stacked above it, as in the kernel. Each is listed once.
    pub(crate) fn addresses_of(&self, ifindex: u32) -> Vec<Entry> {
        let stack = self.stack(ifindex);
        let all = || self.addresses.iter().map(|a| a.assigned.entry);
        let own = all().filter(|e| e.ifindex == ifindex);
        let above = all().filter(|e| e.ifindex != ifindex && stack.contains(&e.ifindex));
        let mut entries = Vec::new();
        for entry in own.chain(above) {
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        entries
    }

    /// Returns true during duplicate address detection of an address.
    pub(crate) fn is_tentative(&self, entry: Entry) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|a| a.assigned.entry == entry && a.tentative)
    }

    /// Returns true if a netdev runs and has no link-local address, and the kernel may still
    /// give it one. A message about a netdev that starts to run can arrive before the kernel has
    /// added the address. The settings of the netdev can forbid it ([`crate::ipv6_settings`]).
    pub(crate) fn lacks_link_local(&self, netdev: &Netdev) -> bool {
        let has = |a: &Address| {
            let entry = a.assigned.entry;
            entry.ifindex == netdev.ifindex && is_automatic(entry)
        };
        netdev.running
            && netdev.autoconf
            && !self.without_link_local.contains(&netdev.ifindex)
            && !self.addresses.iter().any(has)
    }

    /// Expects no link-local address any more on netdevs that lack one, until they start again.
    pub(crate) fn give_up_link_local(&mut self) {
        let netdevs = self.netdevs.values();
        let lacking = netdevs.filter(|netdev| self.lacks_link_local(netdev));
        let lacking: Vec<u32> = lacking.map(|netdev| netdev.ifindex).collect();
        self.without_link_local.extend(lacking);
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
}

/// Returns true for addresses that the kernel adds when a netdev starts.
fn is_automatic(entry: Entry) -> bool {
    matches!(entry.address, IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_loopback())
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

    fn assigned(ifindex: u32, text: &str, prefix_length: u8) -> Assigned {
        let entry = entry(ifindex, text);
        Assigned {
            entry,
            prefix_length,
            peer: entry.address,
        }
    }

    fn address(ifindex: u32, text: &str) -> Change {
        Change::Address {
            address: assigned(ifindex, text, 64),
            tentative: false,
        }
    }

    fn gone(ifindex: u32, text: &str) -> Change {
        Change::AddressGone(assigned(ifindex, text, 64))
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
        assert!(all.apply(gone(1, "::1")));
        assert!(!all.apply(gone(1, "::1")));
    }

    /// An administrator corrects a netmask: the address is there all the time.
    #[test]
    fn address_with_two_prefixes_stays_when_one_is_deleted() {
        let mut all = Netdevs::default();
        let with_prefix = |length| assigned(2, "10.0.0.1", length);
        for length in [24, 16] {
            assert!(all.apply(Change::Address {
                address: with_prefix(length),
                tentative: false,
            }));
        }
        let listed = [entry(2, "10.0.0.1")];
        assert_eq!(all.addresses_of(2), listed, "once");
        assert!(all.apply(Change::AddressGone(with_prefix(24))));
        assert_eq!(all.addresses_of(2), listed);
        assert!(all.apply(Change::AddressGone(with_prefix(16))));
        assert_eq!(all.addresses_of(2), []);
    }

    #[test]
    fn tentative_address_is_listed_before_detection_ends() {
        let mut all = Netdevs::default();
        let (link_local, tentative) = (entry(2, "fe80::1"), |tentative| Change::Address {
            address: assigned(2, "fe80::1", 64),
            tentative,
        });
        assert!(all.apply(tentative(true)));
        assert!(!all.apply(tentative(true)));
        assert_eq!(all.addresses_of(2), [link_local]);
        assert!(all.is_tentative(link_local));
        assert!(all.apply(tentative(false)), "its state has changed");
        assert_eq!(all.addresses_of(2), [link_local]);
        assert!(!all.is_tentative(link_local));
    }

    fn ethernet(running: bool) -> Netdev {
        Netdev {
            running,
            autoconf: true,
            ..netdev(2, "eth0")
        }
    }

    #[test]
    fn running_netdev_lacks_its_link_local_address_until_it_arrives() {
        let mut all = Netdevs::default();
        let (down, up) = (ethernet(false), ethernet(true));
        all.apply(Change::Netdev(down.clone()));
        assert!(!all.lacks_link_local(&down));
        all.apply(Change::Netdev(up.clone()));
        all.apply(address(2, "10.0.0.1"));
        all.apply(address(3, "fe80::1"));
        assert!(all.lacks_link_local(&up));
        all.apply(address(2, "fe80::1"));
        assert!(!all.lacks_link_local(&up));

        let tunnel = Netdev {
            ifindex: 7,
            autoconf: false,
            ..ethernet(true)
        };
        assert!(!all.lacks_link_local(&tunnel));
    }

    #[test]
    fn missing_link_local_address_is_expected_again_when_the_netdev_starts_again() {
        let mut all = Netdevs::default();
        let (down, up) = (ethernet(false), ethernet(true));
        all.apply(Change::Netdev(up.clone()));
        all.apply(address(2, "fe80::1"));
        assert!(all.apply(gone(2, "fe80::1")));
        assert!(all.lacks_link_local(&up), "the kernel may choose another");
        all.give_up_link_local();
        assert!(!all.lacks_link_local(&up));
        let mut fresh = Netdevs::default();
        fresh.apply(Change::Netdev(up.clone()));
        all.replace(fresh);
        assert!(!all.lacks_link_local(&up), "as before");

        all.apply(Change::Netdev(down));
        all.apply(Change::Netdev(up.clone()));
        assert!(all.lacks_link_local(&up));
        all.give_up_link_local();
        all.apply(address(2, "fe80::2"));
        all.apply(gone(2, "fe80::2"));
        assert!(all.lacks_link_local(&up), "it came all the same");
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
