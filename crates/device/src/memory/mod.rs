//! Access to the program's memory, which may be unmapped at any time.
//!
//! A program may unmap registered memory, or make it read-only, while a peer writes to it.
//! The access must fail the operation and not the process. So every access goes through a
//! few routines in [`access`] that may fault. A handler for SIGSEGV and SIGBUS in [`handler`]
//! recognises a fault in one of these routines and makes the routine return an error. Every
//! other fault goes to the handler that the program had.
//!
//! A program may replace the handler later. Within a millisecond of that, and on processors
//! without such routines, [`syscalls`] copies through the kernel: slower, and as safe. A
//! program may block the signals: [`mask`] unblocks them during the access.

#[cfg(target_arch = "x86_64")]
mod access;
pub(crate) mod copy;
#[cfg(target_arch = "x86_64")]
mod handler;
mod lazy;
#[cfg(target_arch = "x86_64")]
mod mask;
pub mod observed;
mod syscalls;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ferroce_roce::{Fault, MemRef, Memory, MemorySpace, NULL_MEMORY, Time};

pub(crate) use lazy::LazyMemory;

/// Result of the last check of the handler; 0 before the first.
static LAST_SEEN: AtomicU8 = AtomicU8::new(0);
const DIRECT: u8 = 1;
const SLOW: u8 = 2;

/// Time of the last check by [`ProcessMemory::at`].
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// An address that no process can map.
const NO_MEMORY: u64 = NULL_MEMORY - (1 << 32);
/// Time for which the result of a check is used.
const TRUST_NS: u64 = 1_000_000;

/// Access to the memory of this process, for one thread.
///
/// Its methods take any address and report an address without memory as a [`Fault`]. They
/// cannot know to whom other memory belongs, so the functions that create a `ProcessMemory`
/// are unsafe.
#[derive(Debug)]
pub struct ProcessMemory {
    direct: bool,
    /// Set if the thread had the signals of faults blocked.
    #[cfg(target_arch = "x86_64")]
    _unblocked: Option<mask::Unblocked>,
}

impl ProcessMemory {
    /// Checks which kind of access is safe now: whether the program has replaced the fault
    /// handler or blocked its signals. The check takes three system calls: too many for
    /// every packet.
    ///
    /// # Safety
    ///
    /// The caller passes only addresses of memory that may be accessed: registered memory, or
    /// memory of the caller to which no Rust reference exists. For reads, shared references
    /// are permitted. Memory that is not mapped is permitted too.
    pub unsafe fn current() -> ProcessMemory {
        ProcessMemory {
            direct: look(),
            #[cfg(target_arch = "x86_64")]
            _unblocked: mask::unblock_now(),
        }
    }

    /// As [`ProcessMemory::current`], but uses the result of a check that is at most a
    /// millisecond old, or 50 us for the signals. For callers in every turn.
    ///
    /// # Safety
    ///
    /// As [`ProcessMemory::current`].
    pub(crate) unsafe fn at(now: Time) -> ProcessMemory {
        let looked = Time::from_nanos(LOOKED_AT.load(Ordering::Acquire));
        let direct = match now.nanos_since(looked) < TRUST_NS {
            true => last_look(),
            false => {
                let direct = look();
                LOOKED_AT.store(now.as_nanos(), Ordering::Release);
                direct
            }
        };
        ProcessMemory {
            direct,
            #[cfg(target_arch = "x86_64")]
            _unblocked: direct.then(|| mask::unblock(now)).flatten(),
        }
    }

    /// Uses the result of the last check, however old, and makes no system call. For memory
    /// that the program passes in this very call: if the program has just replaced the
    /// handler or blocked its signals, a fault there ends it as in its own code.
    ///
    /// # Safety
    ///
    /// As [`ProcessMemory::current`].
    pub unsafe fn recent() -> ProcessMemory {
        ProcessMemory {
            direct: last_look(),
            #[cfg(target_arch = "x86_64")]
            _unblocked: None,
        }
    }

    /// Returns true if accesses go through the kernel.
    pub fn is_slow(&self) -> bool {
        !self.direct
    }
}

/// Checks whether direct access is safe: faults reach the handler of this crate.
fn look() -> bool {
    #[cfg(target_arch = "x86_64")]
    let direct = handler::is_ours();
    #[cfg(not(target_arch = "x86_64"))]
    let direct = false;
    LAST_SEEN.store(if direct { DIRECT } else { SLOW }, Ordering::Relaxed);
    direct
}

/// Returns the result of the last [`look`] of any thread.
fn last_look() -> bool {
    match LAST_SEEN.load(Ordering::Relaxed) {
        DIRECT => true,
        SLOW => false,
        _ => look(),
    }
}

/// Runs the direct routine, or the one through the kernel.
macro_rules! either {
    ($self:ident, $direct:expr, $slow:expr) => {{
        #[cfg(target_arch = "x86_64")]
        if $self.direct {
            return $direct;
        }
        $slow
    }};
}

/// Returns the address of memory that this process can access. The bits of a reference to
/// memory of a GPU are an address that faults: [`LazyMemory`] passes none.
#[inline]
fn host_address(at: MemRef) -> u64 {
    match at.space() {
        MemorySpace::Host => at.addr(),
        MemorySpace::Gpu(_) => NO_MEMORY,
    }
}

impl Memory for ProcessMemory {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        let address = host_address(at);
        if address >= NULL_MEMORY {
            into.fill(0);
            return Ok(());
        }
        either!(
            self,
            access::read(address, into),
            syscalls::read(address, into)
        )
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        let address = host_address(at);
        if address >= NULL_MEMORY {
            return Ok(());
        }
        either!(
            self,
            access::write(address, data),
            syscalls::write(address, data)
        )
    }

    fn compare_swap(&self, at: MemRef, expected: u64, new: u64) -> Result<u64, Fault> {
        let address = host_address(at);
        either!(
            self,
            access::compare_swap(address, expected, new),
            syscalls::compare_swap(address, expected, new)
        )
    }

    fn fetch_add(&self, at: MemRef, add: u64) -> Result<u64, Fault> {
        let address = host_address(at);
        either!(
            self,
            access::fetch_add(address, add),
            syscalls::fetch_add(address, add)
        )
    }

    fn store_release(&self, at: MemRef, bytes: [u8; 8]) -> Result<(), Fault> {
        let address = host_address(at);
        let value = u64::from_ne_bytes(bytes);
        either!(
            self,
            access::store(address, value),
            syscalls::store(address, value)
        )
    }

    fn flush(&self, at: MemRef, length: u64, persistent: bool) -> Result<(), Fault> {
        let address = host_address(at);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        match persistent {
            true => syscalls::persist(address, length),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
