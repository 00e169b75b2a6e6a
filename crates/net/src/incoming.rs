//! One received datagram.

use std::net::IpAddr;

use ferroce_transport::Datagram;

/// A datagram to port 4791, with what its IP header said.
#[derive(Copy, Clone, Debug)]
pub struct Incoming<'a> {
    /// Who sent it.
    pub source: IpAddr,
    /// From which UDP port.
    pub source_port: u16,
    /// To which of our addresses, or which multicast group.
    pub destination: IpAddr,
    /// The interface it came by.
    pub ifindex: u32,
    /// IPv4 TOS or IPv6 traffic class, ECN included.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// From the BTH to the ICRC.
    pub payload: &'a [u8],
}

impl<'a> Incoming<'a> {
    /// As the engine takes it. A UDP socket is not shown the identification.
    pub fn datagram(&self) -> Datagram<'a> {
        Datagram {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            ip_id: None,
            payload: self.payload,
        }
    }
}
