//! System calls under the names of the C library's functions, for this library alone.
//!
//! rdma-core's librspreload.so takes the place of libc's socket functions in the whole
//! process and turns sockets into rsockets. It would do so with the sockets of this library,
//! whose rsockets they carry, and wait for itself. So every call of these names from within
//! libferroce.so, from Rust's standard library and crates too, ends here: the linker prefers
//! a definition in the archive to one in libc, and the version script exports none of them.
//!
//! Only what is linked by `cargo xtask` has them. `tests/exports.rs` checks that the library
//! imports no function that librspreload.so replaces.

use core::ffi::{c_int, c_long, c_void};

use libc::{iovec, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, syscall};

/// Defines functions that are plain system calls: `errno` is set as libc would set it.
macro_rules! calls {
    ($($name:ident = $number:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller keeps the contract of the function of this name, which is
            // that of the system call.
            unsafe { syscall(libc::$number, $($argument),*) as $result }
        }
    )*};
}

calls! {
    socket = SYS_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind = SYS_bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    getsockopt = SYS_getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t
    ) -> c_int;
    setsockopt = SYS_setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t
    ) -> c_int;
    // Variadic in C. On the processors that there are for Linux a third integer is passed
    // the same way, and the kernel ignores it where there is none.
    fcntl = SYS_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    close = SYS_close(fd: c_int) -> c_int;
    read = SYS_read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    write = SYS_write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    writev = SYS_writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    poll = SYS_poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
}
