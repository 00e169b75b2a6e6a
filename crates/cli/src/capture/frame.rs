//! Whole packets: Ethernet, IP and UDP headers in front of a RoCEv2 packet, or Ethernet and IP
//! headers in front of a TCP segment.

use std::net::IpAddr;

use ferroce_trace::Record;
use ferroce_wire::ip::{IPV4_LEN, UDP_LEN, ipv4_checksum, ipv4_header, ipv6_header, udp_header};
use ferroce_wire::{Flow, ICRC_LEN, icrc};

/// Hop limit of packets whose own is not known.
const HOP_LIMIT: u8 = 64;
/// IP protocol number of TCP.
const TCP: u8 = 6;

/// A packet for a capture file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The bytes from the Ethernet header on.
    pub(crate) bytes: Vec<u8>,
    /// Bytes of the packet on the wire.
    pub(crate) length: u32,
    /// False if the ICRC of a whole packet is wrong.
    pub(crate) icrc_fits: bool,
}

/// Returns the frame of a packet.
///
/// UDP sockets do not deliver the IPv4 identification, but the ICRC covers it. So the
/// identification is the one that fits the ICRC.
pub(crate) fn frame(record: &Record<'_>, packet: &[u8]) -> Frame {
    if record.tcp {
        return tcp_frame(record, packet);
    }
    let flow = Flow {
        source: record.source,
        destination: record.destination,
        source_port: record.source_port,
    };
    let mut packet = packet.to_vec();
    let whole = packet.len() as u32 == record.length;
    let (ip_id, icrc_fits) = match whole {
        true => complete(&flow, record.ip_id, &mut packet),
        false => (0, true),
    };
    let udp_len = record.length as u16;
    let hop_limit = match record.hop_limit {
        0 => HOP_LIMIT,
        known => known,
    };
    let mut udp = udp_header(record.source_port, udp_len);
    let mut bytes = Vec::with_capacity(packet.len() + 64);
    bytes.extend(mac(record.destination));
    bytes.extend(mac(record.source));
    let total = udp_len.wrapping_add(UDP_LEN as u16);
    match (record.source, record.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (tos, total) = (record.traffic_class, total.wrapping_add(20));
            bytes.extend([0x08, 0x00]);
            bytes.extend(ipv4_header(
                source,
                destination,
                tos,
                hop_limit,
                ip_id,
                total,
            ));
        }
        (source, destination) => {
            let (source, destination) = (to_v6(source), to_v6(destination));
            let class = record.traffic_class;
            let header = ipv6_header(source, destination, class, 0, hop_limit, total);
            bytes.extend([0x86, 0xdd]);
            bytes.extend(header);
            // Over IPv6 a UDP checksum is mandatory. A reader checks it if it has all bytes.
            let sum = match whole {
                true => checksum(&header[8..40], &udp, &packet),
                false => 0xffff,
            };
            udp[6..].copy_from_slice(&sum.to_be_bytes());
        }
    }
    bytes.extend(udp);
    let length = (bytes.len() + record.length as usize) as u32;
    bytes.extend(packet);
    Frame {
        bytes,
        length,
        icrc_fits,
    }
}

/// Returns the frame of a TCP segment.
fn tcp_frame(record: &Record<'_>, segment: &[u8]) -> Frame {
    let (mut segment, length) = (segment.to_vec(), record.length as u16);
    let is_whole = segment.len() as u32 == record.length;
    let mut bytes = Vec::with_capacity(segment.len() + 64);
    bytes.extend(mac(record.destination));
    bytes.extend(mac(record.source));
    let addresses = match (record.source, record.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = length.wrapping_add(IPV4_LEN as u16);
            let mut header = ipv4_header(source, destination, 0, HOP_LIMIT, 0, total);
            header[9] = TCP;
            header[10..12].fill(0);
            let sum = ipv4_checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes.extend([0x08, 0x00]);
            bytes.extend(header);
            header[12..].to_vec()
        }
        (source, destination) => {
            let (source, destination) = (to_v6(source), to_v6(destination));
            let mut header = ipv6_header(source, destination, 0, 0, HOP_LIMIT, length);
            header[6] = TCP;
            bytes.extend([0x86, 0xdd]);
            bytes.extend(header);
            header[8..].to_vec()
        }
    };
    if is_whole && segment.len() >= 18 {
        segment[16..18].fill(0);
        let length = u32::from(length).to_be_bytes();
        let sum = !ones_sum(&[&addresses, &length, &[0, 0, 0, TCP], &segment]);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
    }
    let length = (bytes.len() + record.length as usize) as u32;
    bytes.extend(segment);
    Frame {
        bytes,
        length,
        icrc_fits: true,
    }
}

/// Returns the IPv4 identification of a whole packet, and true if its ICRC is right. A packet
/// that was passed through memory has no ICRC, and gets one.
fn complete(flow: &Flow, ip_id: Option<u16>, packet: &mut [u8]) -> (u16, bool) {
    if let Some(id) = ip_id {
        return (id, icrc::verify(flow, id, packet));
    }
    let found =
        icrc::recover_id(flow, 0, packet).or_else(|| icrc::recover_id_flush_quirk(flow, 0, packet));
    if let Some(found) = found {
        return (found.id, true);
    }
    match packet.split_last_chunk_mut::<ICRC_LEN>() {
        Some((body, trailer)) if *trailer == [0; ICRC_LEN] => {
            *trailer = icrc::compute(flow, 0, body);
            (0, true)
        }
        _ => (0, false),
    }
}

/// Returns a locally administered MAC address that ends with bytes of the IP address.
fn mac(address: IpAddr) -> [u8; 6] {
    let octets = to_v6(address).octets();
    [0x02, 0, octets[12], octets[13], octets[14], octets[15]]
}

fn to_v6(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Returns the UDP checksum over IPv6. `addresses` are source and destination.
fn checksum(addresses: &[u8], udp: &[u8; UDP_LEN], payload: &[u8]) -> u16 {
    let length = ((UDP_LEN + payload.len()) as u32).to_be_bytes();
    let next_header = [0, 0, 0, 17];
    match !ones_sum(&[addresses, &length, &next_header, udp, payload]) {
        0 => 0xffff,
        sum => sum,
    }
}

/// Returns the one's complement sum of 16-bit words. Only the last part may have an odd length.
fn ones_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for word in part.chunks(2) {
            let low = word.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([word[0], low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(source: &str, destination: &str, length: usize) -> Record<'static> {
        Record {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_port: 0xc000,
            length: length as u32,
            ..Record::default()
        }
    }

    /// An acknowledge packet with the ICRC for an identification.
    fn packet(record: &Record<'_>, ip_id: u16) -> Vec<u8> {
        let flow = Flow {
            source: record.source,
            destination: record.destination,
            source_port: record.source_port,
        };
        let mut packet = vec![
            0x11, 0, 0xff, 0xff, 0, 1, 0, 0x11, 0, 0, 0, 7, 0x1f, 0, 0, 1,
        ];
        let crc = icrc::compute(&flow, ip_id, &packet);
        packet.extend(crc);
        packet
    }

    #[test]
    fn identification_fits_the_icrc() {
        let record = record("10.0.0.1", "10.0.0.2", 20);
        let frame = frame(&record, &packet(&record, 17));
        assert_eq!(frame.bytes[18..20], [0, 17]);
        assert!(frame.icrc_fits);
        assert_eq!(frame.bytes.len() as u32, frame.length);
        assert_eq!(frame.length, 14 + 20 + 8 + 20);
    }

    #[test]
    fn packet_without_icrc_gets_one() {
        let record = record("10.0.0.1", "10.0.0.2", 20);
        let mut packet = packet(&record, 0);
        let expected = packet.clone();
        packet[16..].fill(0);
        let frame = frame(&record, &packet);
        assert_eq!(frame.bytes[42..], expected);
        assert!(frame.icrc_fits);
    }

    #[test]
    fn wrong_icrc_is_kept_and_reported() {
        let record = record("10.0.0.1", "10.0.0.2", 20);
        let mut packet = packet(&record, 0);
        packet[13] ^= 1;
        let frame = frame(&record, &packet);
        assert_eq!(frame.bytes[42..], packet);
        assert!(!frame.icrc_fits);
    }

    #[test]
    fn ipv6_packet_has_a_udp_checksum() {
        let record = record("2001:db8::1", "2001:db8::2", 20);
        let bytes = packet(&record, 0);
        let frame = frame(&record, &bytes);
        assert!(frame.icrc_fits);
        let udp: [u8; 8] = frame.bytes[54..62].try_into().unwrap();
        assert_ne!(udp[6..], [0, 0]);
        // The sum over a packet with its checksum is zero, which is sent as ffff.
        assert_eq!(checksum(&frame.bytes[22..54], &udp, &bytes), 0xffff);
    }

    #[test]
    fn tcp_segment_has_valid_checksums() {
        for (source, destination, ip) in [
            ("10.0.0.1", "10.0.0.2", 20),
            ("2001:db8::1", "2001:db8::2", 40),
        ] {
            let segment = [0x5a; 31];
            let record = Record {
                tcp: true,
                ..record(source, destination, segment.len())
            };
            let frame = frame(&record, &segment);
            assert_eq!(frame.length as usize, 14 + ip + segment.len());
            let (header, tcp) = frame.bytes[14..].split_at(ip);
            let addresses = &header[ip - if ip == 20 { 8 } else { 32 }..];
            let pseudo: [&[u8]; 4] = [addresses, &[0, 0, 0, 31], &[0, 0, 0, 6], tcp];
            assert_eq!(ones_sum(&pseudo), 0xffff);
            if ip == 20 {
                assert_eq!(ipv4_checksum(header.try_into().unwrap()), 0);
                assert_eq!(header[9], 6);
            }
        }
    }

    #[test]
    fn beginning_of_a_packet_has_its_whole_length() {
        let record = record("10.0.0.1", "10.0.0.2", 1044);
        let frame = frame(&record, &packet(&record, 0)[..16]);
        assert_eq!((frame.bytes.len(), frame.length), (42 + 16, 42 + 1044));
        assert_eq!(frame.bytes[16..18], (1044u16 + 28).to_be_bytes());
    }
}
