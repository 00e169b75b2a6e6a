//! Objects of one program.

use std::collections::{BTreeMap, BTreeSet};

use ferroce_cm::ports::{BindId, Host};
use ferroce_cm::{ConnId, ListenAddress, ListenerId, PortSpace, SidrId};
use ferroce_control::{CmId, CmPort};

/// Largest number of ports of one program.
pub(super) const MAX_PORTS: usize = 1 << 16;
/// Largest number of connections of one program, including requests that it received.
pub(super) const MAX_CONNECTIONS: usize = 1 << 15;
/// Largest number of SIDR requests of one program.
pub(super) const MAX_SIDR_REQUESTS: usize = 1 << 12;

/// Objects of one program.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) ports: BTreeMap<CmPort, Port>,
    pub(super) connections: BTreeSet<CmId<ConnId>>,
    pub(super) sidr_requests: BTreeSet<CmId<SidrId>>,
    last_port: CmPort,
}

/// A bound port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) bind: BindId,
    pub(super) space: PortSpace,
    pub(super) source: Host,
    pub(super) af_only: bool,
    pub(super) number: u16,
    pub(super) listening: Option<Listening>,
}

/// The listeners of a port.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) backlog: usize,
    /// Listener on each link.
    pub(super) at: BTreeMap<u32, ListenerId>,
    /// Connection requests that the program has not taken yet.
    pub(super) connections: BTreeSet<CmId<ConnId>>,
    pub(super) sidr_requests: BTreeSet<CmId<SidrId>>,
}

impl Program {
    pub(super) fn insert(&mut self, port: Port) -> CmPort {
        self.last_port += 1;
        self.ports.insert(self.last_port, port);
        self.last_port
    }

    pub(super) fn listening(&mut self, port: CmPort) -> Option<&mut Listening> {
        self.ports.get_mut(&port)?.listening.as_mut()
    }

    pub(super) fn forget_link(&mut self, link: u32) {
        self.connections.retain(|conn| conn.link != link);
        self.sidr_requests.retain(|sidr| sidr.link != link);
        let listening = self.ports.values_mut().filter_map(|p| p.listening.as_mut());
        for listening in listening {
            listening.at.remove(&link);
            listening.connections.retain(|conn| conn.link != link);
            listening.sidr_requests.retain(|sidr| sidr.link != link);
        }
    }
}

impl Port {
    /// Returns the addresses that the port listens on.
    pub(super) fn address(&self) -> ListenAddress {
        match (self.source.ip, self.af_only) {
            (ip, _) if !ip.is_unspecified() => ListenAddress::Exactly(ip),
            (_, false) => ListenAddress::Any,
            (ip, true) if ip.is_ipv4() => ListenAddress::AnyV4,
            (_, true) => ListenAddress::AnyV6,
        }
    }

    /// Returns true if the port listens on a link with these addresses.
    pub(super) fn concerns(&self, addresses: &[(std::net::IpAddr, u32)]) -> bool {
        let Host { ip, scope } = self.source;
        ip.is_unspecified()
            || addresses
                .iter()
                .any(|(own, netdev)| *own == ip && (scope == 0 || *netdev == scope))
    }
}
