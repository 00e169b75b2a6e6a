//! System calls under the names of libc's functions, for this library alone.
//!
//! rdma-core's librspreload.so replaces libc's socket functions in the whole process and
//! turns sockets into rsockets. It would also turn the sockets of this library, which carry
//! those rsockets, and deadlock. Therefore every call of these names from within
//! libferroce.so, including those of Rust's standard library, ends here: the linker prefers
//! a definition in the archive to one in libc, and the version script exports none of them.
//!
//! Only the library that `cargo xtask` links has them. `tests/exports.rs` checks that the
//! library imports no function that librspreload.so replaces.

use core::ffi::{c_int, c_long, c_void};

use libc::{iovec, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, syscall};

/// Defines functions that are plain system calls. `syscall` sets `errno` as libc does.
macro_rules! calls {
    ($($name:ident = $number:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: libc's function of this name has the same contract as the system call.
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
    // Variadic in C. On all processors of Linux a variadic integer is passed like the third
    // argument, and commands without an argument ignore it.
    fcntl = SYS_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    close = SYS_close(fd: c_int) -> c_int;
    read = SYS_read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    write = SYS_write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    writev = SYS_writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
}

/// `poll` by `ppoll`: aarch64 has no `SYS_poll`.
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let mut time = libc::timespec {
        tv_sec: (timeout / 1000).into(),
        tv_nsec: (timeout % 1000 * 1_000_000).into(),
    };
    // A negative timeout means none.
    let time = if timeout < 0 {
        core::ptr::null_mut()
    } else {
        &raw mut time
    };
    let (mask, mask_size) = (core::ptr::null::<c_void>(), 0 as size_t);
    // SAFETY: `poll` and `ppoll` have the same contract for `fds`. The kernel writes the
    // remaining time to `time`, which lives until the call returns.
    unsafe { syscall(libc::SYS_ppoll, fds, count, time, mask, mask_size) as c_int }
}
