//! Memory of GPUs, through CUDA's driver library.
//!
//! ```text
//!   register: locate ---> Gpu, one per context of the driver: stream
//!                          |
//!   shard: GpuCopies ---> Session: pinned staging memory
//! ```
//!
//! The processor cannot access the memory of a GPU. A program may register it nevertheless: an
//! adapter reaches it over PCI. Here the GPU copies the data, between its memory and pinned
//! staging memory of the shard. A started copy costs 2 us, and waiting for it 5 us more. So
//! packets that arrive merged are one copy, the wait comes at the end of each message, and the
//! payload of a batch to send is fetched together.
//!
//! A completion or an ACK is visible only after the data is in the memory of the GPU:
//! [`Memory::complete_writes`](ferroce_roce::Memory::complete_writes) waits for the copies. So
//! a kernel that the program starts after the completion sees the data, as does one that runs
//! already and learns of the completion through host memory.

mod copies;
mod driver;
mod session;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ferroce_control::PerProcess;
use ferroce_roce::{Fault, MemRef, VerbsError};

pub(crate) use copies::GpuCopies;
use driver::{
    Context, CudaError, CurrentContext, Driver, MEMORY_TYPE_DEVICE, Search, Stream, attribute,
};
use session::Session;

/// Bytes of a page of the processor.
const PAGE: u64 = 4096;
/// Bytes of a page of a GPU.
const GPU_PAGE: u64 = 64 << 10;
/// Allocations of CUDA begin at multiples of this.
const ALIGNMENT: usize = 256;

/// The GPUs of this process. A forked child cannot use those of its parent.
static GPUS: PerProcess<Gpus> = PerProcess::new();

#[derive(Debug, Default)]
struct Gpus {
    search: Search,
    known: Mutex<Vec<Arc<Gpu>>>,
    /// Sessions of devices that were closed.
    idle: Mutex<Vec<Session>>,
}

/// A context of a GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    /// The number in references to memory.
    number: u8,
    /// The process that the context belongs to.
    process: u32,
    driver: &'static Driver,
    context: Context,
    /// The stream of all copies.
    stream: OnceLock<Stream>,
    /// Held during an atomic operation.
    atomics: Mutex<()>,
}

impl Gpu {
    /// Returns the stream of all copies, also those of other shards.
    ///
    /// The streams of a process share a few queues of the GPU. A copy in one queue with a kernel
    /// that waits for the data of the copy waits for ever. The fewer streams, the less likely
    /// that is: under MPS, NCCL worked with one shard's stream and stopped with those of four.
    fn stream(&self, entered: &CurrentContext<'_>) -> Result<Stream, CudaError> {
        if let Some(stream) = self.stream.get() {
            return Ok(*stream);
        }
        // Two threads may both create one: then one stream is left unused.
        let stream = entered.create_stream()?;
        Ok(*self.stream.get_or_init(|| stream))
    }

    fn enter(&self) -> Result<CurrentContext<'_>, CudaError> {
        self.driver.enter(self.context)
    }
}

/// Memory of a GPU that a program wants to register.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) memory: MemRef,
    gpu: Arc<Gpu>,
}

impl Located {
    /// Prepares a shard for copies from and to this memory.
    pub(crate) fn prepare(&self, copies: &GpuCopies) -> Result<(), VerbsError> {
        copies.prepare(&self.gpu).map_err(|error| {
            VerbsError::NoMemory(format!("no staging memory for GPU memory: {error}"))
        })
    }
}

/// Returns the GPU memory at an address; none if the processor can access it, or if the process
/// does not use CUDA. Managed memory counts as memory of the host.
pub(crate) fn locate(addr: u64, length: u64) -> Result<Option<Located>, VerbsError> {
    let gpus = GPUS.get();
    let Some(driver) = gpus.search.driver() else {
        return Ok(None);
    };
    let Some(first) = first_gpu_byte(driver, addr, length) else {
        return Ok(None);
    };
    let failed = |error: CudaError| {
        VerbsError::NotSupported(format!("memory of a GPU at {addr:#x}: {error}"))
    };
    let ordinal: i32 = driver
        .attribute(attribute::DEVICE_ORDINAL, first)
        .map_err(failed)?;
    check_range(driver, first, addr, length)?;
    if let Err(error) = driver.set_sync_memops(first) {
        tracing::debug!("memory of GPU {ordinal} at {addr:#x}: {error}");
    }
    let context = context_of(driver, first, ordinal).map_err(failed)?;
    let gpu = gpus.with_context(driver, context, ordinal)?;
    let memory = MemRef::gpu(gpu.number, addr).ok_or_else(|| {
        VerbsError::NotSupported(format!(
            "memory of GPU {ordinal} at {addr:#x} is above 2^56"
        ))
    })?;
    Ok(Some(Located { memory, gpu }))
}

/// Reads memory of a GPU that is not registered: inline data.
///
/// # Errors
/// If there is no memory of a GPU, or the copy fails.
#[cold]
pub fn read_gpu_memory(addr: u64, into: &mut [u8]) -> Result<(), Fault> {
    let fault = Fault::host(addr);
    let located = locate(addr, into.len() as u64).map_err(|error| {
        tracing::debug!("{error}");
        fault
    })?;
    let Located { memory, gpu } = located.ok_or(fault)?;
    let failed = |error: CudaError| {
        tracing::warn!("memory at {memory}: {error}");
        Fault { at: memory }
    };
    let mut session = copies::idle_session(&gpu).map_err(failed)?;
    let read = session.read(addr, into).map_err(failed);
    idle_sessions().push(session);
    read
}

/// Returns the first address of a range that is memory of a GPU. Programs such as NCCL extend a
/// range to whole pages of the processor, so it may begin before its allocation.
fn first_gpu_byte(driver: &Driver, addr: u64, length: u64) -> Option<u64> {
    let end = addr.saturating_add(length.max(1));
    let aligned = addr.is_multiple_of(PAGE);
    let later = (addr..end).step_by(ALIGNMENT).skip(1);
    let later = later.take(if aligned {
        PAGE as usize / ALIGNMENT - 1
    } else {
        0
    });
    core::iter::once(addr)
        .chain(later)
        .find(|&at| is_gpu_memory(driver, at))
}

/// Returns true if only a GPU can access the memory at an address. The driver does not know
/// pointers of the host. In a process that has not initialised CUDA, as in a forked child, it
/// knows none.
fn is_gpu_memory(driver: &Driver, at: u64) -> bool {
    let is_managed = || driver.attribute(attribute::IS_MANAGED, at) == Ok(1u32);
    driver.attribute(attribute::MEMORY_TYPE, at) == Ok(MEMORY_TYPE_DEVICE) && !is_managed()
}

/// Checks that a range is GPU memory from its first byte on. Gaps up to the end of a page of the
/// GPU are permitted: GPUs give memory to adapters in such pages.
fn check_range(driver: &Driver, first: u64, addr: u64, length: u64) -> Result<(), VerbsError> {
    let Some(end) = addr.checked_add(length) else {
        return Err(VerbsError::Invalid(format!(
            "{length} bytes at {addr:#x} exceed the address space"
        )));
    };
    let mut at = first;
    while at < end {
        let gap = match driver.end_of_allocation(at) {
            Ok(next) => {
                at = next.max(at + 1);
                continue;
            }
            Err(error) => error,
        };
        if at.is_multiple_of(GPU_PAGE) {
            return Err(VerbsError::Invalid(format!(
                "{length} bytes at {addr:#x} are not all memory of a GPU: at {at:#x} {gap}"
            )));
        }
        at = at.next_multiple_of(GPU_PAGE);
    }
    Ok(())
}

/// Returns the context for copies: that of the memory, or the primary one of the GPU for memory
/// without a context, such as that of `cuMemCreate`.
fn context_of(driver: &Driver, addr: u64, ordinal: i32) -> Result<Context, CudaError> {
    let own: Context = driver
        .attribute(attribute::CONTEXT, addr)
        .unwrap_or(Context(core::ptr::null_mut()));
    if own.0.is_null() || driver.has_primary_context(ordinal)? {
        return driver.retain_primary_context(ordinal);
    }
    Ok(own)
}

impl Gpus {
    /// Returns the GPU with a context.
    fn with_context(
        &self,
        driver: &'static Driver,
        context: Context,
        ordinal: i32,
    ) -> Result<Arc<Gpu>, VerbsError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = known.iter().find(|gpu| gpu.context == context) {
            return Ok(Arc::clone(gpu));
        }
        if known.len() >= usize::from(MemRef::GPUS) {
            return Err(VerbsError::NoMemory(format!(
                "{} contexts of GPUs are in use",
                known.len()
            )));
        }
        let gpu = Arc::new(Gpu {
            number: known.len() as u8,
            process: std::process::id(),
            driver,
            context,
            stream: OnceLock::new(),
            atomics: Mutex::new(()),
        });
        tracing::debug!("GPU {}: device {ordinal} of CUDA", gpu.number);
        known.push(Arc::clone(&gpu));
        Ok(gpu)
    }
}

fn idle_sessions() -> MutexGuard<'static, Vec<Session>> {
    let idle = GPUS.get().idle.lock();
    idle.unwrap_or_else(PoisonError::into_inner)
}
