//! Addresses of this host, for datagrams that arrive through shared memory.
//!
//! A connected queue pair knows the addresses of its peer. A UD queue pair shows the addresses
//! of a datagram to the program, which answers to them. On UDP the kernel vouches that the
//! source of a packet of this host is one of its addresses. In memory the other process writes
//! the addresses, and may write anything. So the receiver asks the kernel, once per pair of
//! addresses.

use std::net::IpAddr;

use ferroce_wire::is_datagram;

use crate::host::has_address;
use crate::incoming::IncomingRun;

/// Tells whether an address is one of this host.
pub trait HostLookup {
    /// Returns true if this host has the address.
    fn is_here(&self, address: IpAddr) -> bool;
}

/// The kernel, which knows the addresses of this host.
#[derive(Copy, Clone, Debug)]
pub(super) struct Kernel {
    /// Link-local addresses belong to this netdev.
    pub(super) ifindex: u32,
}

impl HostLookup for Kernel {
    fn is_here(&self, address: IpAddr) -> bool {
        has_address(address, self.ifindex)
    }
}

/// Most pairs of addresses that are remembered.
const MOST: usize = 16;

/// Pairs of source and destination, and whether both are addresses of this host.
#[derive(Debug)]
pub(super) struct HostAddresses<L> {
    lookup: L,
    known: Vec<((IpAddr, IpAddr), bool)>,
    /// The place of the next pair, once all are in use.
    next: usize,
}

impl<L: HostLookup> HostAddresses<L> {
    pub(super) fn new(lookup: L) -> HostAddresses<L> {
        HostAddresses {
            lookup,
            known: Vec::new(),
            next: 0,
        }
    }

    /// Returns true if all packets of a run may be received: both addresses are those of this
    /// host, or no packet is a datagram.
    #[inline]
    pub(super) fn allow(&mut self, run: &IncomingRun<'_>) -> bool {
        let datagram = &run.merged.datagram;
        let pair = (datagram.source, datagram.destination);
        match self.known.iter().find(|(known, _)| *known == pair) {
            Some((_, true)) => true,
            // The host may have got the address since then.
            Some((_, false)) => {
                let mut packets = datagram.payload.chunks(run.segment);
                !packets.any(is_datagram) || self.look_up(pair)
            }
            None => {
                let mut packets = datagram.payload.chunks(run.segment);
                self.look_up(pair) || !packets.any(is_datagram)
            }
        }
    }

    /// Asks whether the host has both addresses.
    #[cold]
    fn look_up(&mut self, pair: (IpAddr, IpAddr)) -> bool {
        let (source, destination) = pair;
        let are_here = self.lookup.is_here(source)
            && (source == destination || self.lookup.is_here(destination));
        if let Some((_, known)) = self.known.iter_mut().find(|(known, _)| *known == pair) {
            *known = are_here;
        } else if self.known.len() < MOST {
            self.known.push((pair, are_here));
        } else {
            self.known[self.next] = (pair, are_here);
            self.next = (self.next + 1) % MOST;
        }
        are_here
    }
}

#[cfg(test)]
mod tests {
    use ferroce_roce::{Datagram, IpId};
    use ferroce_testnet::isolated;

    use super::*;
    use crate::incoming::Incoming;

    const HERE: &str = "127.0.0.1";
    /// An address for documentation, which a new network namespace does not have.
    const ELSEWHERE: &str = "192.0.2.1";

    fn run<'a>(source: &str, destination: &str, payload: &'a [u8]) -> IncomingRun<'a> {
        IncomingRun {
            merged: Incoming {
                datagram: Datagram {
                    source: source.parse().unwrap(),
                    destination: destination.parse().unwrap(),
                    source_port: 7,
                    traffic_class: 0,
                    hop_limit: 64,
                    ip_id: IpId::InMemory,
                    payload,
                },
                ifindex: 0,
            },
            segment: 4,
        }
    }

    /// The first bytes of four packets: RC, and one of UD among them.
    const CONNECTED: [u8; 16] = [0; 16];
    const MIXED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0x64, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn datagrams_with_addresses_of_other_hosts_are_refused() {
        let name =
            "local::host_addresses::tests::datagrams_with_addresses_of_other_hosts_are_refused";
        isolated(name, || {
            let mut addresses = HostAddresses::new(Kernel { ifindex: 1 });
            for _ in 0..3 {
                assert!(addresses.allow(&run(HERE, HERE, &MIXED)));
                assert!(addresses.allow(&run("::1", "::1", &MIXED)));
                for (source, destination) in [
                    (ELSEWHERE, HERE),
                    (HERE, ELSEWHERE),
                    (ELSEWHERE, ELSEWHERE),
                    ("2001:db8::1", "::1"),
                    (HERE, "224.0.0.1"),
                    ("::1", "ff02::1"),
                ] {
                    assert!(
                        !addresses.allow(&run(source, destination, &MIXED)),
                        "{source} to {destination}"
                    );
                    assert!(
                        addresses.allow(&run(source, destination, &CONNECTED)),
                        "the engine compares the addresses of a connection"
                    );
                }
            }
        });
    }

    #[test]
    fn hostile_process_cannot_fill_the_memory() {
        let name = "local::host_addresses::tests::hostile_process_cannot_fill_the_memory";
        isolated(name, || {
            let mut addresses = HostAddresses::new(Kernel { ifindex: 1 });
            for number in 0..100 {
                let source = format!("192.0.2.{number}");
                assert!(!addresses.allow(&run(&source, HERE, &MIXED)));
            }
            assert_eq!(addresses.known.len(), MOST);
            assert!(addresses.allow(&run(HERE, HERE, &MIXED)));
        });
    }
}
