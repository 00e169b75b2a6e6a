//! Checks the ring of the local wire with loom, which runs every interleaving of its threads
//! that the memory model allows.
//!
//! `cargo test --manifest-path loom/Cargo.toml` compiles `crates/net/src/local/ring.rs` itself,
//! with loom's atomics. The records are in cells that report a data race.

#![cfg(test)]

#[allow(dead_code)] // only the simulator enables bugs
#[path = "../../crates/net/src/local/bugs.rs"]
mod bugs;
#[allow(dead_code)] // the wire uses all of it
#[path = "../../crates/net/src/local/ring.rs"]
mod ring;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

mod tests;
