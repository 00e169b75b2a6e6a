//! The private data of REQ and REP: credits and buffers that each side of a stream offers.

use super::region::{ByteOrder, REGION_LEN, Region};
use super::{Malformed, array};

/// The private data of REQ or REP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Greeting {
    /// The sender's byte order in memory.
    pub(crate) order: ByteOrder,
    /// The number of data messages that the receiver of the greeting may send at first.
    pub(crate) credits: u16,
    /// The number of iomaps that the sender has room for; `None` if it has no iomaps.
    pub(crate) iomaps: Option<u32>,
    /// The table to which receive buffers are published; `length` counts its entries.
    pub(crate) targets: Region,
    /// The first receive buffer of the sender.
    pub(crate) buffer: Region,
}

/// The length of an encoded greeting in bytes.
pub(super) const GREETING_LEN: usize = 8 + 2 * REGION_LEN;

const VERSION: u8 = 1;
const BIG_ENDIAN: u8 = 1 << 0;
const IOMAPS: u8 = 1 << 1;

impl Greeting {
    /// Returns the greeting as private data.
    pub(crate) fn encode(&self) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[0] = VERSION;
        bytes[1] = match self.order {
            ByteOrder::Big => BIG_ENDIAN,
            ByteOrder::Little => 0,
        };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        if let Some(iomaps) = self.iomaps {
            bytes[1] |= IOMAPS;
            bytes[7] = to_scale(iomaps);
        }
        bytes[8..24].copy_from_slice(&self.targets.encode(ByteOrder::Big));
        bytes[24..].copy_from_slice(&self.buffer.encode(ByteOrder::Big));
        bytes
    }

    /// Reads a greeting from private data, which the connection manager pads with zeros.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Greeting, Malformed> {
        if bytes.len() < GREETING_LEN {
            return Err(Malformed("the private data is too short for an rsocket"));
        }
        if bytes[0] != VERSION {
            return Err(Malformed("the rsocket protocol version is not 1"));
        }
        let greeting = Greeting {
            order: if bytes[1] & BIG_ENDIAN != 0 {
                ByteOrder::Big
            } else {
                ByteOrder::Little
            },
            credits: u16::from_be_bytes(array(bytes, 2)),
            iomaps: (bytes[1] & IOMAPS != 0).then(|| from_scale(bytes[7])),
            targets: Region::decode(&array(bytes, 8), ByteOrder::Big),
            buffer: Region::decode(&array(bytes, 24), ByteOrder::Big),
        };
        if greeting.targets.length == 0 {
            return Err(Malformed(
                "the peer's table of receive buffers has no entries",
            ));
        }
        Ok(greeting)
    }
}

/// Returns the number of iomaps that a greeting announces if `wanted` are asked for:
/// numbers above 128 are encoded as multiples of 256.
pub(crate) fn iomap_capacity(wanted: u32) -> u32 {
    from_scale(to_scale(wanted))
}

fn to_scale(value: u32) -> u8 {
    match value {
        0..=0x80 => value as u8,
        _ => 0x80 | (value >> 8).min(0x7f) as u8,
    }
}

fn from_scale(scale: u8) -> u32 {
    match scale {
        0..=0x80 => scale.into(),
        _ => u32::from(scale & 0x7f) << 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    }

    /// REQ and REP of `rsocket-v4.pcap`, without the address header of rdma_cm.
    #[test]
    fn captured_greetings_round_trip() {
        let request = bytes(
            "01020180 00000000 00007f6fac003000 00001960 00000002
             00007f6fb2e65000 00001a2d 00080000",
        );
        let reply = bytes(
            "01020180 00000000 00007f7b90003000 00001366 00000002
             00007f7b97596000 000014b0 00080000",
        );
        let greeting = Greeting {
            order: ByteOrder::Little,
            credits: 384,
            iomaps: Some(0),
            targets: Region {
                addr: 0x7f6f_ac00_3000,
                key: 0x1960,
                length: 2,
            },
            buffer: Region {
                addr: 0x7f6f_b2e6_5000,
                key: 0x1a2d,
                length: 0x80000,
            },
        };
        assert_eq!(Greeting::decode(&request), Ok(greeting));
        assert_eq!(greeting.encode()[..], request);
        let reply_read = Greeting::decode(&reply).unwrap();
        assert_eq!(reply_read.targets.addr, 0x7f7b_9000_3000);
        assert_eq!(reply_read.encode()[..], reply);
    }

    #[test]
    fn padding_is_ignored_and_short_private_data_refused() {
        let greeting = bytes(
            "01030180 00000005 00007f6fac003000 00001960 00000002
             00007f6fb2e65000 00001a2d 00080000 ffffffff",
        );
        let read = Greeting::decode(&greeting).unwrap();
        assert_eq!((read.order, read.iomaps), (ByteOrder::Big, Some(5)));
        for length in 0..GREETING_LEN {
            assert!(Greeting::decode(&greeting[..length]).is_err());
        }
        for (at, value) in [(0, 2), (23, 0)] {
            let mut bad = greeting.clone();
            bad[at] = value;
            assert!(Greeting::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn more_than_128_iomaps_are_announced_in_multiples_of_256() {
        for (wanted, got) in [
            (0, 0),
            (1, 1),
            (128, 128),
            (256, 256),
            (300, 256),
            (9999, 9984),
        ] {
            assert_eq!(iomap_capacity(wanted), got);
        }
        assert_eq!(iomap_capacity(u32::MAX), 0x7f00);
    }
}
