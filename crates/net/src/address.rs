//! Socket addresses as the bytes that the kernel reads and writes.
//!
//! Bytes need no casts and no unsafe code, unlike `sockaddr` structs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Size of a `sockaddr_in6`, the longer of the two.
pub(crate) const NAME_LEN: usize = 28;
const V4_LEN: usize = 16;

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Copy, Clone)]
#[repr(C, align(4))]
pub(crate) struct Name(pub(crate) [u8; NAME_LEN]);

impl Name {
    pub(crate) const EMPTY: Name = Name([0; NAME_LEN]);

    /// Encodes a destination and returns its length. `scope` is the interface of a
    /// link-local address.
    pub(crate) fn new(address: IpAddr, port: u16, scope: u32) -> (Name, usize) {
        let mut name = Name::EMPTY;
        let bytes = &mut name.0;
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        match address {
            IpAddr::V4(v4) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.octets());
                (name, V4_LEN)
            }
            IpAddr::V6(v6) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.octets());
                bytes[24..].copy_from_slice(&scope.to_ne_bytes());
                (name, NAME_LEN)
            }
        }
    }

    /// Decodes the address and port. Returns `None` for other address families.
    pub(crate) fn parse(&self, len: usize) -> Option<(IpAddr, u16)> {
        let bytes = self.0.get(..len)?;
        let family = u16::from_ne_bytes(*bytes.first_chunk()?);
        let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
        let address = match i32::from(family) {
            libc::AF_INET => IpAddr::V4(v4(bytes.get(4..)?)?),
            libc::AF_INET6 => IpAddr::V6(v6(bytes.get(8..)?)?),
            _ => return None,
        };
        Some((address, port))
    }
}

/// Reads an IPv4 address from the first bytes.
pub(crate) fn v4(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.first_chunk().map(|b: &[u8; 4]| Ipv4Addr::from(*b))
}

/// Reads an IPv6 address from the first bytes.
pub(crate) fn v6(bytes: &[u8]) -> Option<Ipv6Addr> {
    bytes.first_chunk().map(|b: &[u8; 16]| Ipv6Addr::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_address_is_decoded_to_itself() {
        for address in ["192.0.2.7", "fe80::7", "::1"] {
            let address: IpAddr = address.parse().unwrap();
            let (name, len) = Name::new(address, 0xc123, 3);
            assert_eq!(name.parse(len), Some((address, 0xc123)));
            assert_eq!(name.parse(len.min(7)), None, "cut short");
        }
    }
}
