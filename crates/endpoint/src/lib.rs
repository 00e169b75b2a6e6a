//! A minimal RDMA program, shared by the demo, the benchmarks and the system tests.
//!
//! An [`Endpoint`] is a device, a queue pair and memory that the peer may access. Two
//! endpoints exchange their [`Introduction`]s over a channel outside of RDMA, such as a
//! [`Partner`], and connect. After that the caller posts work requests.

mod endpoint;
mod pages;
mod partner;

pub use endpoint::{DEPTH, Endpoint, Introduction, Options, PATIENCE, SIZE};
pub use pages::Pages;
pub use partner::Partner;

/// Returns bytes that depend on their offset and on `seed`.
pub fn pattern(seed: u32, length: u32) -> Vec<u8> {
    let salt = seed.wrapping_mul(0x85eb_ca6b);
    (0..length)
        .map(|at| ((at ^ salt).wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect()
}
