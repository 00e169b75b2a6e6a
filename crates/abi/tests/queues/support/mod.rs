//! Support for tests.

pub(crate) mod end;
pub(crate) mod verbs;

pub(crate) use end::{End, QKEY, World, complete, connect, receive_wr, send_wr};

/// Runs a test in its own network namespace, with a ferroced and a link on `lo`.
pub(crate) fn on_loopback(name: &str, body: impl FnOnce()) {
    crate::common::on_loopback(name, |_ferroced| body());
}

/// Returns bytes that depend on their offset and on `seed`.
pub(crate) fn pattern(seed: u32, length: usize) -> Vec<u8> {
    let salt = seed.wrapping_mul(0x85eb_ca6b);
    (0..length as u32)
        .map(|at| ((at ^ salt).wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect()
}
