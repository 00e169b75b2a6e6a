//! Protection domains, memory, completion queues, address handles: what each
//! call does, and what it refuses.

#![allow(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)] // as in C

#[path = "../common/mod.rs"]
mod common;

mod address;
mod completion;
mod device_memory;
mod domains;
mod imports;
mod regions;
mod windows;
