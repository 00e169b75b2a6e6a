//! The fields of the IP and UDP headers that the ICRC covers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One direction of traffic between two hosts.
///
/// All other header fields are constant in RoCEv2 (destination port 4791, no IP
/// options), follow from the length, or are not covered by the ICRC. Sent packets
/// forbid fragmentation; received packets may allow it. The IPv4 identification
/// differs per packet and is passed separately.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// UDP source port.
    pub source_port: u16,
}

impl Flow {
    /// Returns true if packets of this flow travel over IPv4. IPv4-mapped IPv6
    /// addresses, which dual-stack sockets and GIDs use, count as IPv4.
    pub const fn is_ipv4(&self) -> bool {
        matches!(self.addresses(), Addresses::V4(..))
    }

    /// Returns the opposite direction, in which the peer sends from `source_port`.
    pub const fn reversed(&self, source_port: u16) -> Flow {
        Flow {
            source: self.destination,
            destination: self.source,
            source_port,
        }
    }

    pub(crate) const fn addresses(&self) -> Addresses {
        match (self.source.to_canonical(), self.destination.to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Addresses::V4(source, destination),
            (source, destination) => Addresses::V6(mapped(source), mapped(destination)),
        }
    }
}

/// Source and destination addresses of the same family.
pub(crate) enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

const fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
