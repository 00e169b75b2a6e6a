//! The functions of CUDA's driver library that this crate calls.
//!
//! The library is never loaded from here. A process that uses CUDA has loaded it, and a
//! process that does not must not pay for it: the search looks at the list of loaded
//! libraries, and only if that list has grown since the last search.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::fmt;
use core::mem::transmute;
use core::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// `CUdeviceptr`
pub(super) type DevicePtr = u64;

/// `CUcontext`, an opaque handle.
#[repr(transparent)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Context(pub(super) *mut c_void);

/// `CUstream`, an opaque handle.
#[repr(transparent)]
#[derive(Copy, Clone, Debug)]
pub(super) struct Stream(pub(super) *mut c_void);

/// `CUevent`, an opaque handle.
#[repr(transparent)]
#[derive(Copy, Clone, Debug)]
pub(super) struct Event(pub(super) *mut c_void);

// SAFETY: the driver permits the use of its handles in every thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
// SAFETY: as above.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Attributes of pointers: `CUpointer_attribute`.
pub(super) mod attribute {
    pub(crate) const CONTEXT: i32 = 1;
    pub(crate) const MEMORY_TYPE: i32 = 2;
    pub(crate) const SYNC_MEMOPS: i32 = 6;
    pub(crate) const IS_MANAGED: i32 = 8;
    pub(crate) const DEVICE_ORDINAL: i32 = 9;
}

/// `CU_MEMORYTYPE_DEVICE`
pub(super) const MEMORY_TYPE_DEVICE: c_uint = 2;
/// `CU_STREAM_NON_BLOCKING`: no order with the default stream of the program.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`
const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
const HOST_ALLOC_PORTABLE: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const CAPTURE_RELAXED: c_int = 2;

/// `CUDA_ERROR_NOT_READY`
const NOT_READY: c_int = 600;

/// A failed call of the driver.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct CudaError {
    call: &'static str,
    /// `CUresult`
    code: c_int,
    name: Option<&'static str>,
    text: Option<&'static str>,
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with ", self.call)?;
        match (self.name, self.text) {
            (Some(name), Some(text)) => write!(f, "{name} ({text})"),
            _ => write!(f, "CUDA error {}", self.code),
        }
    }
}

/// Declares the table of functions, each with the name of its symbol. cuda.h renames calls to
/// the newest version of their symbol in the same way.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// Names of the symbols.
        #[allow(non_upper_case_globals, dead_code)] // they are named like the functions
        mod symbol {
            $(pub(super) const $name: &str = $symbol;)*
        }

        /// The functions of the driver.
        pub(super) struct Driver {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            /// Finds the functions in a library that is loaded. Returns the name of one that
            /// is missing.
            fn new(find: impl Fn(&CStr) -> *mut c_void) -> Result<Driver, &'static str> {
                Ok(Driver {
                    $($name: {
                        let symbol = concat!($symbol, "\0");
                        let symbol = CStr::from_bytes_with_nul(symbol.as_bytes());
                        let found = symbol.map_or(ptr::null_mut(), &find);
                        if found.is_null() {
                            return Err($symbol);
                        }
                        // SAFETY: the symbol is a function of CUDA's stable binary
                        // interface, with these arguments.
                        unsafe {
                            transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                                found,
                            )
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    pointer_get_attribute = "cuPointerGetAttribute" (*mut c_void, c_int, DevicePtr);
    pointer_set_attribute = "cuPointerSetAttribute" (*const c_void, c_int, DevicePtr);
    mem_get_address_range = "cuMemGetAddressRange_v2" (*mut DevicePtr, *mut usize, DevicePtr);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    primary_ctx_get_state = "cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    ctx_push_current = "cuCtxPushCurrent_v2" (Context);
    ctx_pop_current = "cuCtxPopCurrent_v2" (*mut Context);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    stream_create = "cuStreamCreate" (*mut Stream, c_uint);
    event_create = "cuEventCreate" (*mut Event, c_uint);
    event_record = "cuEventRecord" (Event, Stream);
    event_query = "cuEventQuery" (Event);
    mem_host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    memcpy_to_device = "cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, Stream);
    memcpy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePtr, usize, Stream);
    get_error_name = "cuGetErrorName" (c_int, *mut *const c_char);
    get_error_string = "cuGetErrorString" (c_int, *mut *const c_char);
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Makes a call of the driver.
macro_rules! call {
    ($driver:ident.$function:ident($($argument:expr),*)) => {{
        // SAFETY: the arguments are as the driver's interface asks for: places of results are
        // local variables, and handles come from the driver.
        let code = unsafe { ($driver.$function)($($argument),*) };
        $driver.check(symbol::$function, code)
    }};
}

impl Driver {
    /// Returns an attribute of a pointer, `initial` if the driver does not set it.
    pub(super) fn attribute<T: Attribute>(
        &self,
        which: c_int,
        pointer: DevicePtr,
    ) -> Result<T, CudaError> {
        let mut value = T::NONE;
        let place = (&raw mut value).cast();
        call!(self.pointer_get_attribute(place, which, pointer))?;
        Ok(value)
    }

    /// Makes the driver finish its own copies and memsets of an allocation before it returns
    /// to the program. CUDA asks for that before RDMA: a program posts after such a call.
    pub(super) fn set_sync_memops(&self, pointer: DevicePtr) -> Result<(), CudaError> {
        let one: c_uint = 1;
        let place = (&raw const one).cast();
        call!(self.pointer_set_attribute(place, attribute::SYNC_MEMOPS, pointer))
    }

    /// Returns the end of the allocation or mapping that contains an address.
    pub(super) fn end_of_allocation(&self, at: DevicePtr) -> Result<DevicePtr, CudaError> {
        let (mut base, mut size) = (0, 0);
        call!(self.mem_get_address_range(&raw mut base, &raw mut size, at))?;
        Ok(base + size as u64)
    }

    /// Returns true if a device has its primary context, without creating it.
    pub(super) fn has_primary_context(&self, ordinal: c_int) -> Result<bool, CudaError> {
        let (mut device, mut flags, mut active) = (0, 0, 0);
        call!(self.device_get(&raw mut device, ordinal))?;
        call!(self.primary_ctx_get_state(device, &raw mut flags, &raw mut active))?;
        Ok(active != 0)
    }

    /// Returns the primary context of a device, which stays until the process ends.
    pub(super) fn retain_primary_context(&self, ordinal: c_int) -> Result<Context, CudaError> {
        let mut device = 0;
        let mut context = Context(ptr::null_mut());
        call!(self.device_get(&raw mut device, ordinal))?;
        call!(self.primary_ctx_retain(&raw mut context, device))?;
        Ok(context)
    }

    /// Makes a context current in this thread until the result is dropped. While the program
    /// captures a graph, calls in other threads could invalidate it: calls in this thread
    /// are exempt meanwhile, as they belong to streams of this crate.
    pub(super) fn enter(&self, context: Context) -> Result<CurrentContext<'_>, CudaError> {
        call!(self.ctx_push_current(context))?;
        let mut mode = CAPTURE_RELAXED;
        let exchanged = call!(self.exchange_capture_mode(&raw mut mode));
        Ok(CurrentContext {
            driver: self,
            mode: exchanged.is_ok().then_some(mode),
        })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        match code {
            0 => Ok(()),
            _ => Err(self.error(call, code)),
        }
    }

    #[cold]
    fn error(&self, call: &'static str, code: c_int) -> CudaError {
        let text = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = ptr::null();
            // SAFETY: `text` is a place for the result, a constant string of the driver.
            unsafe {
                let found = function(code, &raw mut text) == 0 && !text.is_null();
                found.then(|| CStr::from_ptr(text).to_str().ok()).flatten()
            }
        };
        CudaError {
            call,
            code,
            name: text(self.get_error_name),
            text: text(self.get_error_string),
        }
    }
}

/// A type of the values of pointer attributes.
pub(super) trait Attribute: Copy {
    /// The value before the driver sets it.
    const NONE: Self;
}

impl Attribute for c_uint {
    const NONE: c_uint = 0;
}

impl Attribute for c_int {
    const NONE: c_int = -1;
}

impl Attribute for Context {
    const NONE: Context = Context(ptr::null_mut());
}

/// A context that is current in this thread. The program's context is current again when
/// this is dropped.
pub(super) struct CurrentContext<'a> {
    driver: &'a Driver,
    /// The capture mode of the program's thread.
    mode: Option<c_int>,
}

impl CurrentContext<'_> {
    /// Creates a stream.
    pub(super) fn create_stream(&self) -> Result<Stream, CudaError> {
        let driver = self.driver;
        let mut stream = Stream(ptr::null_mut());
        call!(driver.stream_create(&raw mut stream, STREAM_NON_BLOCKING))?;
        Ok(stream)
    }

    /// Creates an event.
    pub(super) fn create_event(&self) -> Result<Event, CudaError> {
        let driver = self.driver;
        let mut event = Event(ptr::null_mut());
        call!(driver.event_create(&raw mut event, EVENT_DISABLE_TIMING))?;
        Ok(event)
    }

    /// Allocates pinned memory.
    pub(super) fn allocate_pinned(&self, length: usize) -> Result<*mut u8, CudaError> {
        let driver = self.driver;
        let mut memory = ptr::null_mut();
        call!(driver.mem_host_alloc(&raw mut memory, length, HOST_ALLOC_PORTABLE))?;
        Ok(memory.cast())
    }

    /// Starts a copy to the memory of the GPU.
    ///
    /// # Safety
    ///
    /// `from` is pinned memory with `length` bytes, which does not change before
    /// an event behind the copy has happened.
    pub(super) unsafe fn start_write(
        &self,
        to: DevicePtr,
        from: *const u8,
        length: usize,
        stream: Stream,
    ) -> Result<(), CudaError> {
        let driver = self.driver;
        call!(driver.memcpy_to_device(to, from.cast(), length, stream))
    }

    /// Starts a copy from the memory of the GPU.
    ///
    /// # Safety
    ///
    /// `to` is pinned memory with `length` bytes, which is not used before
    /// an event behind the copy has happened.
    pub(super) unsafe fn start_read(
        &self,
        to: *mut u8,
        from: DevicePtr,
        length: usize,
        stream: Stream,
    ) -> Result<(), CudaError> {
        let driver = self.driver;
        call!(driver.memcpy_to_host(to.cast(), from, length, stream))
    }

    /// Makes an event happen when all copies that a stream has now have ended.
    pub(super) fn record(&self, event: Event, stream: Stream) -> Result<(), CudaError> {
        let driver = self.driver;
        call!(driver.event_record(event, stream))
    }

    /// Returns true if a recorded event has happened.
    pub(super) fn has_happened(&self, event: Event) -> Result<bool, CudaError> {
        let driver = self.driver;
        match call!(driver.event_query(event)) {
            Ok(()) => Ok(true),
            Err(error) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        let driver = self.driver;
        if let Some(mut mode) = self.mode {
            let _impossible = call!(driver.exchange_capture_mode(&raw mut mode));
        }
        let mut popped = Context(ptr::null_mut());
        let _impossible = call!(driver.ctx_pop_current(&raw mut popped));
    }
}

/// The search for the driver in a process.
#[derive(Debug, Default)]
pub(super) struct Search {
    found: OnceLock<Option<Driver>>,
    /// Number of libraries that the process had loaded at the last search in vain.
    loaded: AtomicU64,
}

impl Search {
    /// Returns the driver if the process has loaded it.
    pub(super) fn driver(&self) -> Option<&Driver> {
        if let Some(found) = self.found.get() {
            return found.as_ref();
        }
        let mut seen = Seen {
            before: self.loaded.load(Ordering::Relaxed),
            ..Seen::default()
        };
        // SAFETY: the callback gets `seen` and does not keep it.
        unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut seen).cast()) };
        let Some(name) = seen.path else {
            self.loaded.store(seen.loaded, Ordering::Relaxed);
            return None;
        };
        self.found.get_or_init(|| open(&name)).as_ref()
    }
}

/// The state of a search in the list of loaded libraries.
#[derive(Default)]
struct Seen {
    before: u64,
    loaded: u64,
    path: Option<Vec<u8>>,
}

/// Looks at a loaded library. Ends the search if it is the driver, or if no library was loaded
/// since the last search.
unsafe extern "C" fn look_at(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    seen: *mut c_void,
) -> c_int {
    // SAFETY: the C library passes a valid `info`, and `seen` is that of `Search::driver`.
    let (info, seen) = unsafe { (&*info, &mut *seen.cast::<Seen>()) };
    seen.loaded = info.dlpi_adds;
    if seen.loaded == seen.before {
        return 1;
    }
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the C library's names are strings.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) };
    let name = path.to_bytes().rsplit(|&byte| byte == b'/').next();
    if !name.is_some_and(|name| name.starts_with(b"libcuda.so")) {
        return 0;
    }
    seen.path = Some(path.to_bytes_with_nul().to_vec());
    1
}

/// Opens the driver, which is loaded. It stays loaded.
fn open(path: &[u8]) -> Option<Driver> {
    let path = CStr::from_bytes_with_nul(path).ok()?;
    // SAFETY: with RTLD_NOLOAD no code of the library runs.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    let shown = path.to_string_lossy();
    if handle.is_null() {
        tracing::warn!("GPU memory cannot be registered: {shown} was unloaded");
        return None;
    }
    // SAFETY: `handle` is a loaded library.
    match Driver::new(|symbol| unsafe { libc::dlsym(handle, symbol.as_ptr()) }) {
        Ok(driver) => {
            tracing::debug!("memory of GPUs is accessed by {shown}");
            Some(driver)
        }
        Err(symbol) => {
            tracing::warn!(
                "GPU memory cannot be registered: {shown} has no function {symbol}; \
                 CUDA 10.1 or newer has all that are needed"
            );
            None
        }
    }
}
