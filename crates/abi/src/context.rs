//! Contexts: a device as a program has opened it.
//!
//! Inline code in programs walks backwards from the `ibv_context` it got, to the
//! function pointers of `verbs_context`; newer headers walk further. Room of
//! zeros lies in front, for headers that do not exist yet.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use ferroce_device::Device;
use rustix::fs::MemfdFlags;

use crate::errno::refuse;
use crate::ffi::{ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_srq, verbs_context, zeroed};
use crate::ops;
use crate::registry::Registry;
use crate::unused;

/// What the files behind `cmd_fd` are called.
pub(crate) const COMMAND_FILE: &str = "ferroce-verbs";

/// Words of zeros in front of `verbs_context`.
const ROOM: usize = 128;

/// An open device.
#[repr(C)]
pub(crate) struct ContextObject {
    _room: [u64; ROOM],
    verbs: UnsafeCell<verbs_context>,
    /// What does the work.
    pub(crate) device: Arc<Device>,
    /// Live objects by number.
    pub(crate) objects: Objects,
    /// Things made in this context that are still there.
    pub(crate) users: AtomicU32,
    command_file: OwnedFd,
    next_handle: AtomicU32,
}

/// Live objects of a context that have numbers.
#[derive(Default)]
pub(crate) struct Objects {
    /// By queue pair number.
    pub(crate) qps: Registry<ibv_qp>,
    /// By the id that events name.
    pub(crate) cqs: Registry<ibv_cq>,
    /// By shared receive queue number.
    pub(crate) srqs: Registry<ibv_srq>,
}

/// Where a program's pointer points, from the beginning of the allocation.
const OFFSET: usize = offset_of!(ContextObject, verbs) + offset_of!(verbs_context, context);

/// `abi_compat` of a context that has a `verbs_context` around it.
const HAS_VERBS_CONTEXT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// All open contexts of the process.
static CONTEXTS: Mutex<Vec<Pointer>> = Mutex::new(Vec::new());

struct Pointer(*mut ibv_context);

// SAFETY: only compared, or followed while the list is locked.
unsafe impl Send for Pointer {}

impl ContextObject {
    /// A context for a program.
    ///
    /// `c_device` is the device as the program sees it; the caller keeps it alive.
    pub(crate) fn create(
        c_device: *mut ibv_device,
        device: Arc<Device>,
    ) -> Result<*mut ibv_context, c_int> {
        let flags = MemfdFlags::CLOEXEC;
        let command_file = rustix::fs::memfd_create(COMMAND_FILE, flags)
            .map_err(|error| refuse(error.raw_os_error(), format_args!("memfd_create: {error}")))?;
        Ok(ContextObject::with_file(c_device, device, command_file))
    }

    /// A context for a program, with this as its `cmd_fd`.
    pub(crate) fn with_file(
        c_device: *mut ibv_device,
        device: Arc<Device>,
        command_file: OwnedFd,
    ) -> *mut ibv_context {
        let mut verbs: verbs_context = zeroed();
        ops::fill(&mut verbs);
        verbs.sz = size_of::<verbs_context>();
        let context = &mut verbs.context;
        context.device = c_device;
        context.cmd_fd = command_file.as_raw_fd();
        context.async_fd = device.events().fd().as_raw_fd();
        context.num_comp_vectors = comp_vectors();
        context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        context.abi_compat = HAS_VERBS_CONTEXT;
        let object = Box::into_raw(Box::new(ContextObject {
            _room: [0; ROOM],
            verbs: UnsafeCell::new(verbs),
            device,
            objects: Objects::default(),
            users: AtomicU32::new(0),
            command_file,
            next_handle: AtomicU32::new(1),
        }));
        // SAFETY: inside the allocation made above.
        let context = unsafe { object.byte_add(OFFSET) }.cast::<ibv_context>();
        contexts().push(Pointer(context));
        at_exit();
        context
    }

    /// Closes a context.
    ///
    /// # Safety
    ///
    /// It came from [`ContextObject::create`] and nobody uses it any more.
    pub(crate) unsafe fn close(context: *mut ibv_context) {
        // SAFETY: by contract the allocation is ours, and this is the last use.
        let object = unsafe { Box::from_raw(object_of(context)) };
        let mut open = contexts();
        open.retain(|open| open.0 != context);
        // SAFETY: those in the list are open while it is locked.
        let same =
            |open: &Pointer| Arc::ptr_eq(unsafe { &(*object_of(open.0)).device }, &object.device);
        let last = !open.iter().any(same);
        drop(open);
        if last {
            // ferroced may clear the counters as soon as it has the slots back.
            unused::leaves(&object.device);
            object.device.close();
        }
    }

    /// A number for an object's `handle`, not used before in this context.
    pub(crate) fn new_handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed) & 0x7fff_ffff
    }
}

/// The context a program means. Cheap: an addition.
///
/// # Safety
///
/// The pointer came from [`ContextObject::create`] and is still open.
#[inline(always)]
pub(crate) unsafe fn context_of<'a>(context: *mut ibv_context) -> &'a ContextObject {
    // SAFETY: by contract.
    unsafe { &*object_of(context) }
}

/// The context whose `cmd_fd`, or a duplicate of it, this is.
pub(crate) fn context_of_fd(fd: c_int) -> Option<*mut ibv_context> {
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor is only asked what it is, and may be anything.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let wanted = rustix::fs::fstat(fd).ok()?;
    let same = |open: &&Pointer| {
        // SAFETY: contexts leave the list before they go.
        let object = unsafe { context_of(open.0) };
        rustix::fs::fstat(&object.command_file)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (wanted.st_dev, wanted.st_ino))
    };
    contexts().iter().find(same).map(|open| open.0)
}

/// Whether a descriptor is itself the `cmd_fd` of a context, not a duplicate.
pub(crate) fn is_command_fd(fd: c_int) -> bool {
    // SAFETY: contexts leave the list before they go.
    let is = |open: &Pointer| unsafe { context_of(open.0) }.command_file.as_raw_fd() == fd;
    contexts().iter().any(is)
}

#[inline(always)]
fn object_of(context: *mut ibv_context) -> *mut ContextObject {
    context.wrapping_byte_sub(OFFSET).cast()
}

/// Programs end without closing their devices, as soon as they have what they
/// waited for; their peers wait for the acknowledgement.
fn at_exit() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn flush_deferred_acks() {
        // A child that has not gone on to another program owes nothing.
        if PROCESS.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        if let Ok(contexts) = CONTEXTS.try_lock() {
            for context in contexts.iter() {
                // SAFETY: contexts leave the list before they go.
                let device = &unsafe { context_of(context.0) }.device;
                device.flush_deferred_acks();
                unused::leaves(device);
            }
            drop(contexts);
            unused::tell();
        }
    }
    ONCE.call_once(|| {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: a function that stays, as the library is never unloaded.
        unsafe { libc::atexit(flush_deferred_acks) };
    });
}

fn contexts() -> std::sync::MutexGuard<'static, Vec<Pointer>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As many as there are processors, as for any other adapter.
fn comp_vectors() -> c_int {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    c_int::try_from(processors).unwrap_or(1)
}
