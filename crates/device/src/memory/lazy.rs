//! Access to the program's memory that is prepared when it is first used.

use std::cell::OnceCell;

use ferroce_roce::{Fault, MemRef, Memory, Time};

use super::ProcessMemory;

/// Memory of this process as [`ProcessMemory::at`] gives it. Most turns access none, and
/// then the signal mask and the fault handler need no check.
#[derive(Debug)]
pub(crate) struct LazyMemory {
    now: Time,
    memory: OnceCell<ProcessMemory>,
}

impl LazyMemory {
    pub(crate) fn new(now: Time) -> LazyMemory {
        LazyMemory {
            now,
            memory: OnceCell::new(),
        }
    }

    #[inline]
    fn get(&self) -> &ProcessMemory {
        // SAFETY: only the engine of a shard gets a `LazyMemory`, and it passes addresses
        // that a key check returned. So they lie in regions of `Device::register`, whose
        // caller permits these accesses until `Device::deregister` returns. That call takes
        // the shard's lock after it has removed the key, and the engine holds the lock from
        // the check to the last byte of the access.
        self.memory
            .get_or_init(|| unsafe { ProcessMemory::at(self.now) })
    }
}

impl Memory for LazyMemory {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        self.get().read(at, into)
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        self.get().write(at, data)
    }

    fn compare_swap(&self, at: MemRef, expected: u64, new: u64) -> Result<u64, Fault> {
        self.get().compare_swap(at, expected, new)
    }

    fn fetch_add(&self, at: MemRef, add: u64) -> Result<u64, Fault> {
        self.get().fetch_add(at, add)
    }

    fn store_release(&self, at: MemRef, bytes: [u8; 8]) -> Result<(), Fault> {
        self.get().store_release(at, bytes)
    }

    fn flush(&self, at: MemRef, length: u64, persistent: bool) -> Result<(), Fault> {
        self.get().flush(at, length, persistent)
    }
}
