//! Support for tests: a network namespace with a ferroced, and the inline functions of
//! `verbs.h` in Rust.

#![allow(dead_code, unused_macros, unused_imports)] // not every test program needs everything
#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)] // as in C

pub(crate) mod ferroced;
pub(crate) mod inline;
pub(crate) mod pair;

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::isolated;

pub(crate) use ferroced::Ferroced;

/// The link of most tests.
pub(crate) const LINK: &str = "rxe0";
/// Index of 127.0.0.1 on `lo`.
pub(crate) const V4: u8 = 1;
/// Index of ::1 on `lo`.
pub(crate) const V6: u8 = 0;

/// Runs a test in its own network namespace, with a ferroced and a link on `lo`. `name` is
/// the path of the test function.
pub(crate) fn on_loopback(name: &str, body: impl FnOnce(Ferroced)) {
    isolated(name, || {
        let ferroced = Ferroced::start();
        ferroced::add_link(LINK, "lo");
        body(ferroced);
    });
}

/// Runs a test as [`on_loopback`] does, with an open device.
pub(crate) fn with_device(name: &str, body: impl FnOnce(*mut ibv_context)) {
    on_loopback(name, |_ferroced| {
        let context = open();
        body(context);
        assert_eq!(unsafe { ibv_close_device(context) }, 0);
    });
}

/// Opens the first device.
pub(crate) fn open() -> *mut ibv_context {
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&mut count);
        assert!(!list.is_null() && count >= 1);
        let context = ibv_open_device(*list);
        assert!(!context.is_null(), "errno {}", errno());
        ibv_free_device_list(list);
        context
    }
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Asserts that a call returned an object.
#[track_caller]
pub(crate) fn made<T>(object: *mut T) -> *mut T {
    assert!(!object.is_null(), "errno {}", errno());
    object
}

/// Asserts that a call returned NULL with this errno.
#[track_caller]
pub(crate) fn refused<T>(object: *mut T, why: i32) {
    let errno = errno();
    assert!(object.is_null());
    assert_eq!(errno, why);
}

/// Returns a structure of zeros.
pub(crate) fn zeros<T>() -> T {
    unsafe { core::mem::zeroed() }
}

/// Maps pages of memory, which stay mapped until the process exits.
pub(crate) fn pages(count: usize) -> *mut u8 {
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(ptr::null_mut(), count * 4096, protection, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        start.cast()
    }
}

/// Polls a descriptor for all events without waiting, and returns those that are present.
pub(crate) fn polled(fd: i32) -> i16 {
    let mut fds = libc::pollfd {
        fd,
        events: libc::POLLIN | libc::POLLOUT | libc::POLLPRI,
        revents: 0,
    };
    assert!(unsafe { libc::poll(&mut fds, 1, 0) } >= 0);
    fds.revents
}
