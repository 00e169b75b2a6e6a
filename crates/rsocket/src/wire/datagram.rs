//! The header of each datagram between UDP sockets: the sender's queue pair number.
//!
//! Two datagram sockets exchange data over UDP until they know each other's queue pairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Malformed, array};

/// The header of a datagram that travels over UDP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DatagramHeader {
    /// True if the program's data follows; false in the answer to such a datagram.
    pub(crate) data: bool,
    /// The sender's queue pair number.
    pub(crate) qpn: u32,
    /// The destination address of the datagram.
    pub(crate) to: IpAddr,
}

const TAG: u32 = 0x5555_5555;
const V4_LEN: usize = 16;
const V6_LEN: usize = 28;
const DATA: u8 = 0;
const CONTROL: u8 = 7;

/// The length of the longest header.
pub(crate) const MAX_DATAGRAM_HEADER: usize = V6_LEN;

impl DatagramHeader {
    /// Returns the header's bytes, padded to the longest, and its length.
    pub(crate) fn encode(&self) -> ([u8; MAX_DATAGRAM_HEADER], usize) {
        let mut bytes = [0; MAX_DATAGRAM_HEADER];
        bytes[..4].copy_from_slice(&TAG.to_be_bytes());
        bytes[5] = if self.data { DATA } else { CONTROL };
        bytes[8..12].copy_from_slice(&(self.qpn << 8).to_be_bytes());
        let length = match self.to {
            IpAddr::V4(to) => {
                bytes[4] = 4;
                bytes[12..16].copy_from_slice(&to.octets());
                V4_LEN
            }
            IpAddr::V6(to) => {
                bytes[4] = 6;
                bytes[12..28].copy_from_slice(&to.octets());
                V6_LEN
            }
        };
        bytes[6] = length as u8;
        (bytes, length)
    }

    /// Splits a datagram into its header and its payload.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(DatagramHeader, &[u8]), Malformed> {
        const FOREIGN: Malformed = Malformed("the datagram has no rsocket header");
        if bytes.len() < V4_LEN || u32::from_be_bytes(array(bytes, 0)) != TAG {
            return Err(FOREIGN);
        }
        let (to, length) = match bytes[4] {
            4 => (IpAddr::V4(Ipv4Addr::from(array::<4>(bytes, 12))), V4_LEN),
            6 if bytes.len() >= V6_LEN => {
                (IpAddr::V6(Ipv6Addr::from(array::<16>(bytes, 12))), V6_LEN)
            }
            _ => return Err(FOREIGN),
        };
        if usize::from(bytes[6]) != length {
            return Err(FOREIGN);
        }
        let data = match bytes[5] {
            DATA => true,
            CONTROL => false,
            _ => return Err(Malformed("the operation in the rsocket header is unknown")),
        };
        let qpn = u32::from_be_bytes(array(bytes, 8)) >> 8;
        Ok((DatagramHeader { data, qpn, to }, &bytes[length..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_ip_versions_round_trip() {
        for (to, data) in [("192.0.2.7", true), ("2001:db8::7", false)] {
            let header = DatagramHeader {
                data,
                qpn: 0x123456,
                to: to.parse().unwrap(),
            };
            let (bytes, length) = header.encode();
            let mut datagram = bytes[..length].to_vec();
            datagram.extend(b"hello");
            let (read, rest) = DatagramHeader::decode(&datagram).unwrap();
            assert_eq!((read, rest), (header, &b"hello"[..]));
            for length in 0..length {
                assert!(DatagramHeader::decode(&bytes[..length]).is_err());
            }
        }
    }

    #[test]
    fn ipv4_header_has_the_expected_bytes() {
        let header = DatagramHeader {
            data: true,
            qpn: 0x10002,
            to: "192.0.2.7".parse().unwrap(),
        };
        let (bytes, length) = header.encode();
        let by_hand = [
            0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 1, 0, 2, 0, 192, 0, 2, 7,
        ];
        assert_eq!(bytes[..length], by_hand);
    }

    #[test]
    fn foreign_datagrams_are_refused() {
        let (good, length) = DatagramHeader {
            data: false,
            qpn: 2,
            to: "192.0.2.7".parse().unwrap(),
        }
        .encode();
        for (at, value) in [(0, 0x54), (4, 5), (5, 1), (6, 17)] {
            let mut bad = good;
            bad[at] = value;
            assert!(DatagramHeader::decode(&bad[..length]).is_err(), "byte {at}");
        }
    }
}
