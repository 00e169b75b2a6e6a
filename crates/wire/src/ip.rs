//! IP and UDP headers of RoCEv2 packets.
//!
//! A UDP socket builds and strips these headers itself. This module serves code that
//! handles whole packets: captures, raw tools, and the 40 bytes in front of each UD
//! message, which hold the IP header of the datagram.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Flow, ROCE_PORT, head};

/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Length of an IPv6 header without extensions.
pub const IPV6_LEN: usize = 40;
/// Length of a UDP header.
pub const UDP_LEN: usize = 8;

/// IP protocol number of UDP, also used as IPv6 next header.
pub(crate) const UDP: u8 = 17;
/// "Do not fragment" in the upper byte of the IPv4 flags and fragment offset.
pub(crate) const DONT_FRAGMENT: u8 = 0x40;

/// Returns an IPv4 header for UDP, with "do not fragment" and a valid checksum.
/// `total_len` includes this header.
pub fn ipv4_header(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    tos: u8,
    ttl: u8,
    id: u16,
    total_len: u16,
) -> [u8; IPV4_LEN] {
    let mut h = [0; IPV4_LEN];
    h[0] = 0x45;
    h[1] = tos;
    h[2..4].copy_from_slice(&total_len.to_be_bytes());
    h[4..6].copy_from_slice(&id.to_be_bytes());
    h[6] = DONT_FRAGMENT;
    h[8] = ttl;
    h[9] = UDP;
    h[12..16].copy_from_slice(&source.octets());
    h[16..20].copy_from_slice(&destination.octets());
    let checksum = ipv4_checksum(&h);
    h[10..12].copy_from_slice(&checksum.to_be_bytes());
    h
}

/// Returns an IPv6 header for UDP. `payload_len` does not include this header.
pub fn ipv6_header(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
    payload_len: u16,
) -> [u8; IPV6_LEN] {
    let mut h = [0; IPV6_LEN];
    let first = 6 << 28 | (traffic_class as u32) << 20 | flow_label & 0xf_ffff;
    h[..4].copy_from_slice(&first.to_be_bytes());
    h[4..6].copy_from_slice(&payload_len.to_be_bytes());
    h[6] = UDP;
    h[7] = hop_limit;
    h[8..24].copy_from_slice(&source.octets());
    h[24..40].copy_from_slice(&destination.octets());
    h
}

/// Returns a UDP header to the RoCEv2 port, with checksum 0 as rxe and NICs send it.
pub fn udp_header(source_port: u16, udp_payload_len: u16) -> [u8; UDP_LEN] {
    let mut h = [0; UDP_LEN];
    h[..2].copy_from_slice(&source_port.to_be_bytes());
    h[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    h[4..6].copy_from_slice(&udp_payload_len.wrapping_add(UDP_LEN as u16).to_be_bytes());
    h
}

/// Returns the checksum over an IPv4 header: the complement of its one's complement sum.
/// For a valid header, including its checksum field, this is 0.
pub fn ipv4_checksum(header: &[u8; IPV4_LEN]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words.map(|w| u16::from_be_bytes([w[0], w[1]]) as u32).sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !((folded >> 16) + folded) as u16
}

/// A RoCEv2 packet and the fields of its IP and UDP headers.
#[derive(Copy, Clone, Debug)]
pub struct Frame<'a> {
    /// Addresses and source port.
    pub flow: Flow,
    /// IPv4 identification; 0 over IPv6.
    pub ip_id: u16,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// The UDP payload, from the BTH to the ICRC.
    pub udp_payload: &'a [u8],
}

/// Why an IP packet is not a RoCEv2 packet.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum FrameError {
    /// The packet is shorter than its headers say.
    #[error("IP packet is shorter than its headers say")]
    Truncated,
    /// The IP version is neither 4 nor 6.
    #[error("unknown IP version {0}")]
    Version(u8),
    /// An IPv4 packet that has options, is a fragment, or allows fragmentation. RoCEv2
    /// uses none of these.
    #[error("IPv4 packet with options, or not marked do-not-fragment")]
    NotPlain,
    /// The IP and UDP headers disagree about the length.
    #[error("IP payload of {ip} bytes, UDP datagram of {udp}")]
    Length {
        /// Length of the IP payload, from the IP header.
        ip: usize,
        /// Length of the UDP datagram, from the UDP header.
        udp: usize,
    },
    /// The header after the IP header is not UDP.
    #[error("IP protocol {0} is not UDP")]
    Protocol(u8),
    /// The UDP destination port is not 4791.
    #[error("UDP port {0} is not RoCEv2")]
    Port(u16),
}

impl<'a> Frame<'a> {
    /// Parses an IP packet (without Ethernet header). Bytes beyond the UDP length,
    /// such as Ethernet padding, are ignored. Checksums are not checked.
    ///
    /// # Errors
    /// If the packet is not a whole UDP datagram to port 4791.
    pub fn parse(ip: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        match ip.first().ok_or(FrameError::Truncated)? >> 4 {
            4 => Self::parse_ipv4(ip),
            6 => Self::parse_ipv6(ip),
            version => Err(FrameError::Version(version)),
        }
    }

    fn parse_ipv4(ip: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let (h, udp) = ip
            .split_first_chunk::<IPV4_LEN>()
            .ok_or(FrameError::Truncated)?;
        if h[0] != 0x45 || h[6..8] != [DONT_FRAGMENT, 0] {
            return Err(FrameError::NotPlain);
        }
        let source = IpAddr::from(*head::<4>(&h[12..]));
        let destination = IpAddr::from(*head::<4>(&h[16..]));
        let total_len = u16::from_be_bytes([h[2], h[3]]) as usize;
        let udp_len = total_len
            .checked_sub(IPV4_LEN)
            .ok_or(FrameError::Truncated)?;
        let (source_port, udp_payload) = parse_udp(h[9], udp_len, udp)?;
        Ok(Frame {
            flow: Flow {
                source,
                destination,
                source_port,
            },
            ip_id: u16::from_be_bytes([h[4], h[5]]),
            tos: h[1],
            ttl: h[8],
            udp_payload,
        })
    }

    fn parse_ipv6(ip: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let (h, udp) = ip
            .split_first_chunk::<IPV6_LEN>()
            .ok_or(FrameError::Truncated)?;
        let source = IpAddr::from(*head::<16>(&h[8..]));
        let destination = IpAddr::from(*head::<16>(&h[24..]));
        let udp_len = u16::from_be_bytes([h[4], h[5]]) as usize;
        let (source_port, udp_payload) = parse_udp(h[6], udp_len, udp)?;
        Ok(Frame {
            flow: Flow {
                source,
                destination,
                source_port,
            },
            ip_id: 0,
            tos: h[0] << 4 | h[1] >> 4,
            ttl: h[7],
            udp_payload,
        })
    }
}

/// Parses a UDP datagram and returns its source port and payload.
fn parse_udp(
    protocol: u8,
    ip_payload_len: usize,
    bytes: &[u8],
) -> Result<(u16, &[u8]), FrameError> {
    if protocol != UDP {
        return Err(FrameError::Protocol(protocol));
    }
    let h = bytes
        .first_chunk::<UDP_LEN>()
        .ok_or(FrameError::Truncated)?;
    let port = u16::from_be_bytes([h[2], h[3]]);
    if port != ROCE_PORT {
        return Err(FrameError::Port(port));
    }
    let len = u16::from_be_bytes([h[4], h[5]]) as usize;
    if len != ip_payload_len {
        return Err(FrameError::Length {
            ip: ip_payload_len,
            udp: len,
        });
    }
    let payload = bytes.get(UDP_LEN..len).ok_or(FrameError::Truncated)?;
    Ok((u16::from_be_bytes([h[0], h[1]]), payload))
}
