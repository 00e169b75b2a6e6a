//! The order of the table, and that addresses keep their indices.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ETH: Netdev = Netdev {
    ifindex: 2,
    loopback: false,
    is_complete: true,
};
const LO: Netdev = Netdev {
    ifindex: 1,
    loopback: true,
    is_complete: true,
};

fn on(ifindex: u32, address: &str) -> Entry {
    Entry {
        address: address.parse().unwrap(),
        ifindex,
    }
}

fn updated(table: &mut GidTable, netdev: Netdev, addresses: &[&str]) -> Vec<String> {
    let entries: Vec<_> = addresses.iter().map(|a| on(netdev.ifindex, a)).collect();
    table.update(netdev, &entries);
    shown(table)
}

fn shown(table: &GidTable) -> Vec<String> {
    let entries = table.entries().into_iter();
    entries
        .map(|(index, entry)| format!("{index} {}", entry.address))
        .collect()
}

fn fresh(netdev: Netdev, addresses: &[&str]) -> Vec<String> {
    updated(&mut GidTable::default(), netdev, addresses)
}

#[test]
fn link_local_is_first_and_ipv4_second() {
    let expected = ["0 fe80::1", "1 10.0.0.1", "2 10.0.0.2", "3 2001:db8::1"];
    let kernels_order = ["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"];
    assert_eq!(fresh(ETH, &kernels_order), expected);
}

#[test]
fn loopback_has_ipv6_at_0_and_ipv4_at_1() {
    assert_eq!(fresh(LO, &["127.0.0.1", "::1"]), ["0 ::1", "1 127.0.0.1"]);
    let more = fresh(LO, &["10.9.9.9", "127.0.0.1", "::1", "fd00::1"]);
    assert_eq!(more, ["0 ::1", "1 127.0.0.1", "2 10.9.9.9", "3 fd00::1"]);
    let v4_only = fresh(LO, &["127.0.0.1"]);
    assert_eq!(v4_only, ["0 127.0.0.1", "1 127.0.0.1"]);
}

#[test]
fn without_ipv6_both_indices_are_the_ipv4_address() {
    assert_eq!(fresh(ETH, &["10.0.0.1"]), ["0 10.0.0.1", "1 10.0.0.1"]);
}

#[test]
fn without_ipv4_index_1_is_free() {
    assert_eq!(fresh(ETH, &["fe80::1"]), ["0 fe80::1"]);
    let two = fresh(ETH, &["2001:db8::1", "fe80::1"]);
    assert_eq!(two, ["0 fe80::1", "2 2001:db8::1"]);
    let global = fresh(ETH, &["2001:db8::1"]);
    assert_eq!(global, ["0 2001:db8::1", "2 2001:db8::1"]);
}

#[test]
fn substitute_keeps_its_index() {
    let mut table = GidTable::default();
    let substitute = updated(&mut table, ETH, &["10.0.0.1"]);
    assert_eq!(substitute, ["0 10.0.0.1", "1 10.0.0.1"]);
    let late_link_local = updated(&mut table, ETH, &["10.0.0.1", "fe80::1"]);
    let expected = ["0 10.0.0.1", "1 10.0.0.1", "2 fe80::1"];
    assert_eq!(late_link_local, expected);
    let more = updated(&mut table, ETH, &["10.0.0.1", "fe80::1", "fd00::1"]);
    assert_eq!(more[..3], expected);
    let gone = updated(&mut table, ETH, &["fe80::1", "fd00::1"]);
    assert_eq!(gone, ["0 fe80::1", "2 fe80::1", "3 fd00::1"]);
}

#[test]
fn late_ipv4_address_gets_index_1() {
    let mut table = GidTable::default();
    updated(&mut table, ETH, &["fe80::1", "fd00::1"]);
    let late_ipv4 = updated(&mut table, ETH, &["fe80::1", "fd00::1", "10.0.0.1"]);
    assert_eq!(late_ipv4, ["0 fe80::1", "1 10.0.0.1", "2 fd00::1"]);
}

#[test]
fn netdev_that_does_not_run_gets_no_substitute() {
    let down = Netdev {
        is_complete: false,
        ..ETH
    };
    let mut table = GidTable::default();
    let added = updated(&mut table, down, &["10.0.0.1"]);
    assert_eq!(added, ["1 10.0.0.1"], "the link-local address is to come");
    let both = ["0 fe80::1", "1 10.0.0.1"];
    let up = updated(&mut table, ETH, &["10.0.0.1", "fe80::1"]);
    assert_eq!(up, both);
    assert_eq!(updated(&mut table, down, &["10.0.0.1"]), ["1 10.0.0.1"]);
    let up_again = updated(&mut table, ETH, &["10.0.0.1", "fe80::1"]);
    assert_eq!(up_again, both);

    let mut table = GidTable::default();
    let without_ipv6 = ["0 10.0.0.1", "1 10.0.0.1"];
    assert_eq!(updated(&mut table, ETH, &["10.0.0.1"]), without_ipv6);
    let down = updated(&mut table, down, &["10.0.0.1"]);
    assert_eq!(down, without_ipv6, "an index keeps its address");
}

#[test]
fn substitute_survives_a_restart() {
    let mut table = GidTable::default();
    let before = updated(&mut table, ETH, &["10.0.0.1"]);
    let saved = serde_json::to_string(&table).unwrap();
    let mut table: GidTable = serde_json::from_str(&saved).unwrap();
    let after = updated(&mut table, ETH, &["fe80::1", "10.0.0.1"]);
    assert_eq!(after[..2], before);
}

#[test]
fn addresses_keep_their_indices_and_free_ones_are_reused() {
    let mut table = GidTable::default();
    updated(
        &mut table,
        ETH,
        &["10.0.0.1", "10.0.0.2", "10.0.0.3", "fe80::1"],
    );
    let removed = updated(&mut table, ETH, &["10.0.0.1", "10.0.0.3", "fe80::1"]);
    assert_eq!(removed, ["0 fe80::1", "1 10.0.0.1", "3 10.0.0.3"]);
    let added = updated(
        &mut table,
        ETH,
        &["10.0.0.1", "10.0.0.3", "fe80::1", "10.0.0.9"],
    );
    assert_eq!(
        added,
        ["0 fe80::1", "1 10.0.0.1", "2 10.0.0.9", "3 10.0.0.3"]
    );
    let first_gone = updated(&mut table, ETH, &["10.0.0.3", "fe80::1", "10.0.0.9"]);
    assert_eq!(
        first_gone,
        ["0 fe80::1", "1 10.0.0.9", "2 10.0.0.9", "3 10.0.0.3"]
    );
    assert_eq!(updated(&mut table, ETH, &[]), [""; 0]);
}

#[test]
fn netdevs_above_get_no_reserved_index() {
    let mut table = GidTable::default();
    let vlan = 7;
    table.update(ETH, &[on(vlan, "10.1.0.1"), on(vlan, "fe80::1")]);
    assert_eq!(
        shown(&table),
        ["0 10.1.0.1", "1 10.1.0.1", "2 10.1.0.1", "3 fe80::1"]
    );
    let all = [
        on(vlan, "10.1.0.1"),
        on(vlan, "fe80::1"),
        on(2, "fe80::1"),
        on(2, "10.0.0.1"),
    ];
    let mut table = GidTable::default();
    table.update(ETH, &all);
    assert_eq!(
        shown(&table),
        ["0 fe80::1", "1 10.0.0.1", "2 10.1.0.1", "3 fe80::1"]
    );
    assert_eq!(table.entries()[0].1.ifindex, 2);
    assert_eq!(table.entries()[3].1.ifindex, vlan);
}

#[test]
fn full_table_ignores_addresses() {
    let many: Vec<_> = (0..2000u32)
        .map(|n| on(2, &Ipv4Addr::from(0x0A00_0000 + n).to_string()))
        .collect();
    let mut table = GidTable::default();
    table.update(ETH, &many);
    let entries = table.entries();
    assert_eq!(entries.len(), 1024, "index 0 is stood in for");
    assert_eq!(entries.last().unwrap().0, 1023);
}

/// Returns the index of each address, without substitutes.
fn own_indices(table: &GidTable) -> BTreeMap<String, usize> {
    let places = table.places.iter().enumerate();
    places
        .filter_map(|(index, entry)| Some((format!("{:?}", (*entry)?), index)))
        .collect()
}

proptest! {
    #[test]
    fn indices_are_stable_for_any_changes(steps in prop::collection::vec((0usize..12, any::<bool>(), any::<bool>()), 0..60)) {
        let pool = [
            "10.0.0.1", "10.0.0.2", "10.0.0.3", "fe80::1", "fe80::2", "2001:db8::1",
            "2001:db8::2", "fd00::1", "192.168.1.1", "10.0.0.4", "fe80::3", "127.0.0.1",
        ];
        let mut present: Vec<Entry> = Vec::new();
        let mut table = GidTable::default();
        for (which, add, is_complete) in steps {
            let entry = on(2, pool[which]);
            let before = own_indices(&table);
            let shown = table.entries();
            present.retain(|e| *e != entry);
            if add {
                present.push(entry);
            }
            table.update(Netdev { is_complete, ..ETH }, &present);
            let kept = shown.iter().filter(|(_, entry)| present.contains(entry));
            for kept in kept {
                prop_assert!(table.entries().contains(kept), "{:?} moved", kept);
            }
            let after = own_indices(&table);
            for (address, index) in &before {
                if let Some(now) = after.get(address) {
                    prop_assert_eq!(now, index, "{} moved", address);
                }
            }
            prop_assert_eq!(after.len(), present.len(), "each has a place");
            let entries = table.entries();
            prop_assert!(entries.iter().all(|(_, e)| present.contains(e)), "all work");
            let has = |index| entries.iter().any(|(i, _)| *i == index);
            prop_assert!(present.is_empty() || !is_complete || has(0), "index 0 works");
            let has_ipv4 = present.iter().any(|e| e.address.is_ipv4());
            prop_assert!(!has_ipv4 || has(1), "guides work");
            let mut sorted: Vec<u32> = entries.iter().map(|(i, _)| *i).collect();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), entries.len());
        }
    }
}
