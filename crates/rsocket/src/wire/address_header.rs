//! The header of each datagram between queue pairs: the sender's address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::{Malformed, array};

/// The IP address and UDP port of a datagram's sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AddressHeader(pub(crate) SocketAddr);

const V4_LEN: usize = 8;
const V6_LEN: usize = 24;

/// The length of the longest header.
pub(super) const MAX_ADDRESS_HEADER: usize = V6_LEN;

impl AddressHeader {
    /// Returns the header's bytes, padded to the longest, and its length.
    pub(crate) fn encode(&self) -> ([u8; MAX_ADDRESS_HEADER], usize) {
        let mut bytes = [0; MAX_ADDRESS_HEADER];
        bytes[2..4].copy_from_slice(&self.0.port().to_be_bytes());
        let length = match self.0 {
            SocketAddr::V4(addr) => {
                bytes[0] = 4;
                bytes[4..8].copy_from_slice(&addr.ip().octets());
                V4_LEN
            }
            SocketAddr::V6(addr) => {
                bytes[0] = 6;
                bytes[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&addr.ip().octets());
                V6_LEN
            }
        };
        bytes[1] = length as u8;
        (bytes, length)
    }

    /// Splits a datagram into its header and its payload.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(AddressHeader, &[u8]), Malformed> {
        const SHORT: Malformed = Malformed("the datagram is shorter than its header");
        if bytes.len() < V4_LEN {
            return Err(SHORT);
        }
        let (ip, flowinfo, length) = match bytes[0] {
            4 => (IpAddr::V4(Ipv4Addr::from(array::<4>(bytes, 4))), 0, V4_LEN),
            6 if bytes.len() >= V6_LEN => (
                IpAddr::V6(Ipv6Addr::from(array::<16>(bytes, 8))),
                u32::from_be_bytes(array(bytes, 4)),
                V6_LEN,
            ),
            6 => return Err(SHORT),
            _ => return Err(Malformed("the IP version in the header is neither 4 nor 6")),
        };
        if usize::from(bytes[1]) != length {
            return Err(Malformed("the header's length does not fit its IP version"));
        }
        let port = u16::from_be_bytes(array(bytes, 2));
        let addr = match ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, flowinfo, 0).into(),
        };
        Ok((AddressHeader(addr), &bytes[length..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_ip_versions_round_trip() {
        for addr in ["192.0.2.7:7174", "[2001:db8::7]:7174"] {
            let header = AddressHeader(addr.parse().unwrap());
            let (bytes, length) = header.encode();
            let mut datagram = bytes[..length].to_vec();
            datagram.extend(b"hello");
            let (read, rest) = AddressHeader::decode(&datagram).unwrap();
            assert_eq!((read, rest), (header, &b"hello"[..]));
            for length in 0..length {
                assert!(AddressHeader::decode(&bytes[..length]).is_err());
            }
        }
    }

    #[test]
    fn ipv4_header_has_the_expected_bytes() {
        let (bytes, length) = AddressHeader("192.0.2.7:7174".parse().unwrap()).encode();
        assert_eq!(bytes[..length], [4, 8, 0x1c, 0x06, 192, 0, 2, 7]);
    }

    #[test]
    fn wrong_versions_and_lengths_are_refused() {
        assert!(AddressHeader::decode(&[5, 8, 0, 1, 1, 2, 3, 4]).is_err());
        assert!(AddressHeader::decode(&[4, 9, 0, 1, 1, 2, 3, 4]).is_err());
    }
}
