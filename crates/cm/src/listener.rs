//! Listeners, and the choice of the listener for a request.

use core::net::IpAddr;
use std::collections::BTreeMap;

use crate::{Address, IpHeader, IpHeaderOr, Reason};

/// Handle of a listener.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct ListenerId(pub(crate) u64);

/// The local addresses on which a listener accepts requests.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ListenAddress {
    /// All addresses, and requests without IP addresses.
    Any,
    /// All IPv4 addresses: the wildcard of a listener with AFONLY.
    AnyV4,
    /// All IPv6 addresses: the wildcard of a listener with AFONLY.
    AnyV6,
    /// One address.
    Exactly(IpAddr),
}

impl ListenAddress {
    fn matches(self, ip: Option<&IpHeader>) -> bool {
        match (self, ip) {
            (ListenAddress::Any, _) => true,
            (_, None) => false,
            (ListenAddress::AnyV4, Some(ip)) => ip.destination.is_ipv4(),
            (ListenAddress::AnyV6, Some(ip)) => ip.destination.is_ipv6(),
            (ListenAddress::Exactly(address), Some(ip)) => ip.destination == address,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Listener {
    service_id: u64,
    address: ListenAddress,
    backlog: usize,
    /// Number of requests that the program has not taken yet.
    pub(crate) pending: usize,
}

#[derive(Default, Debug)]
pub(crate) struct Listeners {
    by_id: BTreeMap<ListenerId, Listener>,
    /// Listeners by service and address. Exact addresses sort after wildcards.
    by_service: BTreeMap<(u64, ListenAddress), ListenerId>,
    next: u64,
}

/// The result of the search for a listener.
pub(crate) enum Found {
    /// A listener with room in its backlog, and the rdma_cm header of the request.
    Listener(ListenerId, Option<IpHeader>),
    /// A listener whose backlog is full.
    Full,
    /// No listener: the service is unknown or not offered at this address, or the rdma_cm
    /// header is invalid.
    Refused(Reason),
}

impl Listeners {
    /// Adds a listener. Returns `None` if the service and address already have one.
    pub(crate) fn insert(
        &mut self,
        service_id: u64,
        address: ListenAddress,
        backlog: usize,
    ) -> Option<ListenerId> {
        let key = (service_id, address);
        if self.by_service.contains_key(&key) {
            return None;
        }
        let id = ListenerId(self.next);
        self.next += 1;
        self.by_service.insert(key, id);
        let listener = Listener {
            service_id,
            address,
            backlog,
            pending: 0,
        };
        self.by_id.insert(id, listener);
        Some(id)
    }

    /// Removes a listener. Returns its service, or none if there is no such listener.
    pub(crate) fn remove(&mut self, id: ListenerId) -> Option<u64> {
        let listener = self.by_id.remove(&id)?;
        let key = (listener.service_id, listener.address);
        self.by_service.remove(&key);
        Some(listener.service_id)
    }

    pub(crate) fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.by_id.get_mut(&id)
    }

    /// Finds the listener for a request with this private data. An exact address takes
    /// precedence over a wildcard.
    pub(crate) fn find<const N: usize>(
        &self,
        service_id: u64,
        address: Address,
        data: &[u8; N],
    ) -> Found {
        let range = (service_id, ListenAddress::Any)..=(service_id, ListenAddress::Exactly(LAST));
        let mut candidates = self.by_service.range(range).rev().peekable();
        if candidates.peek().is_none() {
            return Found::Refused(Reason::INVALID_SERVICE_ID);
        }
        // Only services of rdma_cm's port spaces have the header.
        let ip = match IpHeader::parse(data) {
            _ if crate::PortSpace::of_service(service_id).is_none() => None,
            IpHeaderOr::Ip(ip) => Some(ip),
            IpHeaderOr::NotIp => None,
            IpHeaderOr::UnknownVersion(_) => return Found::Refused(Reason::CONSUMER),
        };
        let loopback = address.remote.is_loopback();
        if ip.is_some_and(|ip| !ip.is_plausible(loopback)) {
            return Found::Refused(Reason::CONSUMER);
        }
        match candidates.find(|((_, at), _)| at.matches(ip.as_ref())) {
            None => Found::Refused(Reason::CONSUMER),
            Some((_, id)) => {
                let listener = &self.by_id[id];
                match listener.pending < listener.backlog {
                    true => Found::Listener(*id, ip),
                    false => Found::Full,
                }
            }
        }
    }
}

/// The address that sorts after all others.
const LAST: IpAddr = IpAddr::V6(core::net::Ipv6Addr::new(
    0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff,
));
