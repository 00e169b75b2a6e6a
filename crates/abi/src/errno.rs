//! Errors as C programs get them: errno.

use core::ffi::c_int;

use ferroce_device::Error;
use ferroce_device::transport::VerbsError;

/// The number for what the engine refused. `FERROCE_LOG=debug` tells the words.
pub(crate) fn errno_of(error: &VerbsError) -> c_int {
    tracing::debug!("refused: {error}");
    match error {
        VerbsError::Invalid(_) => libc::EINVAL,
        VerbsError::NoMemory(_) => libc::ENOMEM,
        VerbsError::Busy(_) => libc::EBUSY,
        VerbsError::NotSupported(_) => libc::EOPNOTSUPP,
        VerbsError::NotFound(_) => libc::ENOENT,
    }
}

/// The number for what a device refused.
pub(crate) fn errno_of_device(error: &Error) -> c_int {
    match error {
        Error::Verbs(error) => errno_of(error),
        Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        Error::Control(error) => error.errno(),
    }
}

/// Sets the thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the location is valid in every thread, always.
    unsafe { *libc::__errno_location() = errno };
}

/// NULL and `errno`, for functions that return an object.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    core::ptr::null_mut()
}

/// -1 and `errno`, for functions that follow system calls.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// 0 or the number itself, for functions that return it.
pub(crate) fn code(result: Result<(), VerbsError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => errno_of(&error),
    }
}
