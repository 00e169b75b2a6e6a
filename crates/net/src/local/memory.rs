//! The memory of a channel, mapped into this process: two rings, one per direction.
//!
//! This module has all unsafe code of the local wire. Its invariants:
//!
//! * The file is sealed against shrinking, so no access causes SIGBUS.
//! * The other process may write to every byte at any time. So no reference to a byte of a
//!   record exists: records are copied to and from private memory, and all other accesses are
//!   atomic.
//! * Offsets are constants or checked here.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::ring::{ALIGNMENT, RingMemory};

/// Bytes of the memory of a channel, positions and flags included.
pub const CHANNEL_SIZE: usize = 1 << 20;

/// Bytes of the positions and flags of a ring: each has a cache line of its own.
const CONTROL: usize = 4 * ALIGNMENT;
/// Bytes for the records of a ring: room for eight of the longest runs. With room for two, the
/// sender waits until the receiver has read a whole run, and so the two take turns: 64 KiB
/// WRITEs had 35 Gb/s instead of 50, and those of 1 MiB 28 instead of 45.
const CAPACITY: usize = (CHANNEL_SIZE - 2 * CONTROL) / 2;
/// Bytes of the front of a ring: room for one of the longest runs and a half. The fronts of both rings have 196 KiB.
const FRONT: usize = 96 << 10;

const TAIL: usize = 0;
const READER_SLEEPS: usize = ALIGNMENT;
const HEAD: usize = 2 * ALIGNMENT;
const WRITER_WAITS: usize = 3 * ALIGNMENT;

const _: () = assert!(CAPACITY.is_multiple_of(ALIGNMENT));

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Creates the memory of a channel: zeros, in a file whose size no process can change.
pub(super) fn create() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("ferroce-channel", flags)?;
    rustix::fs::ftruncate(&file, CHANNEL_SIZE as u64)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// The memory of a channel, unmapped when the last user is dropped. A forked child does not
/// have it.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    /// True for a ring whose writer, in this process, has used memory behind the front.
    is_extended: [AtomicBool; 2],
}

// SAFETY: the mapping belongs to the process and not to a thread. Threads access it by atomics
// and by copies, which expect other processes to write at the same time.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps the memory of a channel. Refuses a file that [`create`] has not made.
    pub(super) fn map(file: impl AsFd) -> io::Result<Memory> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SEALS);
        let size = rustix::fs::fstat(&file)?.st_size;
        if !sealed || size != CHANNEL_SIZE as i64 {
            let what = "the received file is not the memory of a channel of ferroced";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        // SAFETY: the call creates a new mapping at an address that the kernel chooses.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(
                ptr::null_mut(),
                CHANNEL_SIZE,
                access,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        let is_extended = [const { AtomicBool::new(false) }; 2];
        let memory = Memory { start, is_extended };
        // SAFETY: these are the pages of the new mapping. The advice changes no byte.
        unsafe { madvise(start.as_ptr().cast(), CHANNEL_SIZE, Advice::LinuxDontFork) }?;
        Ok(memory)
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(ALIGNMENT) && at < CHANNEL_SIZE);
        // SAFETY: the place is in the mapping, which lives as long as `self`, and aligned to a
        // cache line. Every value is valid, and all accesses to it are atomic.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    fn flag(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(ALIGNMENT) && at < CHANNEL_SIZE);
        // SAFETY: as in `position`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly these pages. References to atomics borrow `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), CHANNEL_SIZE) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}

/// One of the two rings of a channel.
#[derive(Clone, Debug)]
pub struct RingView {
    memory: Arc<Memory>,
    /// Offset of the positions and flags.
    control: usize,
    /// Offset of the records.
    records: usize,
    /// Number of the ring.
    ring: usize,
}

impl RingView {
    /// Returns a ring in new memory, for fuzzing.
    ///
    /// # Errors
    /// If the process has too many open files, or no memory.
    pub fn for_tests() -> io::Result<RingView> {
        let memory = Arc::new(Memory::map(create()?)?);
        Ok(RingView::new(&memory, 0))
    }

    /// Returns the ring with the number `ring`: 0 or 1.
    pub(super) fn new(memory: &Arc<Memory>, ring: usize) -> RingView {
        assert!(ring < 2, "a channel has two rings");
        RingView {
            memory: Arc::clone(memory),
            control: ring * CONTROL,
            records: 2 * CONTROL + ring * CAPACITY,
            ring,
        }
    }

    /// Returns true if the writer of this ring, in this process, has used memory behind the front.
    #[inline]
    pub(super) fn is_extended(&self) -> bool {
        self.memory.is_extended[self.ring].load(Ordering::Relaxed)
    }
}

impl RingMemory for RingView {
    const CAPACITY: usize = CAPACITY;
    const FRONT: usize = FRONT;

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        self.memory.position(self.control + TAIL)
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        self.memory.position(self.control + HEAD)
    }

    #[inline]
    fn reader_sleeps(&self) -> &AtomicU32 {
        self.memory.flag(self.control + READER_SLEEPS)
    }

    #[inline]
    fn writer_waits(&self) -> &AtomicU32 {
        self.memory.flag(self.control + WRITER_WAITS)
    }

    #[inline]
    fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at <= CAPACITY && bytes.len() <= CAPACITY - at);
        // SAFETY: the destination is in the records of this ring. No reference to it exists, and
        // `bytes` is private memory, so the two do not overlap. A process that reads or writes
        // there at the same time gets or leaves wrong bytes, and every byte is valid.
        unsafe {
            let to = self.memory.start.as_ptr().add(self.records + at);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    #[inline]
    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= CAPACITY && bytes.len() <= CAPACITY - at);
        // SAFETY: the source is in the records of this ring, and `bytes` is private memory, so
        // the two do not overlap. Another process may write to the source meanwhile: any bytes
        // are valid, and the caller checks them only after the copy.
        unsafe {
            let from = self.memory.start.as_ptr().add(self.records + at);
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn extend(&self) {
        self.memory.is_extended[self.ring].store(true, Ordering::Relaxed);
    }

    /// Returns the pages behind the front to the kernel.
    fn shrink(&self) {
        self.memory.is_extended[self.ring].store(false, Ordering::Relaxed);
        let page = rustix::param::page_size();
        let from = (self.records + FRONT).next_multiple_of(page);
        // Behind the last record of the second ring is nothing.
        let to = (self.records + CAPACITY).next_multiple_of(page);
        let length = to.saturating_sub(from);
        // SAFETY: the pages are in the mapping, whose size is a multiple of a page, and lie behind the front of this ring. The
        // kernel replaces them by zeros, which the other process could write there, too. No reference to them exists.
        let removed = unsafe {
            let start = self.memory.start.as_ptr().add(from).cast();
            madvise(start, length, Advice::LinuxRemove)
        };
        if let Err(error) = removed {
            tracing::debug!("a channel keeps {length} bytes: madvise: {error}");
        }
    }
}
