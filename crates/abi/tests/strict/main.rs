//! Tests of strict mode and profiles, with programs written as in C.

#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)] // as in C

#[path = "../common/mod.rs"]
mod common;

mod connecting;
mod fixture;
mod memory;
mod profiles;
mod queues;
