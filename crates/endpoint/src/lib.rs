//! A program that uses RDMA, in its simplest form: what the demo, the benchmarks and the
//! system tests have in common.
//!
//! An [`Endpoint`] is a device, a queue pair and memory that the other end may use. Two of
//! them tell each other their [`Introduction`]s, by a channel of their own such as a
//! [`Partner`], and are connected. What they do then is up to them.

mod endpoint;
mod pages;
mod partner;

pub use endpoint::{DEPTH, Endpoint, Introduction, Options, PATIENCE, SIZE};
pub use pages::Pages;
pub use partner::Partner;

/// Bytes that depend on where they are and on `seed`.
pub fn pattern(seed: u32, length: u32) -> Vec<u8> {
    let salt = seed.wrapping_mul(0x85eb_ca6b);
    (0..length)
        .map(|at| ((at ^ salt).wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect()
}
