//! Address handles: the way to a peer.
//!
//! Verbs name a way by GID index and destination GID. The caller, who keeps the
//! GID table, has turned both into IP addresses before it comes here.

use core::net::IpAddr;
use std::sync::Arc;

use crate::region::Pd;

/// `ibv_ah_attr`, resolved to IP addresses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AddressVector {
    /// Our address: what `sgid_index` stood for.
    pub source: IpAddr,
    /// The peer's address, or a multicast group.
    pub destination: IpAddr,
    /// As the program gave it, to be reported back.
    pub sgid_index: u8,
    /// As the program gave it; chooses the UDP source port if not zero.
    pub flow_label: u32,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Service level, reported back.
    pub sl: u8,
    /// Port, 1.
    pub port: u8,
}

/// An address handle: `ibv_ah`.
#[derive(Debug)]
pub struct AddressHandle {
    pd: Arc<Pd>,
    av: AddressVector,
}

impl AddressHandle {
    /// An address handle in a protection domain.
    pub fn new(pd: Arc<Pd>, av: AddressVector) -> Arc<AddressHandle> {
        Arc::new(AddressHandle { pd, av })
    }

    /// The way.
    #[inline]
    pub fn av(&self) -> &AddressVector {
        &self.av
    }

    /// Its protection domain.
    #[inline]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}
