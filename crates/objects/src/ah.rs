//! Address handles: the route to a peer.
//!
//! Verbs name a route by the index of the source GID and by the destination GID. The caller
//! keeps the GID table and has resolved both to IP addresses.

use core::net::IpAddr;
use std::sync::Arc;

use crate::region::Pd;

/// `ibv_ah_attr`, resolved to IP addresses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AddressVector {
    /// Source address: the GID at `sgid_index`.
    pub source: IpAddr,
    /// Destination address: the peer's or a multicast group.
    pub destination: IpAddr,
    /// Index of the source GID, which a query reports back.
    pub sgid_index: u8,
    /// IPv6 flow label. If it is not 0, RoCE derives the UDP source port from it.
    pub flow_label: u32,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Service level, which a query reports back.
    pub sl: u8,
    /// Port number: 1, the only port.
    pub port: u8,
}

/// An address handle: `ibv_ah`.
#[derive(Debug)]
pub struct AddressHandle {
    pd: Arc<Pd>,
    av: AddressVector,
    is_local: bool,
}

impl AddressHandle {
    /// Creates an address handle in a protection domain.
    pub fn new(pd: Arc<Pd>, av: AddressVector) -> Arc<AddressHandle> {
        AddressHandle::with_locality(pd, av, false)
    }

    /// Creates an address handle. `is_local` says that the destination is an address of this
    /// host, and that datagrams to it may travel through shared memory.
    pub fn with_locality(pd: Arc<Pd>, av: AddressVector, is_local: bool) -> Arc<AddressHandle> {
        Arc::new(AddressHandle { pd, av, is_local })
    }

    /// Returns true if datagrams to the destination may travel through shared memory.
    #[inline]
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Returns the route.
    #[inline]
    pub fn av(&self) -> &AddressVector {
        &self.av
    }

    /// Returns the protection domain.
    #[inline]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}
