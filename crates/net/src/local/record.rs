//! The header of a record: the fields of the IP header that a run of packets has on a network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroce_roce::{Datagram, IpId, Path};

use super::ring::{HEADER, Header};
use crate::incoming::{Incoming, IncomingRun};

const SEGMENT: core::ops::Range<usize> = 4..6;
const TRAFFIC_CLASS: usize = 6;
const HOP_LIMIT: usize = 7;
const SOURCE: core::ops::Range<usize> = 8..24;
const DESTINATION: core::ops::Range<usize> = 24..HEADER;

/// Writes the header of a run of packets of `segment` bytes.
pub fn encode(path: &Path, segment: usize) -> Header {
    let mut header = [0; HEADER];
    header[SEGMENT].copy_from_slice(&(segment as u16).to_ne_bytes());
    header[TRAFFIC_CLASS] = path.traffic_class;
    header[HOP_LIMIT] = path.hop_limit;
    header[SOURCE].copy_from_slice(&octets(path.flow.source));
    header[DESTINATION].copy_from_slice(&octets(path.flow.destination));
    header
}

/// Returns the run of a record of the program with the slot `peer`. None if it has no packet.
pub(super) fn decode<'a>(header: &Header, payload: &'a [u8], peer: u8) -> Option<IncomingRun<'a>> {
    let segment = header[SEGMENT].first_chunk().copied()?;
    let segment = usize::from(u16::from_ne_bytes(segment));
    if payload.is_empty() || segment == 0 {
        return None;
    }
    let datagram = Datagram {
        source: address(*header[SOURCE].first_chunk()?),
        destination: address(*header[DESTINATION].first_chunk()?),
        source_port: peer.into(),
        traffic_class: header[TRAFFIC_CLASS],
        hop_limit: header[HOP_LIMIT],
        ip_id: IpId::InMemory,
        payload,
    };
    Some(IncomingRun {
        merged: Incoming {
            datagram,
            ifindex: 0,
        },
        segment: segment.min(payload.len()),
    })
}

/// The bits above the IPv4 address in `::ffff:a.b.c.d`.
const IPV4_MAPPED: u128 = 0xffff;

/// Returns the bytes of an address; those of IPv4 as `::ffff:a.b.c.d`.
///
/// An address is one number here and in [`address`]: byte by byte, two addresses take 110 instructions.
fn octets(address: IpAddr) -> [u8; 16] {
    let bits = match address {
        IpAddr::V4(v4) => IPV4_MAPPED << 32 | u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    bits.to_be_bytes()
}

fn address(octets: [u8; 16]) -> IpAddr {
    let bits = u128::from_be_bytes(octets);
    match bits >> 32 == IPV4_MAPPED {
        true => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
        false => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_record() {
        for text in [
            "10.1.2.3",
            "::1",
            "fe80::1:2",
            "0.0.0.1",
            "::1:0:1",
            "255.0.0.9",
        ] {
            let given: IpAddr = text.parse().expect("an address");
            assert_eq!(address(octets(given)), given);
        }
        let mapped = "::ffff:10.1.2.3".parse().expect("an address");
        assert_eq!(address(octets(mapped)).to_string(), "10.1.2.3");
        let expected: Ipv6Addr = "::ffff:10.1.2.3".parse().expect("an address");
        assert_eq!(
            octets("10.1.2.3".parse().expect("an address")),
            expected.octets()
        );
    }
}
