//! The work at the exit of a process.

use std::io::Read;
use std::os::fd::AsRawFd;

use ferroce_abi::exports::*;
use ferroce_control::path::SYSFS_VARIABLE;

use crate::common::{made, on_loopback, open};

/// At exit a process flushes its deferred ACKs, and under `ferroce run` writes a note if its
/// device had no traffic. The note shows that a forked child does this work, too.
#[test]
fn forked_child_handles_its_own_device_at_exit() {
    on_loopback("exit::forked_child_handles_its_own_device_at_exit", |_| {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        unsafe {
            std::env::set_var(SYSFS_VARIABLE, "/nowhere");
            let parents = open();
            let child = libc::fork();
            if child == 0 {
                libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO);
                made(ibv_alloc_pd(open()));
                libc::exit(0);
            }
            drop(writer);
            let mut note = String::new();
            let read = std::fs::File::from(reader).read_to_string(&mut note);
            read.expect("the child's standard error");
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
                "{note}"
            );
            assert!(note.contains("neither sent nor received"), "{note:?}");
            assert_eq!(ibv_close_device(parents), 0);
        }
    });
}
