//! Access to the program's memory that is prepared when it is first used.

use std::cell::OnceCell;

use ferroce_roce::{Fault, MemRef, Memory, Time};

use super::{ProcessMemory, observed};
use crate::gpu::GpuCopies;

/// Memory of this process as [`ProcessMemory::at`] gives it, and that of GPUs. Most turns
/// access none, and then the signal mask and the fault handler need no check.
#[derive(Debug)]
pub(crate) struct LazyMemory<'a> {
    now: Time,
    memory: OnceCell<ProcessMemory>,
    gpu: &'a GpuCopies,
}

impl LazyMemory<'_> {
    pub(crate) fn new(now: Time, gpu: &GpuCopies) -> LazyMemory<'_> {
        LazyMemory {
            now,
            memory: OnceCell::new(),
            gpu,
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

impl Memory for LazyMemory<'_> {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        match at.is_host() {
            true => self.get().read(at, into),
            false => self.gpu.read(at, into),
        }
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        match at.is_host() {
            true if observed::is_on() => {
                observed::write(at, data, |at, part| self.get().write(at, part))
            }
            true => self.get().write(at, data),
            false => self.gpu.write(at, data),
        }
    }

    fn write_run(&self, at: MemRef, pieces: &mut dyn Iterator<Item = &[u8]>) -> u32 {
        match at.is_host() {
            true if observed::is_on() => {
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
            true => self.get().write_run(at, pieces),
            false => self.gpu.write_run(at, pieces),
        }
    }

    #[inline]
    fn complete_writes(&self) -> Result<(), Fault> {
        self.gpu.complete_writes()
    }

    fn prefetch(&self, ranges: &mut dyn Iterator<Item = (MemRef, u64)>) {
        self.gpu.prefetch(ranges);
    }

    fn compare_swap(&self, at: MemRef, expected: u64, new: u64) -> Result<u64, Fault> {
        let swap = |old| if old == expected { new } else { old };
        if observed::is_on() {
            observed::note(at, 8);
        }
        match at.is_host() {
            true => self.get().compare_swap(at, expected, new),
            false => self.gpu.update(at, swap),
        }
    }

    fn fetch_add(&self, at: MemRef, add: u64) -> Result<u64, Fault> {
        if observed::is_on() {
            observed::note(at, 8);
        }
        match at.is_host() {
            true => self.get().fetch_add(at, add),
            false => self.gpu.update(at, |old| old.wrapping_add(add)),
        }
    }

    fn store_release(&self, at: MemRef, bytes: [u8; 8]) -> Result<(), Fault> {
        if observed::is_on() {
            observed::note(at, 8);
        }
        match at.is_host() {
            true => self.get().store_release(at, bytes),
            // The copies of a stream happen in their order.
            false => self.gpu.write(at, &bytes).and(self.gpu.complete_writes()),
        }
    }

    fn flush(&self, at: MemRef, length: u64, persistent: bool) -> Result<(), Fault> {
        match (at.is_host(), persistent) {
            (true, _) => self.get().flush(at, length, persistent),
            (false, false) => self.gpu.complete_writes(),
            // Memory of a GPU is lost with its power.
            (false, true) => Err(Fault { at }),
        }
    }
}
