//! The program's memory, which may vanish at any time.
//!
//! Registered memory is the program's: it may unmap it, or make it read-only,
//! while a peer writes to it. Such an access must fail the operation, not the
//! process. So every access goes through a few routines in [`access`] that may
//! fault: a handler for SIGSEGV and SIGBUS in [`handler`] recognises a fault in
//! one of them and makes it return an error; every other fault goes to
//! whatever handler the program had.
//!
//! A program may replace the handler later. A moment after that, or where there are no such
//! routines for the processor, [`syscalls`] does the same through the kernel:
//! slowly, but as safely. A program may block the signals: [`mask`] unblocks them for the
//! time of the access.

#[cfg(target_arch = "x86_64")]
mod access;
#[cfg(target_arch = "x86_64")]
mod handler;
mod lazy;
#[cfg(target_arch = "x86_64")]
mod mask;
mod syscalls;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ferroce_transport::{Fault, MemRef, Memory, MemorySpace, NULL_MEMORY, Time};

pub(crate) use lazy::LazyMemory;

/// What the last look at the handler found; 0 before the first.
static LAST_SEEN: AtomicU8 = AtomicU8::new(0);
const DIRECT: u8 = 1;
const SLOW: u8 = 2;

/// When [`ProcessMemory::at`] last looked, and how long it relies on that.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
const TRUST_NS: u64 = 1_000_000;

/// Memory of this process, for the thread that asked for it.
#[derive(Debug, Default)]
pub struct ProcessMemory {
    direct: bool,
    /// The thread has the signals of faults blocked otherwise.
    #[cfg(target_arch = "x86_64")]
    _unblocked: Option<mask::Unblocked>,
}

impl ProcessMemory {
    /// Looks which way of access is safe now: notices if the program has replaced
    /// the fault handler or blocked its signals. That takes three system calls, so not for
    /// every packet.
    pub fn current() -> ProcessMemory {
        ProcessMemory {
            direct: look(),
            #[cfg(target_arch = "x86_64")]
            _unblocked: mask::unblock_now(),
        }
    }

    /// As [`ProcessMemory::current`] not more than a millisecond ago, or 50 us for the
    /// signals: for those who come back after every packet.
    pub fn at(now: Time) -> ProcessMemory {
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

    /// As it was when somebody last looked, without a system call. For memory that the
    /// program hands over in this very call: if it has just replaced the handler or
    /// blocked its signals, and its memory is not there, it meets the fault as it would in
    /// its own code.
    pub fn recent() -> ProcessMemory {
        ProcessMemory {
            direct: last_look(),
            ..ProcessMemory::default()
        }
    }

    /// Whether accesses go through the kernel.
    pub fn is_slow(&self) -> bool {
        !self.direct
    }
}

/// Whether direct access is safe: faults go to our handler.
fn look() -> bool {
    #[cfg(target_arch = "x86_64")]
    let direct = handler::is_ours();
    #[cfg(not(target_arch = "x86_64"))]
    let direct = false;
    LAST_SEEN.store(if direct { DIRECT } else { SLOW }, Ordering::Relaxed);
    direct
}

/// The result of the last [`look`] of any thread.
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

/// Returns the address of memory that this process can access.
#[inline]
fn host_address(at: MemRef) -> u64 {
    let MemorySpace::Host = at.space;
    at.addr
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
