//! The header of a record: the fields of the IP header that a run of packets has on a network.

use std::net::{IpAddr, Ipv6Addr};

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
        source: address(&header[SOURCE])?,
        destination: address(&header[DESTINATION])?,
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

/// Returns the bytes of an address; those of IPv4 as `::ffff:a.b.c.d`.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v6 = Ipv6Addr::from(*octets.first_chunk::<16>()?);
    Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4))
}
