//! The functions that this library replaces: the next ones in the search order.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next function of a name: libc's, or that of another preloaded library.
pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// Names a function.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Next<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Next {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
            kind: PhantomData,
        }
    }

    /// Returns the function; `None` and ENOSYS if there is none.
    pub(crate) fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = self.find();
        }
        if address.is_null() {
            set_errno(libc::ENOSYS);
            return None;
        }
        // SAFETY: `new` promises the type, and checks that it has the size of a pointer.
        Some(unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// Looks up the function.
    pub(crate) fn find(&self) -> *mut c_void {
        let before = errno();
        // SAFETY: the name is a string.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        set_errno(before);
        address
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: each thread has a valid location for `errno`.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: each thread has a valid location for `errno`.
    unsafe { *libc::__errno_location() = errno }
}

/// The result of a failed function.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: c_int = -1;
}

impl Failed for isize {
    const FAILED: isize = -1;
}

impl<T> Failed for *mut T {
    const FAILED: *mut T = ptr::null_mut();
}

/// A path of the program: a C string.
pub(crate) type Path = *const c_char;
