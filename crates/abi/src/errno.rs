//! Errors as errnos for C programs.

use core::ffi::c_int;
use core::fmt::Display;
use std::borrow::Cow;

use ferroce_device::Error;
use ferroce_device::transport::VerbsError;

/// Refuses a call: sets `errno`, logs the cause for `FERROCE_LOG=debug`, and returns the
/// number. As in rdma-core, functions that return the number also set `errno`: programs
/// print `%m`.
pub(crate) fn refuse(errno: c_int, why: impl Display) -> c_int {
    tracing::debug!("refused with {}: {why}", name(errno));
    set_errno(errno);
    errno
}

/// Refuses a call that the engine refused.
pub(crate) fn errno_of(error: &VerbsError) -> c_int {
    let errno = match error {
        VerbsError::Invalid(_) => libc::EINVAL,
        VerbsError::NoMemory(_) => libc::ENOMEM,
        VerbsError::Busy(_) => libc::EBUSY,
        VerbsError::NotSupported(_) => libc::EOPNOTSUPP,
        VerbsError::NotConnected(_) => libc::ENOTCONN,
        VerbsError::NotFound(_) => libc::ENOENT,
    };
    refuse(errno, error)
}

/// Refuses a call that a device refused.
pub(crate) fn errno_of_device(error: &Error) -> c_int {
    let errno = match error {
        Error::Verbs(error) => return errno_of(error),
        Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        Error::Control(error) => error.errno(),
    };
    refuse(errno, error)
}

/// Returns the name of an error number that this library uses; else its number.
pub(crate) fn name(errno: c_int) -> Cow<'static, str> {
    Cow::Borrowed(match errno {
        libc::EINVAL => "EINVAL",
        libc::ENOMEM => "ENOMEM",
        libc::EBUSY => "EBUSY",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENOENT => "ENOENT",
        libc::EFAULT => "EFAULT",
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::EMFILE => "EMFILE",
        libc::ENODEV => "ENODEV",
        libc::ENODATA => "ENODATA",
        libc::EEXIST => "EEXIST",
        libc::ENOSPC => "ENOSPC",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ENOTCONN => "ENOTCONN",
        libc::ETIMEDOUT => "ETIMEDOUT",
        other => return Cow::Owned(format!("errno {other}")),
    })
}

/// Sets the thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: each thread has a valid location as long as it lives.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets `errno` and returns NULL, for functions that return an object.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    core::ptr::null_mut()
}

/// Sets `errno` and returns -1, for functions that behave like system calls.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Returns 0 or the errno, for functions that return the number itself.
pub(crate) fn code(result: Result<(), VerbsError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => errno_of(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use ferroce_log::{Filter, Logger};

    use super::*;

    #[test]
    fn a_refusal_sets_errno_and_logs_its_cause_once() {
        let written = Arc::new(Mutex::new(String::new()));
        let log = Arc::clone(&written);
        let subscriber = Logger::new(Filter::parse("debug").unwrap(), move |line| {
            let line = std::str::from_utf8(line).unwrap();
            log.lock().unwrap().push_str(line);
        });
        let returned = tracing::subscriber::with_default(subscriber, || {
            errno_of(&VerbsError::Invalid("RNR_RETRY is 8".into()))
        });
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((returned, errno), (libc::EINVAL, Some(libc::EINVAL)));
        let log = written.lock().unwrap();
        assert_eq!(log.matches("RNR_RETRY is 8").count(), 1, "{log}");
        assert!(log.contains("EINVAL"), "{log}");
    }
}
