//! Runs a test as a user without privileges.

use ferroce_testnet::isolated_as_root;
use rustix::process::{Gid, Uid};

/// Runs `body` in a fresh network namespace with `lo` up, as a user without privileges in
/// that namespace. `name` is the name of the calling test function.
pub(crate) fn isolated_as_nobody(name: &str, body: impl FnOnce()) {
    isolated_as_root(name, || {
        become_nobody();
        body();
    });
}

/// Makes this thread, and threads that it starts, run as the user nobody.
pub(crate) fn become_nobody() {
    const NOBODY: u32 = 65_534;
    let gone = rustix::thread::set_thread_groups(&[])
        .and_then(|()| rustix::thread::set_thread_gid(Gid::from_raw(NOBODY)))
        .and_then(|()| rustix::thread::set_thread_uid(Uid::from_raw(NOBODY)));
    gone.expect("root may");
}
