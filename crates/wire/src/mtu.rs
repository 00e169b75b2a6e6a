//! The path MTU: the largest payload of one packet.

/// One of the five path MTUs of InfiniBand, ordered by size. The discriminants are
/// the values of `enum ibv_mtu`.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// All five MTUs, smallest first.
    pub const ALL: [Mtu; 5] = [
        Mtu::Mtu256,
        Mtu::Mtu512,
        Mtu::Mtu1024,
        Mtu::Mtu2048,
        Mtu::Mtu4096,
    ];

    /// Bytes that rxe reserves for headers when it derives the path MTU from the MTU of
    /// the network device: IPv6, UDP and the longest RC headers.
    pub const OVERHEAD: u32 = 80;

    /// Returns the number of payload bytes per packet.
    #[inline]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// Returns the MTU of exactly this many bytes.
    pub const fn from_bytes(bytes: usize) -> Option<Mtu> {
        Some(match bytes {
            256 => Mtu::Mtu256,
            512 => Mtu::Mtu512,
            1024 => Mtu::Mtu1024,
            2048 => Mtu::Mtu2048,
            4096 => Mtu::Mtu4096,
            _ => return None,
        })
    }

    /// Returns the MTU with this `enum ibv_mtu` value, 1 to 5.
    pub const fn from_enum(value: u32) -> Option<Mtu> {
        match value {
            1..=5 => Some(Self::ALL[value as usize - 1]),
            _ => None,
        }
    }

    /// Returns the `enum ibv_mtu` value, 1 to 5.
    pub const fn to_enum(self) -> u32 {
        self as u32
    }

    /// Returns the largest path MTU that fits a network device of this MTU, or 256 if
    /// none fits.
    pub const fn largest_fitting(netdev_mtu: u32) -> Mtu {
        let room = netdev_mtu.saturating_sub(Self::OVERHEAD) as usize;
        let mut i = Self::ALL.len() - 1;
        while i > 0 && Self::ALL[i].bytes() > room {
            i -= 1;
        }
        Self::ALL[i]
    }
}
