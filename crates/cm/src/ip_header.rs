//! The rdma_cm header at the start of the private data of REQ and SIDR_REQ.
//!
//! The header holds the source port and the two IP addresses. The destination port is in
//! the service ID.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of an rdma_cm request.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct IpHeader {
    /// Port of the requesting program.
    pub source_port: u16,
    /// Address of the requesting node.
    pub source: IpAddr,
    /// Address that the request is for, of the same IP version.
    pub destination: IpAddr,
}

/// The result of parsing an [`IpHeader`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum IpHeaderOr {
    /// The header.
    Ip(IpHeader),
    /// The IP version is neither 4 nor 6, so there is no header: the request uses
    /// InfiniBand addresses, and all private data belongs to the program.
    NotIp,
    /// The version of the header is unknown.
    UnknownVersion(u8),
}

impl IpHeader {
    /// Length on the wire.
    pub const LEN: usize = 36;

    /// Parses the start of private data. The field is long enough for the header in both
    /// messages, REQ and SIDR_REQ.
    pub fn parse<const N: usize>(data: &[u8; N]) -> IpHeaderOr {
        const { assert!(N >= IpHeader::LEN) }
        if data[0] != 0 {
            return IpHeaderOr::UnknownVersion(data[0]);
        }
        let address = |at: usize| -> Option<IpAddr> {
            let bytes: [u8; 16] = *data[at..].first_chunk().expect("within the header");
            match data[1] >> 4 {
                4 => {
                    let [.., a, b, c, d] = bytes;
                    Some(Ipv4Addr::new(a, b, c, d).into())
                }
                6 => Some(Ipv6Addr::from(bytes).into()),
                _ => None,
            }
        };
        match (address(4), address(20)) {
            (Some(source), Some(destination)) => IpHeaderOr::Ip(IpHeader {
                source_port: u16::from_be_bytes([data[2], data[3]]),
                source,
                destination,
            }),
            _ => IpHeaderOr::NotIp,
        }
    }

    /// Writes the header to the start of private data.
    pub fn emit(&self, data: &mut [u8]) {
        data[0] = 0;
        data[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        data[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        data[4..20].copy_from_slice(&field(self.source));
        data[20..36].copy_from_slice(&field(self.destination));
    }

    /// Returns true if the addresses can belong to two connecting hosts.
    ///
    /// The kernel checks this before it looks for a listener. It also refuses loopback
    /// addresses; this function accepts them if the packet arrived over loopback.
    pub fn is_plausible(&self, over_loopback: bool) -> bool {
        let one = |ip: IpAddr| {
            let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
            let loopback = ip.is_loopback() && !over_loopback;
            !(ip.is_unspecified() || ip.is_multicast() || broadcast || loopback)
        };
        self.source.is_ipv4() == self.destination.is_ipv4()
            && one(self.source)
            && one(self.destination)
    }
}

/// Encodes an address in 16 bytes. An IPv4 address is in the last four, after zeros.
fn field(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let mut field = [0; 16];
            field[12..].copy_from_slice(&v4.octets());
            field
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpHeader = IpHeader {
        source_port: 0x1234,
        source: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 11)),
        destination: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 12)),
    };

    #[test]
    fn an_ipv4_address_is_in_the_last_four_bytes() {
        let mut data = [0xff; 92];
        V4.emit(&mut data);
        assert_eq!(data[..4], [0, 0x40, 0x12, 0x34]);
        assert_eq!(data[4..16], [0; 12]);
        assert_eq!(data[16..20], [198, 51, 100, 11]);
        assert_eq!(data[20..32], [0; 12]);
        assert_eq!(data[32..36], [198, 51, 100, 12]);
        assert_eq!(data[36], 0xff, "the program's data follows the header");
        assert_eq!(IpHeader::parse(&data), IpHeaderOr::Ip(V4));
    }

    #[test]
    fn ipv6_addresses_fill_their_fields() {
        let header = IpHeader {
            source: "3fff:51:0:100::11".parse().unwrap(),
            destination: "3fff:51:0:100::12".parse().unwrap(),
            ..V4
        };
        let mut data = [0; 92];
        header.emit(&mut data);
        assert_eq!(data[1], 0x60);
        assert_eq!(IpHeader::parse(&data), IpHeaderOr::Ip(header));
    }

    #[test]
    fn private_data_with_another_ip_version_has_no_header() {
        for version in [0x00, 0x50, 0xf0] {
            let mut data = [0; 216];
            data[1] = version;
            assert_eq!(IpHeader::parse(&data), IpHeaderOr::NotIp);
        }
    }

    #[test]
    fn a_header_version_other_than_0_is_unknown() {
        let mut data = [0; 92];
        V4.emit(&mut data);
        data[0] = 1;
        assert_eq!(IpHeader::parse(&data), IpHeaderOr::UnknownVersion(1));
    }

    #[test]
    fn zero_multicast_broadcast_and_loopback_addresses_are_implausible() {
        assert!(V4.is_plausible(false));
        for bad in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1"] {
            let bad = bad.parse().unwrap();
            assert!(!IpHeader { source: bad, ..V4 }.is_plausible(false));
            let to = IpHeader {
                destination: bad,
                ..V4
            };
            assert!(!to.is_plausible(false));
        }
        let lo = "127.0.0.1".parse().unwrap();
        let loopback = IpHeader {
            source: lo,
            destination: lo,
            ..V4
        };
        assert!(loopback.is_plausible(true));
    }
}
