//! A piece of registered memory, as it is named to a peer: in greetings in network
//! byte order, in memory in the byte order of the peer who will read it.

use super::array;

/// Address, key, and length.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Region {
    pub(crate) addr: u64,
    pub(crate) key: u32,
    pub(crate) length: u32,
}

pub(crate) const REGION_LEN: usize = 16;

/// How numbers lie in memory that two hosts share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    /// This machine's.
    pub(crate) const NATIVE: ByteOrder = if cfg!(target_endian = "big") {
        ByteOrder::Big
    } else {
        ByteOrder::Little
    };
}

impl Region {
    pub(crate) fn encode(self, order: ByteOrder) -> [u8; REGION_LEN] {
        let Region { addr, key, length } = self;
        let mut bytes = [0; REGION_LEN];
        let (a, k, l) = match order {
            ByteOrder::Big => (addr.to_be_bytes(), key.to_be_bytes(), length.to_be_bytes()),
            ByteOrder::Little => (addr.to_le_bytes(), key.to_le_bytes(), length.to_le_bytes()),
        };
        bytes[..8].copy_from_slice(&a);
        bytes[8..12].copy_from_slice(&k);
        bytes[12..].copy_from_slice(&l);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; REGION_LEN], order: ByteOrder) -> Region {
        let (addr, key, length) = (array(bytes, 0), array(bytes, 8), array(bytes, 12));
        match order {
            ByteOrder::Big => Region {
                addr: u64::from_be_bytes(addr),
                key: u32::from_be_bytes(key),
                length: u32::from_be_bytes(length),
            },
            ByteOrder::Little => Region {
                addr: u64::from_le_bytes(addr),
                key: u32::from_le_bytes(key),
                length: u32::from_le_bytes(length),
            },
        }
    }
}

/// Memory of a program that its peer may write to, under an offset.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct IomapEntry {
    pub(crate) offset: u64,
    pub(crate) region: Region,
}

pub(crate) const IOMAP_LEN: usize = 8 + REGION_LEN;

impl IomapEntry {
    pub(crate) fn encode(self, order: ByteOrder) -> [u8; IOMAP_LEN] {
        let mut bytes = [0; IOMAP_LEN];
        bytes[..8].copy_from_slice(&match order {
            ByteOrder::Big => self.offset.to_be_bytes(),
            ByteOrder::Little => self.offset.to_le_bytes(),
        });
        bytes[8..].copy_from_slice(&self.region.encode(order));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; IOMAP_LEN], order: ByteOrder) -> IomapEntry {
        let offset = array(bytes, 0);
        IomapEntry {
            offset: match order {
                ByteOrder::Big => u64::from_be_bytes(offset),
                ByteOrder::Little => u64::from_le_bytes(offset),
            },
            region: Region::decode(&array(bytes, 8), order),
        }
    }

    /// Where in the peer's memory an offset lies, and how many bytes follow it.
    pub(crate) fn find(&self, offset: u64) -> Option<(u64, u32)> {
        let inside = offset.checked_sub(self.offset)?;
        let left = u64::from(self.region.length).checked_sub(inside)?;
        (left > 0).then(|| (self.region.addr.wrapping_add(inside), left as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first WRITE of `rsocket-v4.pcap`.
    #[test]
    fn a_region_of_the_capture() {
        let bytes = [
            0x00, 0x50, 0xee, 0xb2, 0x6f, 0x7f, 0, 0, 0x2d, 0x1a, 0, 0, 0, 0, 8, 0,
        ];
        let region = Region {
            addr: 0x7f6f_b2ee_5000,
            key: 0x1a2d,
            length: 0x80000,
        };
        assert_eq!(Region::decode(&bytes, ByteOrder::Little), region);
        assert_eq!(region.encode(ByteOrder::Little), bytes);
        assert_ne!(region.encode(ByteOrder::Big), bytes);
    }

    #[test]
    fn an_offset_is_found_where_it_was_mapped_and_nowhere_else() {
        let entry = IomapEntry {
            offset: 100,
            region: Region {
                addr: 5000,
                key: 1,
                length: 10,
            },
        };
        for order in [ByteOrder::Big, ByteOrder::Little] {
            assert_eq!(IomapEntry::decode(&entry.encode(order), order), entry);
        }
        assert_eq!(entry.find(100), Some((5000, 10)));
        assert_eq!(entry.find(109), Some((5009, 1)));
        assert_eq!((entry.find(99), entry.find(110)), (None, None));
        assert_eq!(IomapEntry::default().find(0), None);
    }
}
