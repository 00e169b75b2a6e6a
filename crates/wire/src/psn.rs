//! Packet sequence numbers.

use core::fmt;

/// A packet sequence number: 24 bits, compared modulo 2^24.
///
/// `Psn` does not implement `Ord`: one PSN is before another only within half the number
/// space, so the order is not transitive.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00ff_ffff;

    /// Returns the PSN in the low 24 bits of `v`.
    #[inline]
    pub const fn new(v: u32) -> Psn {
        Psn(v & Self::MASK)
    }

    /// Returns the number, which is below 2^24.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the PSN `n` packets later.
    // Not the `Add` operator: this function is const, and `n` is a count, not a PSN.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub const fn add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }

    /// Returns the PSN `n` packets earlier.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub const fn sub(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }

    /// Returns the following PSN.
    #[inline]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// Returns the preceding PSN.
    #[inline]
    pub const fn prev(self) -> Psn {
        self.sub(1)
    }

    /// Returns `self - earlier`, from -2^23 to 2^23 - 1.
    #[inline]
    pub const fn distance(self, earlier: Psn) -> i32 {
        (self.0.wrapping_sub(earlier.0) << 8) as i32 >> 8
    }

    /// Returns true if `self` is before `other` by at most half the number space.
    #[inline]
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance(other) < 0
    }

    /// Returns true if `self` is after `other` by less than half the number space.
    #[inline]
    pub const fn is_after(self, other: Psn) -> bool {
        self.distance(other) > 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}
