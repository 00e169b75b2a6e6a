//! The environment of the programs: a private network with two links, and an unprivileged
//! user.
//!
//! | link | netdev | GID 0 | GID 1 | GID 2 |
//! | --- | --- | --- | --- | --- |
//! | rxe0 | veth0 | link-local IPv6 | 10.77.0.1 | fd77::1 |
//! | rxe1 | lo | ::1 | 127.0.0.1 | |

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{User, now, pause};
use ferroce_testnet::netdev;

/// IPv4 address of rxe0.
pub(crate) const LINK_V4: &str = "10.77.0.1";
/// IPv6 address of rxe0.
pub(crate) const LINK_V6: &str = "fd77::1";

/// Links of type siw and their netdevs, which exist while a program needs them.
const SIW_LINKS: [(&str, &str); 2] = [("siw0", "veth0"), ("siw1", "lo")];

/// The environment of the programs.
pub(crate) struct Place {
    pub(crate) user: User,
    links: &'static [&'static str],
}

/// The wire between programs of one host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wire {
    /// Shared memory.
    Local,
    /// UDP sockets.
    Udp,
}

impl Wire {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Wire::Local => "local",
            Wire::Udp => "udp",
        }
    }
}

impl Place {
    /// Creates and enters the private network, and adds the links. `folder` is for files.
    pub(crate) fn enter(ferroce: &Path, folder: &Path) -> Result<Place> {
        let place = Place {
            user: enter_ethernet(ferroce, folder)?,
            links: &["rxe0", "rxe1"],
        };
        // perftest's files for XRC domains. It cannot open those of another user.
        for side in ["client", "server"] {
            let _not_there = fs::remove_file(format!("/tmp/xrc_domain_{side}"));
        }
        for (link, device) in [("rxe0", "veth0"), ("rxe1", "lo")] {
            place
                .user
                .ferroce(&["link", "add", link, "type", "rxe", "netdev", device])?;
        }
        Ok(place)
    }

    /// Creates and enters a private network with rxe0 on loopback, as `ferroce run` does for a
    /// user without links.
    pub(crate) fn enter_loopback(ferroce: &Path, folder: &Path) -> Result<Place> {
        let root = rustix::process::geteuid().is_root();
        ferroce_net::enter_private_network().context("cannot create a network namespace")?;
        // SPDK needs another address than 127.0.0.1.
        netdev::add_address("lo", &format!("{LINK_V4}/32"));
        let user = User::new(ferroce, folder, root)?;
        user.ferroce(&["link", "add", "rxe0", "type", "rxe", "netdev", "lo"])?;
        let links = &["rxe0"];
        Ok(Place { user, links })
    }

    /// Chooses the wire of the programs that start from now on.
    pub(crate) fn choose(&self, wire: Wire) -> Result<()> {
        let state = match wire {
            Wire::Local => "on",
            Wire::Udp => "off",
        };
        for link in self.links {
            self.user.ferroce(&["link", "set", link, "local", state])?;
        }
        Ok(())
    }

    /// Returns the bytes that programs have sent through shared memory.
    pub(crate) fn bytes_in_memory(&self) -> Result<u64> {
        let mut bytes = 0;
        for link in self.links {
            let text = self.user.ferroce(&["stat", link])?;
            let mut words = text.split_whitespace();
            words.find(|word| *word == "local_sent_bytes");
            let count = words.next().context("no count of local_sent_bytes")?;
            bytes += count.parse::<u64>()?;
        }
        Ok(bytes)
    }

    /// Creates and enters a private network with rxe0 on a veth.
    pub(crate) fn enter_ethernet(ferroce: &Path, folder: &Path) -> Result<Place> {
        let user = enter_ethernet(ferroce, folder)?;
        user.ferroce(&["link", "add", "rxe0", "type", "rxe", "netdev", "veth0"])?;
        let links = &["rxe0"];
        Ok(Place { user, links })
    }

    /// Adds links of type siw on the same netdevs.
    pub(crate) fn add_siw(&self) -> Result<()> {
        for (link, netdev) in SIW_LINKS {
            self.user
                .ferroce(&["link", "add", link, "type", "siw", "netdev", netdev])?;
        }
        Ok(())
    }

    /// Deletes the links of type siw, once no program uses them.
    pub(crate) fn delete_siw(&self, until: Instant) -> Result<()> {
        for (link, _) in SIW_LINKS {
            while let Err(error) = self.user.ferroce(&["link", "delete", link]) {
                ensure!(now() < until, "{link}: {error:#}");
                pause();
            }
        }
        Ok(())
    }

    /// Deletes the links; ferroced ends with the last one.
    pub(crate) fn leave(self) -> Result<()> {
        for link in self.links {
            self.user.ferroce(&["link", "delete", link])?;
        }
        Ok(())
    }

    /// Waits until no program has a queue pair or an rdma_cm id: a program that was killed
    /// still has its own for a moment.
    pub(crate) fn await_silence(&self, until: Instant) -> Result<()> {
        for kind in ["qp", "cm_id"] {
            while !self.user.ferroce(&["resource", "show", kind])?.is_empty() {
                ensure!(now() < until, "a program still uses the links");
                pause();
            }
        }
        Ok(())
    }
}

/// Creates and enters a private network with veth0, which has the addresses of rxe0.
fn enter_ethernet(ferroce: &Path, folder: &Path) -> Result<User> {
    let root = rustix::process::geteuid().is_root();
    ferroce_net::enter_private_network().context("cannot create a network namespace")?;
    netdev::add_veth("veth0", "veth1");
    for name in ["veth0", "veth1"] {
        netdev::set_mtu(name, 9000);
        netdev::set_up(name);
    }
    netdev::add_address("veth0", &format!("{LINK_V4}/24"));
    netdev::add_address("veth0", &format!("{LINK_V6}/64"));
    netdev::await_link_local("veth0");
    User::new(ferroce, folder, root)
}
