//! Registered memory as peers describe it to each other: in greetings in network byte
//! order, in tables in the byte order of the host that holds the table.

use super::array;

/// A piece of a host's registered memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Region {
    /// The address of the first byte.
    pub(crate) addr: u64,
    /// The rkey.
    pub(crate) key: u32,
    /// The number of bytes; of table entries, where the region is a table.
    pub(crate) length: u32,
}

/// The length of an encoded region in bytes.
pub(crate) const REGION_LEN: usize = 16;

/// The byte order of numbers in a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ByteOrder {
    /// Most significant byte first.
    Big,
    /// Least significant byte first.
    Little,
}

impl ByteOrder {
    /// The byte order of this host.
    pub(crate) const NATIVE: ByteOrder = if cfg!(target_endian = "big") {
        ByteOrder::Big
    } else {
        ByteOrder::Little
    };
}

impl Region {
    /// Returns the region as bytes.
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

    /// Reads a region.
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

/// A program's memory that its peer may write to with `riowrite`, at an offset.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct IomapEntry {
    /// The offset of the first byte.
    pub(crate) offset: u64,
    /// The memory.
    pub(crate) region: Region,
}

/// The length of an encoded entry in bytes.
pub(crate) const IOMAP_LEN: usize = 8 + REGION_LEN;

impl IomapEntry {
    /// Returns the entry as bytes.
    pub(crate) fn encode(self, order: ByteOrder) -> [u8; IOMAP_LEN] {
        let mut bytes = [0; IOMAP_LEN];
        bytes[..8].copy_from_slice(&match order {
            ByteOrder::Big => self.offset.to_be_bytes(),
            ByteOrder::Little => self.offset.to_le_bytes(),
        });
        bytes[8..].copy_from_slice(&self.region.encode(order));
        bytes
    }

    /// Reads an entry.
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

    /// Returns the address of an offset in the peer's memory, and the number of bytes from
    /// there to the end of the entry.
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
    fn captured_region_round_trips() {
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
    fn offset_is_found_only_inside_its_entry() {
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
