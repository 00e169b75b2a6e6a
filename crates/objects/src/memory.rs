//! Access to memory, as the caller provides it.
//!
//! The engine checks keys, permissions and ranges; then it asks the caller to
//! move the bytes. In a program the implementation is a guarded copy, under the
//! simulator it is a byte array, and either may find that the memory is gone.

use core::fmt;

/// The memory at an address could not be accessed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address asked for.
    pub address: u64,
}

impl core::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory at {:#x} is not accessible", self.address)
    }
}

/// From here on there is no memory of any program: it reads as zero, and what is
/// written is lost. Null regions lead here.
pub const NULL_MEMORY: u64 = 0xffff_0000_0000_0000;

/// Memory of the program.
///
/// Reads and writes at [`NULL_MEMORY`] and beyond succeed without touching anything.
/// Addresses are the program's own, already translated from what keys and
/// offsets said. Methods take `&self`: the program changes its memory at any
/// time, so nothing here may depend on exclusive access.
pub trait Memory {
    /// Copies memory into `into`.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;

    /// Copies `data` into memory.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), Fault>;

    /// Replaces the eight bytes at `address` by `new` if they equal `expected`;
    /// returns what was there. Atomic against the program's own atomics.
    fn compare_swap(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault>;

    /// Adds to the eight bytes at `address`, wrapping; returns what was there.
    fn fetch_add(&self, address: u64, add: u64) -> Result<u64, Fault>;

    /// Stores eight bytes at once, after all earlier writes.
    fn store_release(&self, address: u64, bytes: [u8; 8]) -> Result<(), Fault>;

    /// Makes earlier writes to the range visible to all, and durable if asked.
    fn flush(&self, address: u64, length: u64, persistent: bool) -> Result<(), Fault>;
}
