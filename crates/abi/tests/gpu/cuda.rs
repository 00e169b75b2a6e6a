//! CUDA's driver library for tests: the stand-in, or the real one.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use std::ffi::CString;
use std::path::Path;
use std::process::Command;

/// The library, loaded into this process.
pub(crate) struct Cuda {
    handle: *mut c_void,
    /// The primary context of device 0.
    pub(crate) context: *mut c_void,
    pub(crate) is_real: bool,
}

/// Calls a function of the library, which must succeed.
macro_rules! cuda {
    ($cuda:expr, $name:ident ( $($argument:expr => $type:ty),* )) => {{
        let name = concat!(stringify!($name), "\0");
        let function: unsafe extern "C" fn($($type),*) -> c_int =
            transmute($cuda.symbol(CStr::from_bytes_with_nul(name.as_bytes()).unwrap()));
        assert_eq!(function($($argument),*), 0, "{}", stringify!($name));
    }};
}

impl Cuda {
    /// Loads the library and initialises device 0.
    pub(crate) fn load() -> Cuda {
        let real = std::env::var("FERROCE_TEST_LIBCUDA").ok();
        let path = real.clone().unwrap_or_else(build);
        let path = CString::new(path).unwrap();
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        let mut cuda = Cuda {
            handle,
            context: ptr::null_mut(),
            is_real: real.is_some(),
        };
        unsafe {
            cuda!(cuda, cuInit(0 => u32));
            let mut context = ptr::null_mut();
            cuda!(cuda, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, 0 => c_int));
            cuda.context = context;
            cuda.push(context);
        }
        cuda
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    /// Makes a context current.
    pub(crate) fn push(&self, context: *mut c_void) {
        unsafe { cuda!(self, cuCtxPushCurrent_v2(context => *mut c_void)) };
    }

    /// Returns the current context.
    pub(crate) fn current(&self) -> *mut c_void {
        let mut context = ptr::null_mut();
        unsafe { cuda!(self, cuCtxGetCurrent(&mut context => *mut *mut c_void)) };
        context
    }

    /// Creates a context of its own on a device, and makes it current.
    pub(crate) fn create_context(&self, device: c_int) -> *mut c_void {
        let mut context = ptr::null_mut();
        unsafe {
            cuda!(self, cuCtxCreate_v2(&mut context => *mut *mut c_void, 0 => u32, device => c_int));
        }
        context
    }

    pub(crate) fn destroy_context(&self, context: *mut c_void) {
        unsafe { cuda!(self, cuCtxDestroy_v2(context => *mut c_void)) };
    }

    /// Makes the primary context of a device.
    pub(crate) fn primary_context(&self, device: c_int) -> *mut c_void {
        let mut context = ptr::null_mut();
        unsafe {
            cuda!(self, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, device => c_int));
        }
        context
    }

    /// Allocates memory of the current context's device.
    pub(crate) fn allocate(&self, length: usize) -> u64 {
        let mut start = 0;
        unsafe { cuda!(self, cuMemAlloc_v2(&mut start => *mut u64, length => usize)) };
        start
    }

    /// Allocates memory that processor and GPU share.
    pub(crate) fn allocate_managed(&self, length: usize) -> u64 {
        let mut start = 0;
        unsafe {
            cuda!(self, cuMemAllocManaged(&mut start => *mut u64, length => usize, 1 => u32));
        }
        start
    }

    /// Allocates pinned memory of the host.
    pub(crate) fn allocate_pinned(&self, length: usize) -> u64 {
        let mut start = ptr::null_mut::<c_void>();
        unsafe {
            cuda!(self, cuMemHostAlloc(&mut start => *mut *mut c_void, length => usize, 0 => u32));
        }
        start as u64
    }

    /// Allocates memory without a context.
    pub(crate) fn allocate_mapped(&self, length: usize, device: c_int) -> u64 {
        let mut start = 0;
        unsafe {
            cuda!(self, stub_alloc_mapped(&mut start => *mut u64, length => usize, device => c_int));
        }
        start
    }

    pub(crate) fn free(&self, start: u64) {
        unsafe { cuda!(self, cuMemFree_v2(start => u64)) };
    }

    pub(crate) fn put(&self, to: u64, data: &[u8]) {
        unsafe {
            cuda!(self, cuMemcpyHtoD_v2(to => u64, data.as_ptr() => *const u8, data.len() => usize));
        }
    }

    pub(crate) fn get(&self, from: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0u8; length];
        unsafe {
            cuda!(self, cuMemcpyDtoH_v2(data.as_mut_ptr() => *mut u8, from => u64, length => usize));
        }
        data
    }

    /// Returns the descriptor of a dma-buf.
    pub(crate) fn dmabuf(&self, start: u64, length: usize) -> c_int {
        let mut fd = -1;
        unsafe {
            cuda!(self, cuMemGetHandleForAddressRange(
                &mut fd => *mut c_int, start => u64, length => usize, 1 => c_int, 0 => u64));
        }
        fd
    }

    /// Returns how often a function of the stand-in was called.
    pub(crate) fn calls(&self, name: &CStr) -> i64 {
        type Calls = unsafe extern "C" fn(*const c_char) -> i64;
        unsafe { transmute::<*mut c_void, Calls>(self.symbol(c"stub_calls"))(name.as_ptr()) }
    }

    /// Makes a function of the stand-in fail with an error; 0 makes it work again.
    pub(crate) fn fail(&self, name: &CStr, code: c_int) {
        type Fail = unsafe extern "C" fn(*const c_char, c_int);
        unsafe { transmute::<*mut c_void, Fail>(self.symbol(c"stub_fail"))(name.as_ptr(), code) }
    }
}

/// Compiles the stand-in. Returns its path.
fn build() -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let library = folder.join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/libcuda.c");
    let status = Command::new("cc")
        .args(["-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    assert!(status.expect("a C compiler").success());
    library.to_str().unwrap().into()
}

/// Removes the stand-in, which stays loaded.
impl Drop for Cuda {
    fn drop(&mut self) {
        let folder = format!("{}/gpu-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        let _not_built = std::fs::remove_dir_all(folder);
    }
}
