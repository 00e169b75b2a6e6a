//! References to a program's memory, and the trait that moves its bytes.
//!
//! A protocol engine checks keys, permissions and ranges. [`Regions`](crate::Regions) then
//! turns the address of a work request into a [`MemRef`], and the engine asks [`Memory`] to
//! copy the bytes. In a program, `Memory` is a copy that survives unmapped pages. Under the
//! simulator it is a byte array. Both can report a [`Fault`].

use core::fmt;

/// The kind of memory that an address belongs to.
///
/// A match on the space is exhaustive. So a new space does not compile until every place that
/// touches memory handles it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum MemorySpace {
    /// Memory of the program's process, which the processor reads and writes.
    #[default]
    Host,
    /// Memory of a GPU, by the number that the runtime has given to the GPU. Only copies by
    /// the GPU's driver reach it.
    Gpu(u8),
}

/// A reference to memory: a space and an address in it.
///
/// It is the result of a key check, so it carries no length and no permission.
///
/// Every piece of payload has a reference, so both parts share eight bytes. Addresses of a
/// process are below 2^63. From 2^63 to 3 * 2^62 follow GPUs, with six bits for the number and
/// 56 for the address. [`NULL_MEMORY`] lies behind them.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemRef(u64);

const _: () = assert!(size_of::<MemRef>() == size_of::<u64>());

/// The first number that is not the address of a process.
const HOST_END: u64 = 1 << 63;
/// Bits of the address of a GPU's memory.
const GPU_ADDRESS_BITS: u32 = 56;
/// The first number behind the addresses of GPUs.
const GPU_END: u64 = 0b11 << 62;
/// An address that no process can map.
const NOWHERE: u64 = 0xfffe << 48;

impl MemRef {
    /// Number of GPUs that references can name.
    pub const GPUS: u8 = 64;

    /// Returns a reference to memory of the program's process.
    #[inline]
    pub const fn host(addr: u64) -> MemRef {
        match addr {
            HOST_END..NULL_MEMORY => MemRef(NOWHERE),
            _ => MemRef(addr),
        }
    }

    /// Returns a reference to memory of a GPU; none if there are fewer GPUs or addresses.
    pub const fn gpu(number: u8, addr: u64) -> Option<MemRef> {
        if number >= MemRef::GPUS || addr >> GPU_ADDRESS_BITS != 0 {
            return None;
        }
        Some(MemRef(
            HOST_END | (number as u64) << GPU_ADDRESS_BITS | addr,
        ))
    }

    /// Returns the reference with these bits, which [`MemRef::bits`] returned, perhaps of
    /// another address in the same region.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> MemRef {
        MemRef(bits)
    }

    /// Returns space and address as one number, to which offsets can be added.
    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the space that the address belongs to.
    #[inline]
    pub const fn space(self) -> MemorySpace {
        match self.is_host() {
            true => MemorySpace::Host,
            false => MemorySpace::Gpu((self.0 >> GPU_ADDRESS_BITS) as u8 & (MemRef::GPUS - 1)),
        }
    }

    /// Returns the address as the program counts.
    #[inline]
    pub const fn addr(self) -> u64 {
        match self.is_host() {
            true => self.0,
            false => self.0 & ((1 << GPU_ADDRESS_BITS) - 1),
        }
    }

    /// True if this is memory of the program's process, or null memory.
    #[inline]
    pub const fn is_host(self) -> bool {
        self.0 < HOST_END || self.0 >= GPU_END
    }

    /// Returns the number of bytes from here to the end of the space. The address behind them
    /// is still one of the space.
    pub(crate) const fn room(self) -> u64 {
        match self.is_host() {
            true => (HOST_END - 1).saturating_sub(self.0),
            false => (1 << GPU_ADDRESS_BITS) - 1 - self.addr(),
        }
    }

    /// Returns the reference `bytes` further on, modulo 2^64.
    #[inline]
    pub const fn offset(self, bytes: u64) -> MemRef {
        MemRef(self.0.wrapping_add(bytes))
    }
}

impl fmt::Debug for MemRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for MemRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.space() {
            MemorySpace::Host => write!(f, "{:#x}", self.0),
            MemorySpace::Gpu(number) => write!(f, "{:#x} of GPU {number}", self.addr()),
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

/// The first host address behind all memory of any program and GPU. Reads from here on return
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

    /// Copies `data` into memory. The program may see it only after
    /// [`Memory::complete_writes`].
    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault>;

    /// Copies pieces of equal length one behind the other into memory. Returns how many it
    /// has copied before the first fault.
    fn write_run(&self, at: MemRef, pieces: &mut dyn Iterator<Item = &[u8]>) -> u32 {
        let (mut at, mut written) = (at, 0);
        for data in pieces {
            if self.write(at, data).is_err() {
                break;
            }
            at = at.offset(data.len() as u64);
            written += 1;
        }
        written
    }

    /// Waits until earlier writes have reached memory. To be called before a program or a
    /// peer learns that the data is there.
    #[inline]
    fn complete_writes(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Announces the ranges of the next reads, in their order, for memory whose single reads
    /// are slow. A range that cannot be read causes a fault later.
    fn prefetch(&self, _ranges: &mut dyn Iterator<Item = (MemRef, u64)>) {}

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
    fn references_keep_space_and_address() {
        for addr in [0, 1, 0x7fff_ffff_ffff, HOST_END - 1, NULL_MEMORY, u64::MAX] {
            let at = MemRef::host(addr);
            assert_eq!((at.space(), at.addr()), (MemorySpace::Host, addr));
        }
        for number in 0..MemRef::GPUS {
            for addr in [0, 0x7f00_0000_0000, (1 << GPU_ADDRESS_BITS) - 1] {
                let at = MemRef::gpu(number, addr).unwrap();
                assert_eq!((at.space(), at.addr()), (MemorySpace::Gpu(number), addr));
                assert!(!at.is_host());
            }
        }
        let at = MemRef::gpu(3, 0x1000).unwrap();
        assert_eq!(Some(at.offset(8)), MemRef::gpu(3, 0x1008));
        assert_eq!(at.to_string(), "0x1000 of GPU 3");
    }

    #[test]
    fn host_address_is_never_one_of_a_gpu() {
        for addr in [HOST_END, HOST_END + 0x1000, GPU_END - 1, GPU_END, NOWHERE] {
            let at = MemRef::host(addr);
            assert_eq!(at.space(), MemorySpace::Host);
            assert!(at.addr() >= HOST_END && at.addr() < NULL_MEMORY);
        }
        assert_eq!(MemRef::gpu(MemRef::GPUS, 0), None);
        assert_eq!(MemRef::gpu(0, 1 << GPU_ADDRESS_BITS), None);
    }
}
