//! The form of cells: eight words.
//!
//! | word | contents |
//! | --- | --- |
//! | 0 | time |
//! | 1 | length, number of packets, bytes of headers, further cells, kind, flags |
//! | 2 to 7 | headers; in a further cell, words 2 to 6 are a path, or 48 bytes are text |

use std::net::{IpAddr, Ipv6Addr};

use crate::record::Direction;

/// Words of a cell.
pub(super) const WORDS: usize = super::CELL / 8;
/// Bytes of headers, or of text, in a cell.
pub(super) const DATA: usize = super::CELL - 16;
/// Most further cells of a record: one path, and 240 bytes of text.
pub(super) const MAX_MORE: usize = 6;
/// Words of a path.
pub(super) const PATH_WORDS: usize = 5;

/// The kind of a cell that continues the one before.
const FURTHER: u8 = 3;
const IS_TROUBLE: u8 = 1;
const HAS_PATH: u8 = 2;
const IS_V6: u8 = 1;
const IS_SET: u8 = 2;

/// A packet of a connection, or a uniform run of packets: they differ in their PSNs, which count
/// up.
#[derive(Copy, Clone, Debug)]
pub struct PacketRecord<'a> {
    /// Time of the monotonic clock, in nanoseconds.
    pub time_ns: u64,
    /// The direction; not [`Direction::None`].
    pub direction: Direction,
    /// Bytes of each packet, from the BTH to the ICRC.
    pub length: usize,
    /// Number of packets.
    pub packets: usize,
    /// The first packet, or the beginning of it. Bytes behind it are ignored.
    pub bytes: &'a [u8],
    /// Bytes of its headers, at most 48. All headers of a packet of a connection are shorter.
    pub captured: usize,
}

/// The addresses of packets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PathRecord {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// UDP source port.
    pub source_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 if it is not known.
    pub hop_limit: u8,
}

/// Word 1 of a cell that begins a record.
#[derive(Copy, Clone, Debug)]
pub(super) struct Head {
    pub(super) direction: Direction,
    pub(super) length: u16,
    pub(super) packets: u16,
    pub(super) captured: u8,
    pub(super) more: u8,
    pub(super) trouble: bool,
    pub(super) has_path: bool,
}

impl Head {
    #[inline]
    pub(super) fn word(self) -> u64 {
        let flags = (u8::from(self.trouble) * IS_TROUBLE) | (u8::from(self.has_path) * HAS_PATH);
        u64::from(self.length)
            | u64::from(self.packets) << 16
            | u64::from(self.captured) << 32
            | u64::from(self.more) << 40
            | (self.direction as u64) << 48
            | u64::from(flags) << 56
    }

    /// Reads a word that another process wrote. Returns none for a further cell, and for words
    /// that no writer makes.
    pub(super) fn parse(word: u64) -> Option<Head> {
        let [a, b, c, d, captured, more, kind, flags] = word.to_le_bytes();
        let is_valid = usize::from(captured) <= DATA && usize::from(more) <= MAX_MORE;
        is_valid.then_some(Head {
            direction: match kind {
                0 => Direction::None,
                1 => Direction::Sent,
                2 => Direction::Received,
                _ => return None,
            },
            length: u16::from_le_bytes([a, b]),
            packets: u16::from_le_bytes([c, d]),
            captured,
            more,
            trouble: flags & IS_TROUBLE != 0,
            has_path: flags & HAS_PATH != 0,
        })
    }

    /// Word 1 of a further cell.
    pub(super) const FURTHER: u64 = (FURTHER as u64) << 48;
}

impl PathRecord {
    pub(super) fn words(&self) -> [u64; PATH_WORDS] {
        let v6 = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let (source, destination) = (v6(self.source), v6(self.destination));
        let flags = IS_SET | (u8::from(self.source.is_ipv6()) * IS_V6);
        let [a, b] = self.source_port.to_le_bytes();
        let rest = [a, b, self.traffic_class, self.hop_limit, flags, 0, 0, 0];
        [
            source as u64,
            (source >> 64) as u64,
            destination as u64,
            (destination >> 64) as u64,
            u64::from_le_bytes(rest),
        ]
    }

    /// Reads words that another process wrote. Returns none if they are no path.
    pub(super) fn parse(words: [u64; PATH_WORDS]) -> Option<PathRecord> {
        let [a, b, traffic_class, hop_limit, flags, ..] = words[4].to_le_bytes();
        let address = |low: u64, high: u64| {
            let v6 = Ipv6Addr::from_bits(u128::from(low) | u128::from(high) << 64);
            match flags & IS_V6 {
                0 => v6.to_ipv4_mapped().map(IpAddr::V4),
                _ => Some(IpAddr::V6(v6)),
            }
        };
        (flags & IS_SET != 0).then_some(())?;
        Some(PathRecord {
            source: address(words[0], words[1])?,
            destination: address(words[2], words[3])?,
            source_port: u16::from_le_bytes([a, b]),
            traffic_class,
            hop_limit,
        })
    }
}

/// Returns the first 48 bytes of a packet as words; bytes that are missing are 0.
#[inline]
pub(super) fn data_words(bytes: &[u8]) -> [u64; DATA / 8] {
    // A fixed length compiles to a few loads.
    if let Some(long) = bytes.first_chunk::<DATA>() {
        return words(long);
    }
    let mut padded = [0; DATA];
    padded[..bytes.len()].copy_from_slice(bytes);
    words(&padded)
}

/// Returns the first `8 * N` bytes as words.
#[inline(always)]
pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    core::array::from_fn(|i| {
        let word = bytes[8 * i..].first_chunk().expect("eight bytes");
        u64::from_ne_bytes(*word)
    })
}
