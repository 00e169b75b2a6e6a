//! libc's own functions.

use core::ffi::{CStr, c_int, c_void};
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function that is looked up when it is first called.
pub(crate) struct Function<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Function<F> {
    /// Names a function.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to the function.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Function<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Function {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
            kind: PhantomData,
        }
    }

    /// Returns the function, which `find` looks up; `None` and ENOSYS if there is none.
    pub(crate) fn get(&self, find: impl FnOnce(&CStr) -> *mut c_void) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            let before = errno();
            address = find(self.name);
            self.address.store(address, Ordering::Relaxed);
            set_errno(before);
        }
        if address.is_null() {
            set_errno(libc::ENOSYS);
            return None;
        }
        // SAFETY: `new` promises the type, and checks that it has the size of a pointer.
        Some(unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}

/// Returns the next function of a name: libc's, or that of another preloaded library.
pub(crate) fn following(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: each thread has a valid location for `errno`.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: each thread has a valid location for `errno`.
    unsafe { *libc::__errno_location() = errno }
}

/// Sets `errno` and returns -1.
pub(crate) fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Defines functions with the types of C's, which call those that `$find` looks up, or fail.
macro_rules! functions {
    ($find:path; $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        $(pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
            type Pointer = unsafe extern "C" fn($($type),*) -> $result;
            const NAME: &core::ffi::CStr =
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("no zero at the end"),
                };
            static FUNCTION: $crate::next::Function<Pointer> =
                // SAFETY: the header declares the function with this type.
                unsafe { $crate::next::Function::new(NAME) };
            match FUNCTION.get($find) {
                // SAFETY: the caller keeps the contract of the function.
                Some(function) => unsafe { function($($arg),*) },
                None => !0,
            }
        })*
    };
}
pub(crate) use functions;

/// libc's functions.
pub(crate) mod real {
    use core::ffi::{c_int, c_long, c_ulong, c_void};

    use libc::{
        epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
        socklen_t, ssize_t, timespec, timeval,
    };

    use super::following;

    functions! { following;
        fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
        fn bind(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int;
        fn listen(fd: c_int, backlog: c_int) -> c_int;
        fn accept4(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
        fn connect(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int;
        fn shutdown(fd: c_int, how: c_int) -> c_int;
        fn close(fd: c_int) -> c_int;
        fn dup(fd: c_int) -> c_int;
        fn dup2(fd: c_int, to: c_int) -> c_int;
        fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
        fn read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t;
        fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
        fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
        fn recvfrom(
            fd: c_int, buf: *mut c_void, len: size_t, flags: c_int,
            addr: *mut sockaddr, length: *mut socklen_t,
        ) -> ssize_t;
        fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
        fn write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t;
        fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
        fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
        fn sendto(
            fd: c_int, buf: *const c_void, len: size_t, flags: c_int,
            addr: *const sockaddr, length: socklen_t,
        ) -> ssize_t;
        fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
        fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
        fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
        fn ppoll(
            fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        ) -> c_int;
        fn select(
            count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
            timeout: *mut timeval,
        ) -> c_int;
        fn pselect(
            count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
            timeout: *const timespec, mask: *const sigset_t,
        ) -> c_int;
        fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
        fn epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
        fn epoll_pwait(
            set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int,
            mask: *const sigset_t,
        ) -> c_int;
        fn getpeername(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int;
        fn getsockname(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int;
        fn setsockopt(
            fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t,
        ) -> c_int;
        fn getsockopt(
            fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t,
        ) -> c_int;
        fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
        fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    }
}
