//! librdmacm's functions. The library is loaded with the program's first socket.

use core::ffi::{CStr, c_int, c_long, c_void};
use std::sync::OnceLock;

use libc::{epoll_event, iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

use crate::next::functions;

/// Looks up a function of librdmacm.
fn find(name: &CStr) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        // SAFETY: the library's initialisers have no preconditions.
        let handle = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW) };
        handle.expose_provenance()
    });
    if library == 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: the library is never unloaded, and the name is a string.
    unsafe {
        libc::dlsym(
            core::ptr::with_exposed_provenance_mut(library),
            name.as_ptr(),
        )
    }
}

functions! { find;
    fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn rbind(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int;
    fn rlisten(fd: c_int, backlog: c_int) -> c_int;
    fn raccept(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn rconnect(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int;
    fn rshutdown(fd: c_int, how: c_int) -> c_int;
    fn rclose(fd: c_int) -> c_int;
    fn rrecv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn rrecvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int,
        addr: *mut sockaddr, length: *mut socklen_t,
    ) -> ssize_t;
    fn rrecvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    fn rread(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t;
    fn rreadv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn rsend(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn rsendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int,
        addr: *const sockaddr, length: socklen_t,
    ) -> ssize_t;
    fn rsendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    fn rwrite(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t;
    fn rwritev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn rgetpeername(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn rgetsockname(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn rsetsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t,
    ) -> c_int;
    fn rgetsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t,
    ) -> c_int;
    fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn repoll_create(flags: c_int) -> c_int;
    fn repoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn repoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
}
