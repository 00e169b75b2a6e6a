//! Contexts: `ibv_context`, an open device of a program.
//!
//! Inline functions of `verbs.h` find the function pointers of `verbs_context` in front of
//! the `ibv_context`; newer headers look further in front. Zeros lie there for functions
//! that do not exist yet: the inline functions then return EOPNOTSUPP.

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
use crate::strict::{self, Settings};
use crate::{provoke, unused};

/// The name of the memory files behind `cmd_fd`.
pub(crate) const COMMAND_FILE: &str = "ferroce-verbs";

/// Number of words of zeros in front of `verbs_context`.
const ROOM: usize = 128;

/// An open device.
#[repr(C)]
pub(crate) struct ContextObject {
    _room: [u64; ROOM],
    verbs: UnsafeCell<verbs_context>,
    pub(crate) device: Arc<Device>,
    /// Strict checks and limits.
    pub(crate) settings: Settings,
    /// Live objects, by number.
    pub(crate) objects: Objects,
    /// Number of live objects that were created in this context.
    pub(crate) users: AtomicU32,
    command_file: OwnedFd,
    next_handle: AtomicU32,
}

/// Live objects of a context, for events that name them by number.
#[derive(Default)]
pub(crate) struct Objects {
    /// By queue pair number.
    pub(crate) qps: Registry<ibv_qp>,
    /// By the id of the completion queue.
    pub(crate) cqs: Registry<ibv_cq>,
    /// By shared receive queue number.
    pub(crate) srqs: Registry<ibv_srq>,
}

/// Offset of the program's `ibv_context` in the allocation.
const OFFSET: usize = offset_of!(ContextObject, verbs) + offset_of!(verbs_context, context);

/// Value of `abi_compat` that tells programs that the context is in a `verbs_context`.
const HAS_VERBS_CONTEXT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// All open contexts, including those that a forked child has inherited.
static CONTEXTS: Mutex<Vec<Pointer>> = Mutex::new(Vec::new());

/// An open context, and the process that opened it.
struct Pointer {
    context: *mut ibv_context,
    process: u32,
}

// SAFETY: the pointer is compared, or dereferenced while the list is locked.
unsafe impl Send for Pointer {}

impl Pointer {
    /// Returns the context. Only for entries of the list while it is locked.
    fn object(&self) -> &ContextObject {
        // SAFETY: `close` removes a context from the list before it frees the context.
        unsafe { context_of(self.context) }
    }
}

impl ContextObject {
    /// Creates a context for a program. `c_device` is the program's `ibv_device`, which the
    /// caller keeps alive.
    pub(crate) fn create(
        c_device: *mut ibv_device,
        device: Arc<Device>,
    ) -> Result<*mut ibv_context, c_int> {
        let flags = MemfdFlags::CLOEXEC;
        let command_file = rustix::fs::memfd_create(COMMAND_FILE, flags)
            .map_err(|error| refuse(error.raw_os_error(), format_args!("memfd_create: {error}")))?;
        Ok(ContextObject::with_file(c_device, device, command_file))
    }

    /// Creates a context for a program with this `cmd_fd`.
    pub(crate) fn with_file(
        c_device: *mut ibv_device,
        device: Arc<Device>,
        command_file: OwnedFd,
    ) -> *mut ibv_context {
        let mut verbs: verbs_context = zeroed();
        let settings = Settings::of(&device.link());
        ops::fill(&mut verbs, &settings);
        verbs.sz = size_of::<verbs_context>();
        let context = &mut verbs.context;
        context.device = c_device;
        context.cmd_fd = command_file.as_raw_fd();
        context.async_fd = device.event_fd().as_raw_fd();
        context.num_comp_vectors = comp_vectors();
        context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        context.abi_compat = HAS_VERBS_CONTEXT;
        let object = Box::into_raw(Box::new(ContextObject {
            _room: [0; ROOM],
            verbs: UnsafeCell::new(verbs),
            device,
            settings,
            objects: Objects::default(),
            users: AtomicU32::new(0),
            command_file,
            next_handle: AtomicU32::new(1),
        }));
        // SAFETY: `OFFSET` lies inside the allocation.
        let context = unsafe { object.byte_add(OFFSET) }.cast::<ibv_context>();
        contexts().push(Pointer {
            context,
            process: std::process::id(),
        });
        at_exit();
        context
    }

    /// Closes a context.
    ///
    /// # Safety
    ///
    /// It came from [`ContextObject::create`], and this is its last use.
    pub(crate) unsafe fn close(context: *mut ibv_context) {
        // SAFETY: the context came from `with_file`, and this is its last use.
        let object = unsafe { Box::from_raw(object_of(context)) };
        let mut open = contexts();
        open.retain(|open| open.context != context);
        let same = |open: &Pointer| Arc::ptr_eq(&open.object().device, &object.device);
        let last = !open.iter().any(same);
        drop(open);
        if last {
            // Before `close`: ferroced clears the counters when it gets the slots back.
            unused::leaves(&object.device);
            object.device.close();
        }
    }

    /// Returns a number for the `handle` of a new object, unique in this context.
    pub(crate) fn new_handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed) & 0x7fff_ffff
    }
}

/// Returns the object of a program's context.
///
/// # Safety
///
/// The pointer came from [`ContextObject::create`] and is still open.
#[inline(always)]
pub(crate) unsafe fn context_of<'a>(context: *mut ibv_context) -> &'a ContextObject {
    // SAFETY: the context is open, so its allocation is live.
    unsafe { &*object_of(context) }
}

/// Finds the context of a program's pointer. NULL refuses the call, as in
/// [`object!`](crate::object::object).
///
/// Only for functions that a program calls, which are `unsafe` for this contract.
macro_rules! context {
    ($context:ident, $why:literal => $fail:ident) => {{
        if $context.is_null() {
            return $crate::object::fail::$fail($crate::errno::refuse(libc::EINVAL, $why));
        }
        // SAFETY: the program passes NULL or a context that it has not closed.
        unsafe { $crate::context::context_of($context) }
    }};
}
pub(crate) use context;

/// Finds the context of a `cmd_fd` or of a duplicate of it.
pub(crate) fn context_of_fd(fd: c_int) -> Option<*mut ibv_context> {
    if fd < 0 {
        return None;
    }
    // SAFETY: `fstat` is the only use of the descriptor, and the kernel checks it.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let wanted = rustix::fs::fstat(fd).ok()?;
    let same = |open: &&Pointer| {
        rustix::fs::fstat(&open.object().command_file)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (wanted.st_dev, wanted.st_ino))
    };
    contexts().iter().find(same).map(|open| open.context)
}

/// True if a descriptor is itself the `cmd_fd` of a context, not a duplicate.
pub(crate) fn is_command_fd(fd: c_int) -> bool {
    let is = |open: &Pointer| open.object().command_file.as_raw_fd() == fd;
    contexts().iter().any(is)
}

#[inline(always)]
fn object_of(context: *mut ibv_context) -> *mut ContextObject {
    context.wrapping_byte_sub(OFFSET).cast()
}

/// Flushes deferred ACKs when the process exits. Programs exit without closing their
/// devices, as soon as they have what they waited for, and their peers wait for the ACKs.
fn at_exit() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    /// The last process that opened a context; a forked child may not have opened any.
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn flush() {
        let process = std::process::id();
        if PROCESS.load(Ordering::Relaxed) != process {
            return;
        }
        if let Ok(contexts) = CONTEXTS.try_lock() {
            // A forked child has the contexts of its parent in the list, but not its sockets.
            for context in contexts.iter().filter(|context| context.process == process) {
                let device = &context.object().device;
                device.flush_deferred();
                unused::leaves(device);
            }
            drop(contexts);
            unused::tell();
            provoke::tell();
            strict::tell();
        }
    }
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // A forked child inherits the registration.
    ONCE.call_once(|| {
        // SAFETY: the function stays, because the library is never unloaded.
        unsafe { libc::atexit(flush) };
    });
}

fn contexts() -> std::sync::MutexGuard<'static, Vec<Pointer>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of completion vectors: one per processor, as with other adapters.
fn comp_vectors() -> c_int {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    c_int::try_from(processors).unwrap_or(1)
}
