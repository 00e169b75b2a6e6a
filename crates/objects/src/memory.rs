//! References to a program's memory, and the trait that moves its bytes.
//!
//! A protocol engine checks keys, permissions and ranges. [`Regions`](crate::Regions) then
//! turns the address of a work request into a [`MemRef`], and the engine asks [`Memory`] to
//! copy the bytes. In a program, `Memory` is a copy that survives unmapped pages. Under the
//! simulator it is a byte array. Both can report a [`Fault`].

use core::fmt;

/// The kind of memory that an address belongs to.
///
/// A match on the space is exhaustive, or an irrefutable pattern such as
/// `let MemorySpace::Host = space;`. So a new space does not compile until every place that
/// touches memory handles it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum MemorySpace {
    /// Memory of the program's process, which the processor reads and writes.
    #[default]
    Host,
}

impl MemorySpace {
    /// All spaces, in the order of their codes.
    const ALL: [MemorySpace; 1] = [MemorySpace::Host];

    /// Returns a number for storage in an atomic.
    #[inline]
    pub(crate) const fn code(self) -> u8 {
        match self {
            MemorySpace::Host => 0,
        }
    }

    /// Returns the space with the given code. Panics if `code` never returned it.
    #[inline]
    pub(crate) const fn from_code(code: u8) -> MemorySpace {
        MemorySpace::ALL[code as usize]
    }
}

/// A reference to memory: a space and an address in it.
///
/// It is the result of a key check, so it carries no length and no permission.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemRef {
    /// The space that the address belongs to.
    pub space: MemorySpace,
    /// The address as the program counts.
    pub addr: u64,
}

// Every piece of payload has a reference. While there is one space, it costs no byte; with
// the second, decide how to pack it.
const _: () = assert!(size_of::<MemRef>() == size_of::<u64>());

impl MemRef {
    /// Returns a reference to memory of the program's process.
    #[inline]
    pub const fn host(addr: u64) -> MemRef {
        MemRef {
            space: MemorySpace::Host,
            addr,
        }
    }

    /// Returns the reference `bytes` further on, modulo 2^64.
    #[inline]
    pub const fn offset(self, bytes: u64) -> MemRef {
        MemRef {
            addr: self.addr.wrapping_add(bytes),
            ..self
        }
    }
}

impl fmt::Display for MemRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.space {
            MemorySpace::Host => write!(f, "{:#x}", self.addr),
        }
    }
}

/// A failed access to memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Start of the access.
    pub at: MemRef,
}

impl Fault {
    /// Returns the fault of an access to memory of the program's process.
    #[inline]
    pub const fn host(addr: u64) -> Fault {
        Fault {
            at: MemRef::host(addr),
        }
    }
}

impl core::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory at {} is not accessible", self.at)
    }
}

/// The first host address behind all memory of any program. Reads from here on return
/// zeroes, and writes are discarded. Keys of null regions lead to this address.
pub const NULL_MEMORY: u64 = 0xffff_0000_0000_0000;

/// The memory of a program.
///
/// Reads and writes at [`NULL_MEMORY`] and beyond succeed without touching memory. Methods
/// take `&self`: the program changes its memory at any time, so an implementation cannot
/// rely on exclusive access.
pub trait Memory {
    /// Copies memory into `into`.
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault>;

    /// Copies `data` into memory.
    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault>;

    /// Replaces the eight bytes at `at` by `new` if they equal `expected`. Returns their old
    /// value. The operation is atomic with respect to the program's own atomics.
    fn compare_swap(&self, at: MemRef, expected: u64, new: u64) -> Result<u64, Fault>;

    /// Adds `add` to the eight bytes at `at`, modulo 2^64. Returns their old value.
    fn fetch_add(&self, at: MemRef, add: u64) -> Result<u64, Fault>;

    /// Stores eight bytes in one access, after all earlier writes.
    fn store_release(&self, at: MemRef, bytes: [u8; 8]) -> Result<(), Fault>;

    /// Makes earlier writes to the range globally visible, and persistent if asked.
    fn flush(&self, at: MemRef, length: u64, persistent: bool) -> Result<(), Fault>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_spaces_correspond() {
        for (code, space) in MemorySpace::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(space.code()), code);
            assert_eq!(MemorySpace::from_code(code as u8), space);
        }
    }
}
