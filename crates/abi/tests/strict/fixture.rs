//! A program in strict mode, and the warnings that it gets.

use core::ptr;
use std::os::fd::{AsRawFd, OwnedFd};

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_control::{Request, find_daemon};
use rustix::fs::MemfdFlags;

use crate::common::{LINK, made, on_loopback, open, pages};

/// Standard error, which goes to a file until this is dropped.
pub(crate) struct Warnings {
    file: OwnedFd,
    before: OwnedFd,
}

impl Warnings {
    fn begin() -> Warnings {
        let file = rustix::fs::memfd_create("warnings", MemfdFlags::CLOEXEC).expect("a file");
        let before = rustix::io::dup(rustix::stdio::stderr()).expect("standard error");
        assert!(unsafe { libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) } >= 0);
        Warnings { file, before }
    }

    /// Returns all warnings so far.
    pub(crate) fn text(&self) -> String {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        std::fs::read_to_string(path).expect("a file")
    }

    /// Asserts that a check has warned this many times.
    #[track_caller]
    pub(crate) fn assert(&self, check: &str, count: usize) {
        let text = self.text();
        assert_eq!(text.matches(&format!("[{check}]")).count(), count, "{text}");
        if count > 0 {
            for part in ["called by: ", "hardware:  ", "fix:       ", "+0x"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }

    /// Asserts that there are no warnings.
    #[track_caller]
    pub(crate) fn assert_none(&self) {
        let text = self.text();
        assert!(!text.contains("strict:"), "{text}");
    }
}

impl Drop for Warnings {
    fn drop(&mut self) {
        let text = self.text();
        unsafe { libc::dup2(self.before.as_raw_fd(), libc::STDERR_FILENO) };
        if std::thread::panicking() {
            eprintln!("warnings of the program:\n{text}");
        }
    }
}

/// A protection domain with a completion queue and registered memory.
pub(crate) struct Program {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cqs: [*mut ibv_cq; 2],
    pub(crate) memory: *mut u8,
    pub(crate) mr: *mut ibv_mr,
    pub(crate) warnings: Warnings,
}

impl Program {
    pub(crate) fn lkey(&self) -> u32 {
        unsafe { (*self.mr).lkey }
    }
}

/// Runs a program with an open device; `settings` are variables of its environment. Objects end
/// with the process.
pub(crate) fn run(name: &str, settings: &[(&str, &str)], body: impl FnOnce(&Program)) {
    on_loopback(name, |_ferroced| {
        for (variable, value) in settings {
            unsafe { std::env::set_var(variable, value) };
        }
        body(&start());
    });
}

/// Runs a program in strict mode.
pub(crate) fn run_strict(name: &str, mode: &str, body: impl FnOnce(&Program)) {
    run(name, &[("FERROCE_STRICT", mode)], body);
}

/// Opens the device and makes the objects of a program.
pub(crate) fn start() -> Program {
    let context = open();
    unsafe {
        let pd = made(ibv_alloc_pd(context));
        let memory = pages(4);
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let mr = made(ibv_reg_mr(pd, memory.cast(), 4 * 4096, access as i32));
        let cqs = [(); 2].map(|()| {
            let nothing = ptr::null_mut();
            made(ibv_create_cq(context, 255, nothing, nothing.cast(), 0))
        });
        Program {
            context,
            pd,
            cqs,
            memory,
            mr,
            warnings: Warnings::begin(),
        }
    }
}

/// Changes the link: its MTU, its mode of strict checks, its profile.
pub(crate) fn set_link(mtu: Option<u32>, strict: Option<&str>, profile: Option<&str>) {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let changed = connection.perform(&Request::LinkSet {
        name: LINK.into(),
        rename: None,
        mtu,
        crc: None,
        lids: None,
        patience: None,
        speed: None,
        local: None,
        strict: strict.map(Into::into),
        profile: profile.map(Into::into),
    });
    changed.expect("a link that can be changed");
}
