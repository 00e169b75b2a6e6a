//! A second network namespace, connected by a veth pair.

use std::os::fd::OwnedFd;

use ferroce_testnet::{deadline, namespace, netdev};

/// Address of this end.
pub(crate) const HERE: &str = "10.0.0.1";
/// Address of the other end.
pub(crate) const THERE: &str = "10.0.0.2";

/// The veth pair: netdev `near` here, `far` there.
pub(crate) struct Cable {
    there: OwnedFd,
}

impl Cable {
    pub(crate) fn lay() -> Cable {
        let there = namespace::another().expect("a namespace");
        netdev::add_veth("near", "far");
        netdev::move_to("far", &there);
        netdev::add_address("near", "10.0.0.1/24");
        netdev::set_up("near");
        let cable = Cable { there };
        cable.there(|| {
            netdev::add_address("far", "10.0.0.2/24");
            netdev::set_up("far");
        });
        cable
    }

    /// Waits until both ends have link-local addresses that can be used.
    pub(crate) fn settle(&self) {
        settled("near");
        self.there(|| settled("far"));
    }

    /// Runs `work` in the other namespace.
    pub(crate) fn there<T>(&self, work: impl FnOnce() -> T) -> T {
        namespace::within(&self.there, work).expect("there and back")
    }
}

/// Waits until the addresses of a netdev are no longer tentative. Lines of the table end with
/// the flags and the name.
fn settled(name: &str) {
    const TENTATIVE: u32 = 0x40;
    deadline::until("a link-local address", || {
        let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
        table.lines().any(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [address, _, _, _, flags, netdev] = fields[..] else {
                return false;
            };
            let flags = u32::from_str_radix(flags, 16).unwrap_or(TENTATIVE);
            address.starts_with("fe80") && netdev == name && flags & TENTATIVE == 0
        })
    });
}
