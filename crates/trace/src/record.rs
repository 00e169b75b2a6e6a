//! One record: a packet with the engine's decisions about it, or a decision alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a record's header.
pub const HEADER_LEN: usize = 64;

const IS_V6: u8 = 1;
const HAS_IP_ID: u8 = 2;
const IS_TROUBLE: u8 = 4;
const IS_TCP: u8 = 8;

/// The direction of a packet, seen from the program that recorded it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The record is about a decision, and has no packet.
    None,
    /// The program sent the packet.
    Sent,
    /// The program received the packet.
    Received,
}

/// A record.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Time of the monotonic clock, in nanoseconds.
    pub time_ns: u64,
    /// Direction of the packet.
    pub direction: Direction,
    /// True if the text tells of an error, a loss or a retransmission.
    pub trouble: bool,
    /// Number of the program's queue pair.
    pub qpn: u32,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// True for a TCP segment of iWARP, false for a UDP packet of RoCE.
    pub tcp: bool,
    /// UDP source port; that of TCP is in the segment's header.
    pub source_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 if it is not known.
    pub hop_limit: u8,
    /// IPv4 identification, if it is known.
    pub ip_id: Option<u16>,
    /// Bytes of the whole packet: from the BTH to the ICRC, or from the TCP header on.
    pub length: u32,
    /// The packet, or the beginning of it.
    pub bytes: &'a [u8],
    /// Decisions of the engine, in words; may be empty.
    pub text: &'a str,
}

impl Default for Record<'_> {
    fn default() -> Self {
        Record {
            time_ns: 0,
            direction: Direction::None,
            trouble: false,
            qpn: 0,
            source: Ipv4Addr::UNSPECIFIED.into(),
            destination: Ipv4Addr::UNSPECIFIED.into(),
            tcp: false,
            source_port: 0,
            traffic_class: 0,
            hop_limit: 0,
            ip_id: None,
            length: 0,
            bytes: &[],
            text: "",
        }
    }
}

impl<'a> Record<'a> {
    /// Returns true for a failure in a journal: it has no packet, and its code as the length.
    pub fn is_failure(&self) -> bool {
        self.direction == Direction::None && self.length != 0
    }

    /// Returns the header. The packet and the text follow it.
    ///
    /// The packet and the text have at most 65,535 bytes each.
    pub fn header(&self) -> [u8; HEADER_LEN] {
        debug_assert!(self.bytes.len() <= 0xffff && self.text.len() <= 0xffff);
        let v6 = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let mut flags = 0;
        for (flag, is_set) in [
            (IS_V6, self.source.is_ipv6()),
            (HAS_IP_ID, self.ip_id.is_some()),
            (IS_TROUBLE, self.trouble),
            (IS_TCP, self.tcp),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let mut header = [0; HEADER_LEN];
        let total = (HEADER_LEN + self.bytes.len() + self.text.len()) as u32;
        header[..4].copy_from_slice(&total.to_le_bytes());
        header[4] = self.direction as u8;
        header[5] = flags;
        header[6..8].copy_from_slice(&self.source_port.to_le_bytes());
        header[8..16].copy_from_slice(&self.time_ns.to_le_bytes());
        header[16..20].copy_from_slice(&self.qpn.to_le_bytes());
        header[20..24].copy_from_slice(&self.length.to_le_bytes());
        header[24..26].copy_from_slice(&self.ip_id.unwrap_or(0).to_le_bytes());
        header[26] = self.traffic_class;
        header[27] = self.hop_limit;
        header[28..30].copy_from_slice(&(self.bytes.len() as u16).to_le_bytes());
        header[30..32].copy_from_slice(&(self.text.len() as u16).to_le_bytes());
        header[32..48].copy_from_slice(&v6(self.source));
        header[48..].copy_from_slice(&v6(self.destination));
        header
    }

    /// Reads a record from bytes that another process wrote. Returns none if they are no record.
    pub fn parse(bytes: &'a [u8]) -> Option<Record<'a>> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let (captured, text) = (usize::from(u16_at(28)), usize::from(u16_at(30)));
        if u32_at(0) as usize != HEADER_LEN + captured + text || rest.len() < captured + text {
            return None;
        }
        let flags = header[5];
        let address = |at: usize| {
            let octets: [u8; 16] = header[at..at + 16].try_into().expect("16 bytes");
            let v6 = Ipv6Addr::from(octets);
            match flags & IS_V6 {
                0 => v6.to_ipv4_mapped().map(IpAddr::V4),
                _ => Some(IpAddr::V6(v6)),
            }
        };
        Some(Record {
            time_ns: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            direction: match header[4] {
                0 => Direction::None,
                1 => Direction::Sent,
                2 => Direction::Received,
                _ => return None,
            },
            trouble: flags & IS_TROUBLE != 0,
            qpn: u32_at(16),
            source: address(32)?,
            destination: address(48)?,
            tcp: flags & IS_TCP != 0,
            source_port: u16_at(6),
            traffic_class: header[26],
            hop_limit: header[27],
            ip_id: (flags & HAS_IP_ID != 0).then(|| u16_at(24)),
            length: u32_at(20),
            bytes: &rest[..captured],
            text: core::str::from_utf8(&rest[captured..captured + text]).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parsing_returns_what_was_written(
            numbers in any::<(u64, u32, u32, u16, u8, u8)>(),
            v4 in any::<Option<(u32, u32)>>(),
            ip_id in any::<Option<u16>>(),
            (trouble, tcp) in any::<(bool, bool)>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            text in "[a-z ]{0,40}",
        ) {
            let (time_ns, qpn, length, source_port, traffic_class, hop_limit) = numbers;
            let (source, destination) = match v4 {
                Some((a, b)) => (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into()),
                None => (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into()),
            };
            let record = Record {
                time_ns,
                direction: Direction::Received,
                trouble,
                qpn,
                source,
                destination,
                tcp,
                source_port,
                traffic_class,
                hop_limit,
                ip_id,
                length,
                bytes: &bytes,
                text: &text,
            };
            let whole = [&record.header()[..], &bytes, text.as_bytes()].concat();
            prop_assert_eq!(Record::parse(&whole), Some(record));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _no_panic = Record::parse(&bytes);
        }
    }
}
