//! Tests of protection domains, memory, completion queues and address handles.

#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)] // as in C

#[path = "../common/mod.rs"]
mod common;

mod address;
mod completion;
mod datagrams;
mod device_memory;
mod domains;
mod events;
mod exit;
mod imports;
mod iwarp;
mod memory_limit;
mod null_places;
mod opens;
mod regions;
mod traffic;
mod windows;
