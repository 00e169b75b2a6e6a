//! Ownership of ports, connections and SIDR requests: one connection manager for each link,
//! the ports of the network namespace, and the programs that use them.
//!
//! This module is sans-IO. Calls of programs, MADs, changes of links and time go in; MADs and
//! events come out of [`Connections::next_output`]. The objects of a program belong to its
//! client connection and end with it.

mod calls;
mod events;
mod listening;
mod objects;
mod owned;
mod program;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ferroce_cm::ports::PortTable;
use ferroce_cm::{Address, Cm, Config, ConnId, Ignored, ListenerId, SidrId, Time, Transmit};
use ferroce_control::{CmEvent, CmPort, LinkInfo};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::client::ClientId;
pub(crate) use calls::Caller;
pub(crate) use objects::CmObject;
use program::Program;

/// The connection managers of all links.
pub(crate) struct Connections {
    rng: ChaCha20Rng,
    ports: PortTable,
    links: BTreeMap<u32, LinkSide>,
    programs: BTreeMap<ClientId, Program>,
    out: VecDeque<Output>,
}

/// An output of the connection managers.
#[derive(Debug)]
pub(crate) enum Output {
    /// A MAD to send.
    Send {
        /// Index of the link.
        link: u32,
        /// Interface index of the netdev that has the source address.
        netdev: u32,
        transmit: Transmit,
    },
    /// An event for a program.
    Tell { client: ClientId, event: CmEvent },
}

/// One link, with the owners of its objects.
struct LinkSide {
    cm: Cm,
    /// Addresses of the link, with the interface indices of their netdevs.
    addresses: Vec<(IpAddr, u32)>,
    connections: BTreeMap<ConnId, Owned>,
    sidr_requests: BTreeMap<SidrId, Owned>,
    listeners: BTreeMap<ListenerId, (ClientId, CmPort)>,
}

/// Owner of a connection or SIDR request.
#[derive(Debug, Clone, Copy)]
struct Owned {
    client: ClientId,
    /// Port at which the request arrived; None once the program has taken it.
    waits_at: Option<CmPort>,
}

impl Connections {
    /// Creates connection managers without links. The seed must be unpredictable.
    pub(crate) fn new(ephemeral: RangeInclusive<u16>, seed: [u8; 32]) -> Connections {
        Connections {
            rng: ChaCha20Rng::from_seed(seed),
            ports: PortTable::new(ephemeral),
            links: BTreeMap::new(),
            programs: BTreeMap::new(),
            out: VecDeque::new(),
        }
    }

    /// Adds or updates a link. Ports with a wildcard address listen on it from now on.
    pub(crate) fn update_link(&mut self, link: &LinkInfo) {
        let addresses = link.gids.iter().map(|gid| (gid.address, gid.ifindex));
        let addresses: Vec<_> = addresses.collect();
        match self.links.get_mut(&link.index) {
            Some(side) => side.addresses = addresses,
            None => {
                let mut seed = [0; 32];
                self.rng.fill_bytes(&mut seed);
                let config = Config::new(u64::from_be_bytes(link.guid()));
                let side = LinkSide {
                    cm: Cm::new(config, seed),
                    addresses,
                    connections: BTreeMap::new(),
                    sidr_requests: BTreeMap::new(),
                    listeners: BTreeMap::new(),
                };
                self.links.insert(link.index, side);
            }
        }
        self.listen_on(link.index);
    }

    /// Removes a link and ends its connections. Each peer gets one DREQ without
    /// retransmission; the programs get the event of the link.
    pub(crate) fn remove_link(&mut self, now: Time, link: u32) {
        let Some(side) = self.links.get_mut(&link) else {
            return;
        };
        for conn in side.connections.keys() {
            let _ = side.cm.destroy(now, *conn);
        }
        for sidr in side.sidr_requests.keys() {
            let _ = side.cm.sidr_destroy(now, *sidr);
        }
        self.collect(now, link);
        self.links.remove(&link);
        for program in self.programs.values_mut() {
            program.forget_link(link);
        }
    }

    /// Sends no REJ for want of a listener before `until`, so that programs from before a
    /// restart can listen again.
    pub(crate) fn hold_refusals(&mut self, until: Time) {
        for side in self.links.values_mut() {
            side.cm.hold_refusals(until);
        }
    }

    /// Removes a program and everything that it owns.
    pub(crate) fn close(&mut self, now: Time, client: ClientId) {
        let Some(program) = self.programs.get(&client) else {
            return;
        };
        let ports: Vec<CmPort> = program.ports.keys().copied().collect();
        for port in ports {
            // Rejects the requests that wait at the port.
            let _ = self.release(now, client, port);
        }
        let Some(program) = self.programs.remove(&client) else {
            return;
        };
        for conn in program.connections {
            if let Some(side) = self.links.get_mut(&conn.link) {
                side.connections.remove(&conn.id);
                let _ = side.cm.destroy(now, conn.id);
            }
        }
        for sidr in program.sidr_requests {
            if let Some(side) = self.links.get_mut(&sidr.link) {
                side.sidr_requests.remove(&sidr.id);
                let _ = side.cm.sidr_destroy(now, sidr.id);
            }
        }
        self.collect_all(now);
    }

    /// Handles a received MAD.
    ///
    /// # Errors
    /// The reason, if the MAD is ignored.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        link: u32,
        address: Address,
        mad: &[u8],
    ) -> Result<(), Ignored> {
        let Some(side) = self.links.get_mut(&link) else {
            return Err(Ignored::Address);
        };
        let result = side.cm.receive(now, address, mad);
        self.collect(now, link);
        result
    }

    /// Returns the time at which [`Connections::handle_timeout`] must be called.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let links = self.links.values();
        links.filter_map(|side| side.cm.next_timeout()).min()
    }

    /// Runs timers that expire at `now`.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        for side in self.links.values_mut() {
            side.cm.handle_timeout(now);
        }
        self.collect_all(now);
    }

    /// Returns the client whose connection sends a MAD.
    pub(crate) fn owner_of_mad(&self, link: u32, mad: &[u8]) -> Option<ClientId> {
        // All messages begin with the sender's communication ID, or the ID of a SIDR request.
        let id = u32::from_be_bytes(*mad.get(24..)?.first_chunk()?);
        let side = self.links.get(&link)?;
        let mut connections = side.connections.iter();
        let owned = connections.find(|(conn, _)| conn.comm_id() == id)?;
        Some(owned.1.client)
    }

    /// Returns the next MAD or event.
    pub(crate) fn next_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn collect_all(&mut self, now: Time) {
        let links: Vec<u32> = self.links.keys().copied().collect();
        for link in links {
            self.collect(now, link);
        }
    }
}

impl LinkSide {
    fn netdev_of(&self, address: IpAddr) -> Option<u32> {
        let found = self.addresses.iter().find(|(own, _)| *own == address);
        found.map(|(_, ifindex)| *ifindex)
    }
}

#[cfg(test)]
mod tests;
