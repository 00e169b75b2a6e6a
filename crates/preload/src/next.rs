//! The functions that would have been called without us.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of libc, or of another library that stands between.
pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// The function of this name.
    ///
    /// # Safety
    /// `F` is the type of a pointer to it.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Next<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Next {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
            kind: PhantomData,
        }
    }

    /// The function. None, and ENOSYS, if there is none.
    pub(crate) fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = self.find();
        }
        if address.is_null() {
            set_errno(libc::ENOSYS);
            return None;
        }
        // SAFETY: whoever named the function knows its type, and sizes are the same.
        Some(unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// Looks for it.
    pub(crate) fn find(&self) -> *mut c_void {
        let before = errno();
        // SAFETY: a string; what is found is not called here.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        set_errno(before);
        address
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the place of this thread's errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the place of this thread's errno.
    unsafe { *libc::__errno_location() = errno }
}

/// What a function returns that has failed.
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

/// A string of the program.
pub(crate) type Path = *const c_char;
